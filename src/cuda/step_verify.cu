/* SPDX-License-Identifier: Apache-2.0 */
/* treeattn_cuda_verify: checks what the host can know, lays out the scratch, and launches. */
#include "step_host.h"
#include "step_verify.cuh"

enum { SCRATCH_ALIGNMENT = 256 };

static treeattn_status check_rows(const char *name, const treeattn_verify_rows &given, int32_t num_rows,
                                  int64_t vocab_size, ta_verify_rows *rows, ta_step_buffer *buffer,
                                  treeattn_error *error) {
  const treeattn_dtype dtype = (int)given.dtype == 0 ? TREEATTN_F32 : given.dtype;
  const uint64_t element_bytes = dtype == TREEATTN_F32 ? 4 : 2;
  *rows = {given.data, given.row_stride == 0 ? vocab_size : given.row_stride, (int32_t)dtype};
  *buffer = {name, given.data, 0, element_bytes, element_bytes, true, false};
  if (given.data == nullptr) {
    return TREEATTN_OK;
  }
  if (dtype != TREEATTN_F32 && dtype != TREEATTN_F16 && dtype != TREEATTN_BF16) {
    return TA_STEP_FAIL("%s.dtype is %d: f32, f16 and bf16 are served", name, (int)dtype);
  }
  if (vocab_size < 1) {
    return TA_STEP_FAIL("vocab_size is %lld: it lies in 1 to 2147483647", (long long)vocab_size);
  }
  if (rows->stride < vocab_size) {
    return TA_STEP_FAIL("%s.row_stride is %lld: it must be at least vocab_size, %lld", name,
                        (long long)given.row_stride, (long long)vocab_size);
  }
  if (num_rows == 0) {
    return TREEATTN_OK;
  }
  if ((uint64_t)rows->stride > (UINT64_MAX / element_bytes - (uint64_t)vocab_size) / (uint64_t)num_rows) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "%s: %ld rows with a stride of %lld do not fit in 64 bits", name,
                   (long)num_rows, (long long)rows->stride);
  }
  buffer->count = (uint64_t)(num_rows - 1) * (uint64_t)rows->stride + (uint64_t)vocab_size;
  if (given.bytes < buffer->count * element_bytes) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "%s.bytes is %zu: %ld rows of %lld need %llu", name,
                   given.bytes, (long)num_rows, (long long)vocab_size,
                   (unsigned long long)(buffer->count * element_bytes));
  }
  return TREEATTN_OK;
}

/* What any request of the batch may be. With settings in device memory that is everything the arrays allow. */
typedef struct possible {
  bool weights, draft, typical;
} possible;

static possible what_is_possible(const treeattn_cuda_verify_args *args) {
  const bool known = args->request_settings == nullptr;
  const int32_t method = args->settings.temperature == 0 ? (int32_t)TREEATTN_VERIFY_GREEDY : args->settings.method;
  possible can;
  can.weights = args->argmax == nullptr && (!known || method != TREEATTN_VERIFY_GREEDY);
  can.draft = can.weights && args->draft_probs.data != nullptr &&
              (!known || method == TREEATTN_VERIFY_RESIDUAL || method == TREEATTN_VERIFY_WITHOUT_REPLACEMENT);
  can.typical = can.weights && (!known || method == TREEATTN_VERIFY_TYPICAL_LOSSY);
  return can;
}

/* None of these products can overflow: a vocabulary is below 2^31, a request has at most 2^12 nodes. */
static uint64_t take(uint64_t *total, bool wanted, uint64_t count, uint64_t element_bytes) {
  const uint64_t offset = *total;
  if (wanted) {
    const uint64_t bytes = count * element_bytes;
    *total += (bytes + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT;
  }
  return offset;
}

static void lay_out(const treeattn_cuda_verify_args *args, ta_verify_params *params) {
  const possible can = what_is_possible(args);
  const uint64_t blocks = (uint64_t)params->num_blocks;
  const uint64_t nodes = (uint64_t)params->batch.max_nodes;
  ta_verify_scratch *parts = &params->parts;
  uint64_t total = 0;
  parts->target_values = take(&total, can.weights, blocks * TA_STEP_BLOCK, sizeof(double));
  parts->target_sums = take(&total, can.weights, blocks, sizeof(double));
  parts->draft_values = take(&total, can.draft, blocks * TA_STEP_BLOCK, sizeof(double));
  parts->draft_sums = take(&total, can.draft || can.typical, blocks, sizeof(double));
  parts->partials = take(&total, args->argmax == nullptr, 2 * TA_STEP_MAX_TEAM, sizeof(uint64_t));
  parts->log_probabilities = take(&total, can.typical, TA_STEP_MAX_TEAM * nodes, sizeof(double));
  parts->depths = take(&total, can.typical, TA_STEP_MAX_TEAM * nodes, sizeof(int32_t));
  parts->decisions = take(&total, args->decisions != nullptr, nodes, sizeof(treeattn_verify_decision));
  parts->bytes = total;
}

enum { NUM_BUFFERS = 17 };

/* Everything that needs no device; fills params but for the scratch's address. */
static treeattn_status check(const treeattn_cuda_verify_args *args, ta_verify_params *params, ta_step_buffer *buffers,
                             treeattn_error *error) {
  if (args == nullptr) {
    return TA_STEP_FAIL("args is NULL");
  }
  treeattn_status status = ta_step_check_size("treeattn_cuda_verify_args", args->struct_size, sizeof *args, error);
  status = status != TREEATTN_OK ? status : ta_step_check_batch(&args->batch, &params->batch, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (args->vocab_size < 0 || args->vocab_size > INT32_MAX) {
    return TA_STEP_FAIL("vocab_size is %lld: it lies in 0 to 2147483647", (long long)args->vocab_size);
  }
  const int32_t num_nodes = params->batch.num_nodes;
  const uint64_t nodes = (uint64_t)num_nodes;
  const uint64_t requests = (uint64_t)params->batch.num_requests;
  const int num_sources = (args->argmax != nullptr) + (args->logits.data != nullptr) + (args->probs.data != nullptr);
  if (num_sources > 1 || (num_sources == 0 && nodes > 0)) {
    return TA_STEP_FAIL("argmax, logits and probs: exactly one of them is needed, %d are given", num_sources);
  }
  params->vocab_size = args->vocab_size;
  params->num_blocks = (args->vocab_size + TA_STEP_BLOCK - 1) / TA_STEP_BLOCK;
  const ta_step_buffer plain[] = {
      {"batch.offsets", args->batch.offsets, requests == 0 ? 0 : requests + 1, 4, 4, false, false},
      {"parents", args->parents, nodes, 4, 4, false, false},
      {"tokens", args->tokens, nodes, 4, 4, false, false},
      {"request_settings", args->request_settings, requests, sizeof(treeattn_cuda_verify_settings), 4, true, false},
      {"argmax", args->argmax, nodes, 4, 4, true, false},
      {"uniforms", args->uniforms, nodes, 4, 4, true, false},
      {"path", args->path, nodes, 4, 4, false, true},
      {"path_tokens", args->path_tokens, nodes, 4, 4, false, true},
      {"num_path", args->num_path, requests, 4, 4, false, true},
      {"last_tokens", args->last_tokens, requests, 4, 4, true, true},
      {"decisions", args->decisions, nodes, sizeof(treeattn_verify_decision), 8, true, true},
      {"num_decisions", args->num_decisions, requests, 4, 4, args->decisions == nullptr, true},
      {"outcomes", args->outcomes, requests, sizeof(treeattn_cuda_outcome), 4, false, true}};
  enum { NUM_PLAIN = sizeof plain / sizeof plain[0] };
  static_assert(NUM_PLAIN + 4 == NUM_BUFFERS, "three matrices and the scratch follow");
  for (int n = 0; n < NUM_PLAIN; n++) {
    buffers[n] = plain[n];
  }
  status = check_rows("logits", args->logits, num_nodes, args->vocab_size, &params->logits, &buffers[NUM_PLAIN], error);
  status = status != TREEATTN_OK ? status
                                 : check_rows("probs", args->probs, num_nodes, args->vocab_size, &params->probs,
                                              &buffers[NUM_PLAIN + 1], error);
  status = status != TREEATTN_OK ? status
                                 : check_rows("draft_probs", args->draft_probs, num_nodes, args->vocab_size,
                                              &params->draft, &buffers[NUM_PLAIN + 2], error);
  if (status != TREEATTN_OK) {
    return status;
  }
  params->parents = args->parents;
  params->tokens = args->tokens;
  params->argmax = args->argmax;
  params->uniforms = args->uniforms;
  params->settings = args->settings;
  params->request_settings = args->request_settings;
  params->path = args->path;
  params->path_tokens = args->path_tokens;
  params->num_path = args->num_path;
  params->last_tokens = args->last_tokens;
  params->decisions = args->decisions;
  params->num_decisions = args->decisions == nullptr ? nullptr : args->num_decisions;
  params->outcomes = args->outcomes;
  lay_out(args, params);
  return TREEATTN_OK;
}

treeattn_status treeattn_cuda_verify_scratch_bytes(const treeattn_cuda_verify_args *args, size_t *scratch_bytes,
                                                   treeattn_error *error) {
  ta_verify_params params;
  ta_step_buffer buffers[NUM_BUFFERS];
  const treeattn_status status = check(args, &params, buffers, error);
  if (status == TREEATTN_OK && scratch_bytes == nullptr) {
    return TA_STEP_FAIL("scratch_bytes is NULL");
  }
  if (status == TREEATTN_OK) {
    *scratch_bytes = (size_t)((uint64_t)params.batch.num_requests * params.parts.bytes);
  }
  return status;
}

/* As many blocks for each request as keep the device busy and have something to do. */
static int team_size(const ta_verify_params *params, const ta_step_device *device) {
  const int64_t work = (params->num_blocks + TA_VERIFY_WARPS * TA_WARP_BLOCKS - 1) / (TA_VERIFY_WARPS * TA_WARP_BLOCKS);
  int size = device->has_clusters && params->argmax == nullptr ? TA_STEP_MAX_TEAM : 1;
  while (size > 1 && (size / 2 >= work || (int64_t)size * params->batch.num_requests > device->num_multiprocessors)) {
    size /= 2;
  }
  return size;
}

treeattn_status treeattn_cuda_verify(const treeattn_cuda_verify_args *args, treeattn_error *error) {
  ta_verify_params params;
  ta_step_buffer buffers[NUM_BUFFERS];
  treeattn_status status = check(args, &params, buffers, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  const uint64_t needed = (uint64_t)params.batch.num_requests * params.parts.bytes;
  buffers[NUM_BUFFERS - 1] = {"scratch", args->scratch, needed, 1, SCRATCH_ALIGNMENT, needed == 0, true};
  status = ta_step_check_buffers(buffers, NUM_BUFFERS, error);
  if (status == TREEATTN_OK && args->scratch_bytes < needed) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "scratch_bytes is %zu: this batch needs %llu",
                   args->scratch_bytes, (unsigned long long)needed);
  }
  ta_step_device device;
  status = status != TREEATTN_OK ? status : ta_step_ask_device(&device, error);
  status = status != TREEATTN_OK ? status : ta_step_check_pointers(buffers, NUM_BUFFERS, error);
  if (status != TREEATTN_OK || params.batch.num_requests == 0) {
    return status;
  }
  params.scratch = (unsigned char *)args->scratch;
  const int team = team_size(&params, &device);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = (unsigned)team;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((unsigned)(team * params.batch.num_requests));
  config.blockDim = dim3(TA_VERIFY_THREADS);
  config.stream = (cudaStream_t)args->stream;
  config.attrs = &cluster;
  config.numAttrs = team > 1 ? 1 : 0;
  void *arguments[] = {&params};
  return ta_step_launched("treeattn_cuda_verify",
                          cudaLaunchKernelExC(&config, (const void *)ta_verify_kernel, arguments), error);
}
