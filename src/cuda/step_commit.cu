/* SPDX-License-Identifier: Apache-2.0 */
/* treeattn_cuda_commit: checks what the host can know and launches. */
#include "step_commit.cuh"
#include "step_host.h"

typedef struct axis {
  const char *field;
  int64_t count, stride;
} axis;

enum { BLOCK, HEAD, ROW, NUM_AXES };

/* Strides with the packed order where they are 0. Strides and counts are not negative. */
static bool get_axes(const treeattn_cuda_commit_group &given, int64_t num_blocks, int64_t rows_per_block,
                     axis axes[NUM_AXES]) {
  const int64_t strides[NUM_AXES] = {given.stride_block_bytes, given.stride_head_bytes, given.stride_row_bytes};
  axes[BLOCK] = {"stride_block_bytes", num_blocks, 0};
  axes[HEAD] = {"stride_head_bytes", given.num_heads, 0};
  axes[ROW] = {"stride_row_bytes", rows_per_block, 0};
  for (int n = NUM_AXES - 1; n >= 0; n--) {
    if (strides[n] > 0) {
      axes[n].stride = strides[n];
    } else if (n == ROW) {
      axes[n].stride = (int64_t)given.row_bytes;
    } else if (!ta_mul_i64(axes[n + 1].count, axes[n + 1].stride, &axes[n].stride)) {
      return false;
    }
  }
  return true;
}

/* Rows must be apart: from the smallest stride up, each has to step over all that the smaller ones span. */
static treeattn_status get_span(int64_t g, const treeattn_cuda_commit_group &given, const axis axes[NUM_AXES],
                                int64_t *span, treeattn_error *error) {
  const axis *order[NUM_AXES] = {&axes[ROW], &axes[HEAD], &axes[BLOCK]};
  *span = 0;
  if (axes[BLOCK].count == 0 || axes[ROW].count == 0) {
    return TREEATTN_OK; /* an empty cache */
  }
  for (int a = 1; a < NUM_AXES; a++) {
    for (int b = a; b > 0 && order[b]->stride < order[b - 1]->stride; b--) {
      const axis *swapped = order[b];
      order[b] = order[b - 1];
      order[b - 1] = swapped;
    }
  }
  *span = (int64_t)given.row_bytes;
  for (int n = 0; n < NUM_AXES; n++) {
    int64_t reach = 0;
    if (order[n]->count == 1) {
      continue;
    }
    if (order[n]->stride < *span) {
      return TA_STEP_FAIL("groups[%lld].%s is %lld: rows overlap, it must be at least %lld", (long long)g,
                          order[n]->field, (long long)order[n]->stride, (long long)*span);
    }
    if (!ta_mul_i64(order[n]->count - 1, order[n]->stride, &reach) || !ta_add_i64(reach, *span, span)) {
      return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "groups[%lld].%s is %lld: over %lld steps it overflows",
                     (long long)g, order[n]->field, (long long)order[n]->stride, (long long)order[n]->count);
    }
  }
  return TREEATTN_OK;
}

static treeattn_status check_fields(int64_t g, const treeattn_cuda_commit_group &given, treeattn_error *error) {
  const struct {
    const char *name;
    int64_t value, least, most;
  } fields[] = {{"num_tensors", given.num_tensors, 0, INT32_MAX},
                {"row_bytes", (int64_t)(given.row_bytes > INT64_MAX ? 0 : given.row_bytes), 1, INT64_MAX},
                {"num_heads", given.num_heads, 1, INT32_MAX},
                {"stride_tensor_bytes", given.stride_tensor_bytes, 0, INT64_MAX},
                {"stride_block_bytes", given.stride_block_bytes, 0, INT64_MAX},
                {"stride_head_bytes", given.stride_head_bytes, 0, INT64_MAX},
                {"stride_row_bytes", given.stride_row_bytes, 0, INT64_MAX}};
  for (const auto &field : fields) {
    if (field.value < field.least || field.value > field.most) {
      return TA_STEP_FAIL("groups[%lld].%s is %lld: it lies in %lld to %lld", (long long)g, field.name,
                          (long long)field.value, (long long)field.least, (long long)field.most);
    }
  }
  /* Threads number the bytes of a group's rows of one slot, at worst. */
  int64_t columns = 0;
  if (!ta_mul_i64((int64_t)given.row_bytes, given.num_heads, &columns) ||
      !ta_mul_i64(columns, given.num_tensors, &columns) || columns > INT32_MAX) {
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED,
                   "groups[%lld]: row_bytes %zu times num_heads %lld times num_tensors %lld must be below 2^31",
                   (long long)g, given.row_bytes, (long long)given.num_heads, (long long)given.num_tensors);
  }
  return TREEATTN_OK;
}

static treeattn_status check_group(int64_t g, const treeattn_cuda_commit_group &given, int64_t num_blocks,
                                   int64_t rows_per_block, ta_commit_group *group, ta_step_buffer *buffer,
                                   treeattn_error *error) {
  axis axes[NUM_AXES];
  int64_t span = 0;
  treeattn_status status = check_fields(g, given, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (!get_axes(given, num_blocks, rows_per_block, axes)) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "groups[%lld]: the strides of the packed order overflow",
                   (long long)g);
  }
  status = get_span(g, given, axes, &span, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (given.num_tensors > 0 && given.bytes < (size_t)span) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "groups[%lld].bytes is %zu: the shape needs %lld",
                   (long long)g, given.bytes, (long long)span);
  }
  const uint64_t tensors = (uint64_t)given.num_tensors;
  if (given.tensors != nullptr) {
    *buffer = {"groups[].tensors", given.tensors, tensors, sizeof(void *), sizeof(void *), false, false};
  } else {
    int64_t reach = 0;
    if (tensors > 1 && given.stride_tensor_bytes < span) {
      return TA_STEP_FAIL("groups[%lld].stride_tensor_bytes is %lld: tensors overlap, it must be at least %lld",
                          (long long)g, (long long)given.stride_tensor_bytes, (long long)span);
    }
    if (tensors > 1 && !ta_mul_i64(given.num_tensors - 1, given.stride_tensor_bytes, &reach)) {
      return ta_fail(error, TREEATTN_ERROR_OVERFLOW,
                     "groups[%lld].stride_tensor_bytes is %lld: over %lld steps it overflows", (long long)g,
                     (long long)given.stride_tensor_bytes, (long long)given.num_tensors);
    }
    /* K and V may lie between each other's rows, so that only the start is compared with other buffers. */
    *buffer = {"groups[].base", given.base, tensors == 0 || span == 0 ? 0u : 1u, 1, 1, false, true};
  }
  *group = {given.tensors,
            (unsigned char *)given.base,
            given.stride_tensor_bytes,
            axes[BLOCK].stride,
            axes[HEAD].stride,
            axes[ROW].stride,
            (int64_t)given.row_bytes,
            (int32_t)given.num_tensors,
            (int32_t)given.num_heads};
  return TREEATTN_OK;
}

/* The shape of the cache: blocks, and slots in each. */
static treeattn_status check_cache(const treeattn_cuda_commit_args *args, ta_commit_params *params,
                                   treeattn_error *error) {
  const bool paged = args->page_size > 0;
  const struct {
    const char *name;
    int64_t value;
    bool matters;
  } fields[] = {{"page_size", args->page_size, true},
                {"kv_capacity", args->kv_capacity, !paged},
                {"num_sequences", args->num_sequences, !paged},
                {"num_pages", args->num_pages, paged},
                {"page_table_stride", args->page_table_stride, paged}};
  for (const auto &field : fields) {
    if (field.matters && field.value < 0) {
      return TA_STEP_FAIL("%s is %lld: it must not be negative", field.name, (long long)field.value);
    }
  }
  if (paged && args->page_table_stride > INT32_MAX) {
    return TA_STEP_FAIL("page_table_stride is %lld: it lies in 0 to 2147483647", (long long)args->page_table_stride);
  }
  params->page_size = args->page_size;
  params->num_slots = paged ? args->page_size : args->kv_capacity;
  params->num_blocks = paged                      ? args->num_pages
                       : args->num_sequences == 0 ? args->batch.num_requests
                                                  : args->num_sequences;
  params->page_table_stride = paged ? args->page_table_stride : 0;
  params->page_table = paged ? args->page_table : nullptr;
  params->cache_indices = paged ? nullptr : args->cache_indices;
  return TREEATTN_OK;
}

/* Enough blocks for each request to move 16 bytes a thread, and not many more than the device holds at once. */
static int32_t team_size(const ta_commit_params *params, const ta_step_device *device) {
  int64_t columns = 0;
  for (int32_t g = 0; g < params->num_groups; g++) {
    const ta_commit_group *group = &params->groups[g];
    columns += group->num_tensors * group->num_heads * ((group->row_bytes + 15) / 16);
  }
  const int64_t wanted = (columns + TA_COMMIT_THREADS - 1) / TA_COMMIT_THREADS;
  const int64_t most =
      ta_max_i64(1, (int64_t)device->num_multiprocessors * 2 / ta_max_i64(1, params->batch.num_requests));
  return (int32_t)ta_max_i64(1, ta_min_i64(wanted, most));
}

treeattn_status treeattn_cuda_commit(const treeattn_cuda_commit_args *args, treeattn_error *error) {
  if (args == nullptr) {
    return TA_STEP_FAIL("args is NULL");
  }
  ta_commit_params params;
  treeattn_status status = ta_step_check_size("treeattn_cuda_commit_args", args->struct_size, sizeof *args, error);
  status = status != TREEATTN_OK ? status : ta_step_check_batch(&args->batch, &params.batch, error);
  status = status != TREEATTN_OK ? status : check_cache(args, &params, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (args->num_groups < 0 || args->num_groups > TREEATTN_CUDA_COMMIT_MAX_GROUPS) {
    return TA_STEP_FAIL("num_groups is %lld: it lies in 0 to %d", (long long)args->num_groups,
                        TREEATTN_CUDA_COMMIT_MAX_GROUPS);
  }
  if (args->num_groups > 0 && (args->groups == nullptr || args->group_bytes != sizeof(treeattn_cuda_commit_group))) {
    return args->groups == nullptr ? TA_STEP_FAIL("groups is NULL: num_groups is %lld", (long long)args->num_groups)
                                   : TA_STEP_FAIL("group_bytes is %zu: this version needs %zu", args->group_bytes,
                                                  sizeof(treeattn_cuda_commit_group));
  }
  const uint64_t nodes = (uint64_t)params.batch.num_nodes;
  const uint64_t requests = (uint64_t)params.batch.num_requests;
  enum { NUM_PLAIN = 9 };
  ta_step_buffer buffers[NUM_PLAIN + TREEATTN_CUDA_COMMIT_MAX_GROUPS] = {
      {"batch.offsets", args->batch.offsets, requests == 0 ? 0 : requests + 1, 4, 4, false, false},
      {"path", args->path, nodes, 4, 4, false, false},
      {"num_path", args->num_path, requests, 4, 4, false, false},
      {"verified", args->verified, requests, sizeof(treeattn_cuda_outcome), 4, true, false},
      {"prefix_lens", args->prefix_lens, requests, 4, 4, false, false},
      {"cache_indices", params.cache_indices, requests, 4, 4, true, false},
      {"page_table", params.page_table, requests * (uint64_t)params.page_table_stride, 4, 4, args->page_size == 0,
       false},
      {"next_prefix_lens", args->next_prefix_lens, requests, 4, 4, true, true},
      {"outcomes", args->outcomes, requests, sizeof(treeattn_cuda_outcome), 4, false, true}};
  params.num_groups = (int32_t)args->num_groups;
  for (int64_t g = 0; g < args->num_groups && status == TREEATTN_OK; g++) {
    status = check_group(g, args->groups[g], params.num_blocks, params.num_slots, &params.groups[g],
                         &buffers[NUM_PLAIN + g], error);
  }
  const int num_buffers = NUM_PLAIN + params.num_groups;
  status = status != TREEATTN_OK ? status : ta_step_check_buffers(buffers, num_buffers, error);
  ta_step_device device;
  status = status != TREEATTN_OK ? status : ta_step_ask_device(&device, error);
  status = status != TREEATTN_OK ? status : ta_step_check_pointers(buffers, num_buffers, error);
  if (status != TREEATTN_OK || requests == 0) {
    return status;
  }
  params.path = args->path;
  params.num_path = args->num_path;
  params.verified = args->verified;
  params.prefix_lens = args->prefix_lens;
  params.next_prefix_lens = args->next_prefix_lens;
  params.outcomes = args->outcomes;
  params.team = team_size(&params, &device);
  const dim3 grid((unsigned)params.batch.num_requests * (unsigned)params.team);
  ta_commit_kernel<<<grid, TA_COMMIT_THREADS, 0, (cudaStream_t)args->stream>>>(params);
  return ta_step_launched("treeattn_cuda_commit", cudaGetLastError(), error);
}
