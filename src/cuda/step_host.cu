/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the batch, of buffers and of the device, for the host sides of the step. */
#include "step_host.h"

treeattn_status ta_step_launched(const char *what, cudaError_t code, treeattn_error *error) {
  if (code == cudaSuccess) {
    return TREEATTN_OK;
  }
  (void)cudaGetLastError(); /* not to be reported again by the caller's next call */
  return ta_fail(error, TREEATTN_ERROR_BACKEND, "%s: CUDA error %d (%s): %s", what, (int)code, cudaGetErrorName(code),
                 cudaGetErrorString(code));
}

treeattn_status ta_step_check_size(const char *name, size_t given, size_t expected, treeattn_error *error) {
  return given == expected ? TREEATTN_OK
                           : TA_STEP_FAIL("struct_size is %zu: must be sizeof(%s), %zu", given, name, expected);
}

treeattn_status ta_step_check_batch(const treeattn_cuda_batch *given, ta_step_batch *batch, treeattn_error *error) {
  if (given->num_requests < 0 || given->num_requests > 65535) {
    return TA_STEP_FAIL("batch.num_requests is %lld: it lies in 0 to 65535", (long long)given->num_requests);
  }
  if (given->num_nodes < 0 || given->num_nodes > INT32_MAX) {
    return TA_STEP_FAIL("batch.num_nodes is %lld: it lies in 0 to 2147483647", (long long)given->num_nodes);
  }
  if (given->max_nodes < 0 || given->max_nodes > TREEATTN_CUDA_STEP_MAX_NODES) {
    return TA_STEP_FAIL("batch.max_nodes is %lld: it lies in 0 to %d", (long long)given->max_nodes,
                        TREEATTN_CUDA_STEP_MAX_NODES);
  }
  *batch = {given->offsets, (int32_t)given->num_requests, (int32_t)given->num_nodes, (int32_t)given->max_nodes};
  return TREEATTN_OK;
}

/* What is there: an array that is not given is as long as none. */
static uint64_t bytes_of(const ta_step_buffer &buffer) {
  return buffer.data == nullptr ? 0 : buffer.count * buffer.element_bytes;
}

static bool overlap(const ta_step_buffer &a, const ta_step_buffer &b) {
  const uintptr_t a_start = (uintptr_t)a.data;
  const uintptr_t b_start = (uintptr_t)b.data;
  return bytes_of(a) > 0 && bytes_of(b) > 0 && a_start < b_start + bytes_of(b) && b_start < a_start + bytes_of(a);
}

treeattn_status ta_step_check_buffers(const ta_step_buffer *buffers, int count, treeattn_error *error) {
  for (int n = 0; n < count; n++) {
    const ta_step_buffer &buffer = buffers[n];
    if (buffer.data == nullptr && !buffer.optional && buffer.count > 0) {
      return TA_STEP_FAIL("%s is NULL: it needs %llu elements", buffer.name, (unsigned long long)buffer.count);
    }
    if ((uintptr_t)buffer.data % buffer.alignment != 0) {
      return TA_STEP_FAIL("%s is %p: must be aligned to %llu bytes", buffer.name, buffer.data,
                          (unsigned long long)buffer.alignment);
    }
    for (int other = 0; other < count; other++) {
      if (other != n && buffer.written && overlap(buffer, buffers[other])) {
        return TA_STEP_FAIL("%s and %s overlap", buffer.name, buffers[other].name);
      }
    }
  }
  return TREEATTN_OK;
}

treeattn_status ta_step_ask_device(ta_step_device *device, treeattn_error *error) {
  int index = 0;
  int major = 0;
  int minor = 0;
  cudaError_t code = cudaGetDevice(&index);
  code = code != cudaSuccess ? code : cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
  code = code != cudaSuccess ? code : cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
  code = code != cudaSuccess
             ? code
             : cudaDeviceGetAttribute(&device->num_multiprocessors, cudaDevAttrMultiProcessorCount, index);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) {
    (void)cudaGetLastError();
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "no CUDA device: %s", cudaGetErrorString(code));
  }
  if (code != cudaSuccess) {
    return ta_step_launched("asking the current device", code, error);
  }
  if (major < 8) {
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "compute capability %d.%d: this build has code for 8.0 and later",
                   major, minor);
  }
  device->has_clusters = major == 9 && minor == 0;
  return TREEATTN_OK;
}

treeattn_status ta_step_check_pointers(const ta_step_buffer *buffers, int count, treeattn_error *error) {
  for (int n = 0; n < count; n++) {
    if (bytes_of(buffers[n]) == 0) {
      continue;
    }
    cudaPointerAttributes attributes;
    const cudaError_t code = cudaPointerGetAttributes(&attributes, buffers[n].data);
    if (code != cudaSuccess) {
      return ta_step_launched(buffers[n].name, code, error);
    }
    if (attributes.type == cudaMemoryTypeUnregistered) {
      return TA_STEP_FAIL("%s is %p: not device memory", buffers[n].name, buffers[n].data);
    }
    if (attributes.type == cudaMemoryTypeHost && attributes.devicePointer == nullptr) {
      return TA_STEP_FAIL("%s is %p: host memory that is not mapped for the device", buffers[n].name, buffers[n].data);
    }
  }
  return TREEATTN_OK;
}
