/* SPDX-License-Identifier: Apache-2.0 */
/* The few calls of the CUDA runtime that moving tensors to a GPU and back takes. */
#include "cuda_memory.h"

#include "cli.h"

#if defined(TREEATTN_TOOL_CUDA)
#include <cuda_runtime_api.h>

static bool succeeded(const char *what, size_t bytes, cudaError_t code) {
  if (code != cudaSuccess) {
    (void)cli_error("%s, %zu bytes: CUDA error %d: %s", what, bytes, (int)code, cudaGetErrorString(code));
  }
  return code == cudaSuccess;
}

bool cuda_memory_alloc(const char *what, size_t bytes, void **memory) {
  *memory = NULL;
  return bytes == 0 || succeeded(what, bytes, cudaMalloc(memory, bytes));
}

bool cuda_memory_upload(const char *what, void *device, const void *host, size_t bytes) {
  return bytes == 0 || succeeded(what, bytes, cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}

bool cuda_memory_download(const char *what, void *host, const void *device, size_t bytes) {
  return bytes == 0 || succeeded(what, bytes, cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

bool cuda_memory_wait(void) {
  return succeeded("waiting for the GPU", 0, cudaDeviceSynchronize());
}

void cuda_memory_free(void *memory) {
  (void)cudaFree(memory);
}

#else

static bool refuse(const char *what) {
  (void)cli_error("%s: cuda is not in this build", what);
  return false;
}

bool cuda_memory_alloc(const char *what, size_t bytes, void **memory) {
  (void)bytes;
  *memory = NULL;
  return refuse(what);
}

bool cuda_memory_upload(const char *what, void *device, const void *host, size_t bytes) {
  (void)device;
  (void)host;
  (void)bytes;
  return refuse(what);
}

bool cuda_memory_download(const char *what, void *host, const void *device, size_t bytes) {
  (void)host;
  (void)device;
  (void)bytes;
  return refuse(what);
}

bool cuda_memory_wait(void) {
  return refuse("waiting for the GPU");
}

void cuda_memory_free(void *memory) {
  (void)memory;
}
#endif
