/* SPDX-License-Identifier: Apache-2.0 */
/* What the host sides of the step share: checks of the batch, of buffers and of the device. */
#ifndef TA_CUDA_STEP_HOST_H
#define TA_CUDA_STEP_HOST_H

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "step.h"

#include "../common.h"

#define TA_STEP_FAIL(...) ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

/* An array that a call reads or writes. */
typedef struct ta_step_buffer {
  const char *name;
  const void *data;
  uint64_t count; /* elements that the call needs */
  uint64_t element_bytes;
  uint64_t alignment;
  bool optional; /* may be NULL */
  bool written;
} ta_step_buffer;

/* The device that a call runs on. */
typedef struct ta_step_device {
  int num_multiprocessors;
  bool has_clusters; /* and this build has code for it that uses them */
} ta_step_device;

treeattn_status ta_step_check_size(const char *name, size_t given, size_t expected, treeattn_error *error);
treeattn_status ta_step_check_batch(const treeattn_cuda_batch *given, ta_step_batch *batch, treeattn_error *error);
/* NULLs, alignment, and overlaps of what is written: what can be told without a device. */
treeattn_status ta_step_check_buffers(const ta_step_buffer *buffers, int count, treeattn_error *error);
treeattn_status ta_step_ask_device(ta_step_device *device, treeattn_error *error);
/* That kernels may follow the pointers, as far as the driver knows. */
treeattn_status ta_step_check_pointers(const ta_step_buffer *buffers, int count, treeattn_error *error);
treeattn_status ta_step_launched(const char *what, cudaError_t code, treeattn_error *error);

#endif
