/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operator on an NVIDIA GPU: the same plan, device pointers in, no CUDA header needed.
 *
 * A step looks like this:
 *
 *     args.backend = TREEATTN_BACKEND_CUDA;               mode, q_dtype and out_dtype as wanted
 *     treeattn_plan_init(&args, ...)                      checks trees, lengths, masks, on the host
 *     treeattn_cuda_get_needs(plan, &options, &needs)     bytes of the image and of the scratch
 *     treeattn_cuda_write_image(plan, &options, host, n)  the device part of the plan, position independent
 *     copy it to device memory, with whatever copy the caller prefers
 *     treeattn_cuda_attend(plan, &options, &run)          once for each layer: two launches on the caller's stream
 *
 * Runs allocate nothing, wait for nothing and read nothing back, so they can be captured in a graph. Kernels take lengths,
 * trees and page tables from the image alone: between replays the caller may copy another step's image over the old one,
 * as long as it was written from a plan with the same shapes of heads, types and strides, the same options with
 * block_rows given, and fits in the captured buffers. An image that does not fit makes the run write nothing but the
 * status word, see treeattn_cuda_run_args.
 *
 * What is guaranteed is what attention.h guarantees. TREEATTN_MODE_EXACT has the bits of the CPU's scalar reference with
 * every cache type. TREEATTN_MODE_FAST multiplies 16-bit keys and values on tensor cores; a row then has the bits that
 * this mode gives when its path is decoded one token at a time.
 */
#ifndef TREEATTN_CUDA_H
#define TREEATTN_CUDA_H

#include <treeattn/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A cudaStream_t or CUstream; NULL is the legacy default stream. */
typedef void *treeattn_cuda_stream;

/* 1 if this build has the CUDA back end. Without it every other function here returns UNSUPPORTED. */
TREEATTN_API int treeattn_cuda_compiled(void);

/* What a device is. `usable` is 1 if this build has code for it; otherwise `reason` says why not. */
typedef struct treeattn_cuda_device {
  size_t struct_size;
  char name[128];
  int32_t major, minor; /* compute capability */
  int32_t num_multiprocessors;
  int32_t tensor_path; /* 90: wgmma; 80: mma.sync */
  size_t memory_bytes;
  int32_t usable;
  char reason[128];
} treeattn_cuda_device;

/* Number of devices; 0, with OK, on a machine without a driver. */
TREEATTN_API treeattn_status treeattn_cuda_device_count(int32_t *count, treeattn_error *error);
TREEATTN_API treeattn_status treeattn_cuda_get_device(int32_t index, treeattn_cuda_device *device,
                                                      treeattn_error *error);

/* How a run is cut. Never changes a bit of the result. */
typedef struct treeattn_cuda_options {
  size_t struct_size;
  int32_t num_multiprocessors; /* 0: those of the calling thread's current device */
  /* Rows (nodes x heads of a group) that share one pass over the cache: 64 or 128; 0: chosen from the plan. Give it when
   * a captured run is to be replayed with other images. */
  int32_t block_rows;
} treeattn_cuda_options;

/* What a run needs. */
typedef struct treeattn_cuda_needs {
  size_t struct_size;
  size_t image_bytes;   /* device memory, and host memory to write it in; aligned to 16 */
  size_t scratch_bytes; /* device memory; aligned to 256 */
  int64_t num_units;    /* independent pieces of the first launch */
  int64_t num_blocks;   /* thread blocks of the second */
  int32_t block_rows;
  int32_t unit_leaves; /* stretches of 512 positions that one piece folds */
} treeattn_cuda_needs;

#ifdef __cplusplus
#define TREEATTN_CUDA_OPTIONS_INIT treeattn_cuda_init<treeattn_cuda_options>()
#define TREEATTN_CUDA_NEEDS_INIT treeattn_cuda_init<treeattn_cuda_needs>()
#define TREEATTN_CUDA_DEVICE_INIT treeattn_cuda_init<treeattn_cuda_device>()
#define TREEATTN_CUDA_RUN_ARGS_INIT treeattn_cuda_init<treeattn_cuda_run_args>()
#else
#define TREEATTN_CUDA_OPTIONS_INIT \
  { .struct_size = sizeof(treeattn_cuda_options) }
#define TREEATTN_CUDA_NEEDS_INIT \
  { .struct_size = sizeof(treeattn_cuda_needs) }
#define TREEATTN_CUDA_DEVICE_INIT \
  { .struct_size = sizeof(treeattn_cuda_device) }
#define TREEATTN_CUDA_RUN_ARGS_INIT \
  { .struct_size = sizeof(treeattn_cuda_run_args) }
#endif

/* options may be NULL: all defaults. Errors: UNSUPPORTED for head dimensions that are not served, for a plan of another
 * back end, and where no device tells its number of multiprocessors. */
TREEATTN_API treeattn_status treeattn_cuda_get_needs(const treeattn_plan *plan, const treeattn_cuda_options *options,
                                                     treeattn_cuda_needs *needs, treeattn_error *error);

/* Writes the device part of the plan to host memory. Page tables and biases are copied into it. */
TREEATTN_API treeattn_status treeattn_cuda_write_image(const treeattn_plan *plan, const treeattn_cuda_options *options,
                                                       void *image, size_t image_bytes, treeattn_error *error);

/* One layer. All pointers are device memory; sizes are what the caller owns from the pointer on. K and V must be aligned
 * to 16 bytes and their strides to 8 elements; q, out, lse and sinks to their elements. */
typedef struct treeattn_cuda_run_args {
  size_t struct_size;
  const void *image;
  size_t image_bytes;
  const void *q; /* plan's q_dtype */
  size_t q_bytes;
  const void *k;
  size_t k_bytes;
  const void *v; /* may overlap k (MLA) */
  size_t v_bytes;
  const float *sinks; /* [num_heads] or NULL; a NaN makes its head's rows NaN, since nothing is read back */
  size_t sinks_bytes;
  void *out; /* plan's out_dtype */
  size_t out_bytes;
  float *lse; /* or NULL */
  size_t lse_bytes;
  void *scratch; /* its content does not matter before or after */
  size_t scratch_bytes;
  /* One int32_t or NULL: 0 after a run that did its work, otherwise the treeattn_status that made it write nothing: an
   * image of another shape (INVALID_ARGUMENT), or one that is larger than image_bytes, needs more scratch, or has more
   * query rows than q, out and lse hold with the strides of the captured plan (BUFFER_TOO_SMALL). */
  int32_t *status;
  treeattn_cuda_stream stream;
} treeattn_cuda_run_args;

/* Enqueues one layer on the stream of the current device. */
TREEATTN_API treeattn_status treeattn_cuda_attend(const treeattn_plan *plan, const treeattn_cuda_options *options,
                                                  const treeattn_cuda_run_args *run, treeattn_error *error);

#ifdef __cplusplus
}

template <typename T> inline T treeattn_cuda_init() {
  T value = T();
  value.struct_size = sizeof value;
  return value;
}
#endif

#include <treeattn/treeattn_cuda_step.h>
#endif
