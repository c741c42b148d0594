/* SPDX-License-Identifier: Apache-2.0 */
/* treeattn_cuda_expand: checks what the host can know and launches. */
#include "step_expand.cuh"
#include "step_host.h"

/* A mask as a buffer; the product of its sizes is known to fit once this returns OK. */
static treeattn_status check_mask(const char *name, const treeattn_cuda_mask &mask, int32_t num_nodes,
                                  uint64_t element_bytes, ta_step_buffer *buffer, treeattn_error *error) {
  *buffer = {name, mask.data, 0, element_bytes, element_bytes, true, true};
  if (mask.data == nullptr) {
    return TREEATTN_OK;
  }
  if (mask.row_stride < 1) {
    return TA_STEP_FAIL("%s.row_stride is %lld: it must be at least 1", name, (long long)mask.row_stride);
  }
  if (num_nodes > 0 && (uint64_t)mask.row_stride > UINT64_MAX / element_bytes / (uint64_t)num_nodes) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "%s: %ld rows with a stride of %lld do not fit in 64 bits", name,
                   (long)num_nodes, (long long)mask.row_stride);
  }
  buffer->count = (uint64_t)num_nodes * (uint64_t)mask.row_stride;
  if (mask.bytes < buffer->count * element_bytes) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "%s.bytes is %zu: %ld rows with a stride of %lld need %llu",
                   name, mask.bytes, (long)num_nodes, (long long)mask.row_stride,
                   (unsigned long long)(buffer->count * element_bytes));
  }
  return TREEATTN_OK;
}

treeattn_status treeattn_cuda_expand(const treeattn_cuda_expand_args *args, treeattn_error *error) {
  if (args == nullptr) {
    return TA_STEP_FAIL("args is NULL");
  }
  ta_expand_params params;
  treeattn_status status = ta_step_check_size("treeattn_cuda_expand_args", args->struct_size, sizeof *args, error);
  status = status != TREEATTN_OK ? status : ta_step_check_batch(&args->batch, &params.batch, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  const uint64_t nodes = (uint64_t)params.batch.num_nodes;
  const uint64_t requests = (uint64_t)params.batch.num_requests;
  enum { NUM_BUFFERS = 9 };
  ta_step_buffer buffers[NUM_BUFFERS] = {
      {"batch.offsets", args->batch.offsets, requests == 0 ? 0 : requests + 1, 4, 4, false, false},
      {"parents", args->parents, nodes, 4, 4, false, false},
      {"prefix_lens", args->prefix_lens, requests, 4, 4, true, false},
      {"depths", args->depths, nodes, 4, 4, true, true},
      {"positions", args->positions, nodes, 4, 4, true, true},
      {"outcomes", args->outcomes, requests, sizeof(treeattn_cuda_outcome), 4, false, true}};
  status = check_mask("mask_bits", args->mask_bits, params.batch.num_nodes, 1, &buffers[6], error);
  status = status != TREEATTN_OK
               ? status
               : check_mask("mask_bool", args->mask_bool, params.batch.num_nodes, 1, &buffers[7], error);
  status = status != TREEATTN_OK
               ? status
               : check_mask("mask_f32", args->mask_f32, params.batch.num_nodes, sizeof(float), &buffers[8], error);
  status = status != TREEATTN_OK ? status : ta_step_check_buffers(buffers, NUM_BUFFERS, error);
  ta_step_device device;
  status = status != TREEATTN_OK ? status : ta_step_ask_device(&device, error);
  status = status != TREEATTN_OK ? status : ta_step_check_pointers(buffers, NUM_BUFFERS, error);
  if (status != TREEATTN_OK || requests == 0) {
    return status;
  }
  params.parents = args->parents;
  params.prefix_lens = args->prefix_lens;
  params.depths = args->depths;
  params.positions = args->positions;
  params.bits = args->mask_bits;
  params.bools = args->mask_bool;
  params.dense = args->mask_f32;
  params.prefix_columns = args->prefix_columns;
  params.num_tiles = params.batch.max_nodes == 0 ? 1 : (params.batch.max_nodes + TA_EXPAND_TILE - 1) / TA_EXPAND_TILE;
  params.outcomes = args->outcomes;
  const dim3 grid((unsigned)params.batch.num_requests * (unsigned)params.num_tiles);
  ta_expand_kernel<<<grid, TA_EXPAND_THREADS, 0, (cudaStream_t)args->stream>>>(params);
  return ta_step_launched("treeattn_cuda_expand", cudaGetLastError(), error);
}
