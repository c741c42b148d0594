/* SPDX-License-Identifier: Apache-2.0 */
/* The public entry of the CUDA back end: checks a layer's buffers and launches its kernels. */
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "../cpu/backend.h"
#include "host.h"
#include "launch.h"

#define FAIL_ARGUMENT(...) ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, __VA_ARGS__)
#define CHECK_SIZE(pointer, type)                                                                              \
  do {                                                                                                         \
    if ((pointer)->struct_size != sizeof(type)) {                                                              \
      return FAIL_ARGUMENT("struct_size is %zu: must be sizeof(" #type "), %zu", (pointer)->struct_size, sizeof(type)); \
    }                                                                                                          \
  } while (0)

static treeattn_status fail_cuda(const char *what, cudaError_t code, treeattn_error *error) {
  (void)cudaGetLastError(); /* an error that leaves the context usable is not reported again by the caller's next call */
  return ta_fail(error, TREEATTN_ERROR_BACKEND, "%s: CUDA error %d (%s): %s", what, (int)code, cudaGetErrorName(code),
                 cudaGetErrorString(code));
}

int treeattn_cuda_compiled(void) {
  return 1;
}

treeattn_status treeattn_cuda_device_count(int32_t *count, treeattn_error *error) {
  if (count == NULL) {
    return FAIL_ARGUMENT("count is NULL");
  }
  int found = 0;
  const cudaError_t code = cudaGetDeviceCount(&found);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) {
    (void)cudaGetLastError();
    found = 0;
  } else if (code != cudaSuccess) {
    return fail_cuda("cudaGetDeviceCount", code, error);
  }
  *count = found;
  return TREEATTN_OK;
}

/* 90 where wgmma code can run, 80 where mma.sync code can, 0 elsewhere. */
static int tensor_path(int major, int minor) {
  if (major == 9 && minor == 0) {
    return 90;
  }
  return major >= 8 ? 80 : 0;
}

treeattn_status treeattn_cuda_get_device(int32_t index, treeattn_cuda_device *device, treeattn_error *error) {
  if (device == NULL) {
    return FAIL_ARGUMENT("device is NULL");
  }
  CHECK_SIZE(device, treeattn_cuda_device);
  int32_t count = 0;
  const treeattn_status status = treeattn_cuda_device_count(&count, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (index < 0 || index >= count) {
    return FAIL_ARGUMENT("index is %d: this machine has %d CUDA devices", (int)index, (int)count);
  }
  cudaDeviceProp properties;
  const cudaError_t code = cudaGetDeviceProperties(&properties, index);
  if (code != cudaSuccess) {
    return fail_cuda("cudaGetDeviceProperties", code, error);
  }
  snprintf(device->name, sizeof device->name, "%.127s", properties.name);
  device->major = properties.major;
  device->minor = properties.minor;
  device->num_multiprocessors = properties.multiProcessorCount;
  device->memory_bytes = properties.totalGlobalMem;
  device->tensor_path = tensor_path(properties.major, properties.minor);
  device->usable = device->tensor_path != 0;
  snprintf(device->reason, sizeof device->reason, device->usable ? "" : "compute capability %d.%d: 8.0 or later is needed",
           properties.major, properties.minor);
  return TREEATTN_OK;
}

/* The current device's numbers, in attributes that are cheap to ask for. */
static treeattn_status ask_device(int *num_multiprocessors, int *path, treeattn_error *error) {
  int device = 0;
  int major = 0;
  int minor = 0;
  cudaError_t code = cudaGetDevice(&device);
  code = code != cudaSuccess ? code : cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  code = code != cudaSuccess ? code : cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  code = code != cudaSuccess
             ? code
             : cudaDeviceGetAttribute(num_multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) {
    (void)cudaGetLastError();
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "no CUDA device: %s", cudaGetErrorString(code));
  }
  if (code != cudaSuccess) {
    return fail_cuda("asking the current device", code, error);
  }
  *path = tensor_path(major, minor);
  if (*path == 0) {
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "compute capability %d.%d: this build has code for 8.0 and later",
                   major, minor);
  }
  return TREEATTN_OK;
}

static treeattn_status settle(const treeattn_plan *plan, const treeattn_cuda_options *options,
                              ta_cuda_settings *settings, int *path, treeattn_error *error) {
  if (plan == NULL) {
    return FAIL_ARGUMENT("plan is NULL");
  }
  if (plan->backend != TREEATTN_BACKEND_CUDA) {
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "backend is %d: the plan must be made for TREEATTN_BACKEND_CUDA",
                   (int)plan->backend);
  }
  memset(settings, 0, sizeof *settings);
  int32_t asked_rows = 0;
  if (options != NULL) {
    CHECK_SIZE(options, treeattn_cuda_options);
    if (options->num_multiprocessors < 0 || options->num_multiprocessors > 65536) {
      return FAIL_ARGUMENT("num_multiprocessors is %d: must be 0 to 65536", (int)options->num_multiprocessors);
    }
    if (options->block_rows != 0 && options->block_rows != 64 && options->block_rows != 128) {
      return FAIL_ARGUMENT("block_rows is %d: must be 0, 64 or 128", (int)options->block_rows);
    }
    settings->num_multiprocessors = options->num_multiprocessors;
    asked_rows = options->block_rows;
  }
  int found = 0;
  const treeattn_status status = ask_device(&found, path, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (settings->num_multiprocessors == 0) {
    settings->num_multiprocessors = found;
  }
  if (plan->mode == TREEATTN_MODE_EXACT) {
    settings->block_rows = ta_cuda_exact_block_rows();
    settings->tile = TA_LEAF;
    return TREEATTN_OK;
  }
  if (!ta_cuda_fast_serves((int32_t)plan->head_dim, (int32_t)plan->head_dim_v)) {
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED,
                   "head_dim is %lld and head_dim_v %lld: the fast mode serves 64, 96, 128, 192, 256, 512, and 576 with "
                   "512",
                   (long long)plan->head_dim, (long long)plan->head_dim_v);
  }
  int64_t most = 0;
  for (int64_t b = 0; b < plan->num_requests; ++b) {
    most = ta_max_i64(most, plan->requests[b].num_rows * plan->group);
  }
  /* With 256 channels one group of 64 rows is faster: the accumulators of two leave no registers to overlap with. */
  const int32_t chosen_rows = most > 64 && plan->head_dim_v < 256 ? 128 : 64;
  settings->block_rows = plan->head_dim_v > 256 ? 64 : asked_rows != 0 ? asked_rows : chosen_rows;
  /* Where nothing can be shared the second stage does all the work. */
  settings->tile =
      *path == 90 && ta_cuda_fast_shares((int32_t)plan->head_dim, (int32_t)plan->q_dtype, (int32_t)plan->kv_dtype)
          ? TA_IMAGE_TILE
          : INT32_MAX;
  return TREEATTN_OK;
}

treeattn_status treeattn_cuda_get_needs(const treeattn_plan *plan, const treeattn_cuda_options *options,
                                        treeattn_cuda_needs *needs, treeattn_error *error) {
  if (needs == NULL) {
    return FAIL_ARGUMENT("needs is NULL");
  }
  CHECK_SIZE(needs, treeattn_cuda_needs);
  ta_cuda_settings settings;
  ta_image_header header;
  int path = 0;
  treeattn_status status = settle(plan, options, &settings, &path, error);
  status = status != TREEATTN_OK ? status : ta_cuda_lay_out_image(plan, &settings, NULL, &header, error);
  if (status == TREEATTN_OK) {
    needs->image_bytes = header.image_bytes;
    needs->scratch_bytes = header.scratch_bytes;
    needs->num_units = header.num_units;
    needs->num_blocks = header.num_rows * header.num_kv_heads;
    needs->block_rows = header.block_rows;
    needs->unit_leaves = header.unit_leaves;
  }
  return status;
}

treeattn_status treeattn_cuda_write_image(const treeattn_plan *plan, const treeattn_cuda_options *options, void *image,
                                          size_t image_bytes, treeattn_error *error) {
  ta_cuda_settings settings;
  ta_image_header header;
  int path = 0;
  treeattn_status status = settle(plan, options, &settings, &path, error);
  status = status != TREEATTN_OK ? status : ta_cuda_lay_out_image(plan, &settings, NULL, &header, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (image == NULL || (uintptr_t)image % 16 != 0) {
    return FAIL_ARGUMENT("image is %p: must be aligned to 16 bytes", image);
  }
  if (image_bytes < header.image_bytes) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "image_bytes is %zu: the plan needs %zu", image_bytes,
                   (size_t)header.image_bytes);
  }
  return ta_cuda_lay_out_image(plan, &settings, image, &header, error);
}

/* What the driver can tell about a pointer: whether a kernel may follow it on this device. */
static treeattn_status check_pointer(const char *name, const void *data, treeattn_error *error) {
  cudaPointerAttributes attributes;
  const cudaError_t code = cudaPointerGetAttributes(&attributes, data);
  if (code != cudaSuccess) {
    return fail_cuda(name, code, error);
  }
  if (attributes.type == cudaMemoryTypeUnregistered) {
    return FAIL_ARGUMENT("%s is %p: not device memory", name, data);
  }
  if (attributes.type == cudaMemoryTypeHost && attributes.devicePointer == NULL) {
    return FAIL_ARGUMENT("%s is %p: host memory that is not mapped for the device", name, data);
  }
  return TREEATTN_OK;
}

typedef struct buffer_check {
  const char *name;
  const void *data;
  size_t bytes, need, alignment;
} buffer_check;

static bool overlap(const buffer_check *a, const buffer_check *b) {
  const uintptr_t a_start = (uintptr_t)a->data;
  const uintptr_t b_start = (uintptr_t)b->data;
  return a->data != NULL && b->data != NULL && a->need > 0 && b->need > 0 && a_start < b_start + b->need &&
         b_start < a_start + a->need;
}

static treeattn_status check_buffers(const treeattn_plan *plan, const ta_image_header *header,
                                     const treeattn_cuda_run_args *run, treeattn_error *error) {
  const size_t lse_need = run->lse == NULL ? 0 : plan->lse_bytes;
  const size_t sinks_need = run->sinks == NULL ? 0 : (size_t)plan->num_heads * sizeof(float);
  const buffer_check buffers[] = {
      {"q", run->q, run->q_bytes, plan->q_bytes, treeattn_dtype_bytes(plan->q_dtype)},
      {"k", run->k, run->k_bytes, plan->k_bytes, 16},
      {"v", run->v, run->v_bytes, plan->v_bytes, 16},
      {"sinks", run->sinks, run->sinks_bytes, sinks_need, sizeof(float)},
      {"image", run->image, run->image_bytes, (size_t)header->image_bytes, 16},
      {"out", run->out, run->out_bytes, plan->out_bytes, treeattn_dtype_bytes(plan->out_dtype)},
      {"lse", run->lse, run->lse_bytes, lse_need, sizeof(float)},
      {"scratch", run->scratch, run->scratch_bytes, (size_t)header->scratch_bytes, 256},
      {"status", run->status, sizeof(int32_t), run->status == NULL ? 0 : sizeof(int32_t), sizeof(int32_t)}};
  enum { FIRST_WRITTEN = 5, NUM_BUFFERS = sizeof buffers / sizeof *buffers };
  for (int n = 0; n < NUM_BUFFERS; ++n) {
    const buffer_check *buffer = &buffers[n];
    if (buffer->need > 0 && buffer->data == NULL) {
      return FAIL_ARGUMENT("%s is NULL: %zu bytes are needed", buffer->name, buffer->need);
    }
    if (buffer->bytes < buffer->need) {
      return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "%s_bytes is %zu: the plan needs %zu", buffer->name,
                     buffer->bytes, buffer->need);
    }
    if (buffer->need > 0 && (uintptr_t)buffer->data % buffer->alignment != 0) {
      return FAIL_ARGUMENT("%s is %p: must be aligned to %zu bytes", buffer->name, buffer->data, buffer->alignment);
    }
    if (buffer->need > 0) {
      const treeattn_status status = check_pointer(buffer->name, buffer->data, error);
      if (status != TREEATTN_OK) {
        return status;
      }
    }
    for (int w = FIRST_WRITTEN; w < NUM_BUFFERS; ++w) {
      if (n != w && overlap(buffer, &buffers[w])) {
        return FAIL_ARGUMENT("%s and %s overlap", buffers[w].name, buffer->name);
      }
    }
  }
  return TREEATTN_OK;
}

/* The innermost first: defaults of the others follow from it, and it is the one to name. */
static treeattn_status check_strides(const treeattn_plan *plan, treeattn_error *error) {
  const struct {
    const char *name;
    int64_t stride;
  } strides[] = {{"k_stride_slot", plan->k_stride_slot},     {"k_stride_head", plan->k_stride_head},
                 {"k_stride_sequence", plan->k_stride_page}, {"v_stride_slot", plan->v_stride_slot},
                 {"v_stride_head", plan->v_stride_head},     {"v_stride_sequence", plan->v_stride_page}};
  for (const auto &entry : strides) {
    if (entry.stride % 8 != 0) {
      return FAIL_ARGUMENT("%s is %lld: the CUDA back end needs multiples of 8", entry.name, (long long)entry.stride);
    }
  }
  return TREEATTN_OK;
}

/* Query rows that a buffer of `elements` holds, at least those of the plan, which it was checked for. Where heads are the
 * outer dimension a row more would be the next head's first. */
static int64_t count_rows(const treeattn_plan *plan, size_t elements, int64_t width, int64_t stride_head,
                          int64_t stride_row) {
  const int64_t available = elements > (size_t)INT64_MAX ? INT64_MAX : (int64_t)elements;
  const int64_t first_row = (plan->num_heads - 1) * stride_head + width;
  if (stride_row <= 0 || available < first_row) {
    return plan->num_rows;
  }
  int64_t rows = (available - first_row) / stride_row + 1;
  if (plan->num_heads > 1 && stride_head >= stride_row) {
    rows = ta_min_i64(rows, (stride_head - width) / stride_row + 1);
  }
  return ta_max_i64(rows, plan->num_rows);
}

static int64_t find_max_rows(const treeattn_plan *plan, const treeattn_cuda_run_args *run) {
  const int64_t in_q = count_rows(plan, run->q_bytes / treeattn_dtype_bytes(plan->q_dtype), plan->head_dim,
                                  plan->q_stride_head, plan->q_stride_row);
  const int64_t in_out = count_rows(plan, run->out_bytes / treeattn_dtype_bytes(plan->out_dtype), plan->head_dim_v,
                                    plan->out_stride_head, plan->out_stride_row);
  const int64_t rows = ta_min_i64(in_q, in_out);
  return run->lse == NULL ? rows
                          : ta_min_i64(rows, count_rows(plan, run->lse_bytes / sizeof(float), 1, plan->lse_stride_head,
                                                        plan->lse_stride_row));
}

static void fill_params(const treeattn_plan *plan, const ta_cuda_settings *settings, const treeattn_cuda_run_args *run,
                        ta_cuda_params *params) {
  memset(params, 0, sizeof *params);
  params->image = (const unsigned char *)run->image;
  params->q = run->q;
  params->k = run->k;
  params->v = run->v;
  params->sinks = run->sinks;
  params->out = run->out;
  params->lse = run->lse;
  params->scratch = (float *)run->scratch;
  params->status = run->status;
  params->image_bytes = run->image_bytes;
  params->scratch_bytes = run->scratch_bytes;
  params->max_rows = find_max_rows(plan, run);
  params->q_stride_head = plan->q_stride_head;
  params->q_stride_row = plan->q_stride_row;
  params->out_stride_row = plan->out_stride_row;
  params->out_stride_head = plan->out_stride_head;
  params->lse_stride_row = plan->lse_stride_row;
  params->lse_stride_head = plan->lse_stride_head;
  params->k_stride_page = plan->k_stride_page;
  params->k_stride_head = plan->k_stride_head;
  params->k_stride_slot = plan->k_stride_slot;
  params->v_stride_page = plan->v_stride_page;
  params->v_stride_head = plan->v_stride_head;
  params->v_stride_slot = plan->v_stride_slot;
  params->page_size = plan->page_size;
  params->paged = plan->paged;
  params->num_heads = (int32_t)plan->num_heads;
  params->num_kv_heads = (int32_t)plan->num_kv_heads;
  params->group = (int32_t)plan->group;
  params->head_dim = (int32_t)plan->head_dim;
  params->head_dim_v = (int32_t)plan->head_dim_v;
  params->q_dtype = (int32_t)plan->q_dtype;
  params->out_dtype = (int32_t)plan->out_dtype;
  params->kv_dtype = (int32_t)plan->kv_dtype;
  params->fast = plan->mode == TREEATTN_MODE_FAST;
  params->block_rows = settings->block_rows;
  const ta_query_scale scale = ta_plan_query_scale(plan);
  params->scale_hi = scale.hi;
  params->scale_lo = scale.lo;
  params->cap = scale.cap;
}

treeattn_status treeattn_cuda_attend(const treeattn_plan *plan, const treeattn_cuda_options *options,
                                     const treeattn_cuda_run_args *run, treeattn_error *error) {
  ta_cuda_settings settings;
  ta_image_header header;
  int path = 0;
  treeattn_status status = settle(plan, options, &settings, &path, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (run == NULL) {
    return FAIL_ARGUMENT("run is NULL");
  }
  CHECK_SIZE(run, treeattn_cuda_run_args);
  status = ta_cuda_lay_out_image(plan, &settings, NULL, &header, error);
  status = status != TREEATTN_OK ? status : check_buffers(plan, &header, run, error);
  status = status != TREEATTN_OK ? status : check_strides(plan, error);
  if (status != TREEATTN_OK || plan->num_rows == 0) {
    return status;
  }
  ta_cuda_params params;
  fill_params(plan, &settings, run, &params);
  const cudaStream_t stream = (cudaStream_t)run->stream;
  const cudaError_t code =
      params.fast ? ta_cuda_fast_launch(&params, settings.num_multiprocessors, plan->num_rows, path == 90, stream)
                  : ta_cuda_exact_launch(&params, settings.num_multiprocessors, plan->num_rows, stream);
  return code == cudaSuccess ? TREEATTN_OK : fail_cuda("launch", code, error);
}
