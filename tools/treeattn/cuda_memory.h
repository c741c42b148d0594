/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory for the one command that needs some. In builds without CUDA every call fails, with words. */
#ifndef TREEATTN_TOOL_CUDA_MEMORY_H
#define TREEATTN_TOOL_CUDA_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Each reports its own failure, `what` being whose memory it is. */
bool cuda_memory_alloc(const char *what, size_t bytes, void **memory);
bool cuda_memory_upload(const char *what, void *device, const void *host, size_t bytes);
bool cuda_memory_download(const char *what, void *host, const void *device, size_t bytes);
/* Waits until everything that was enqueued has been done. */
bool cuda_memory_wait(void);
void cuda_memory_free(void *memory);

#endif
