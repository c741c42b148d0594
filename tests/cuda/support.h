/* SPDX-License-Identifier: Apache-2.0 */
/* A harness's problem on the GPU: its buffers copied there between guard bands, run, and brought back to [T][H][DV]. */
#ifndef TESTS_CUDA_SUPPORT_H
#define TESTS_CUDA_SUPPORT_H

#include <treeattn/treeattn_cuda.h>

#include "support/check.h"
#include "support/halves.h"
#include "support/harness.h"

/* ---- device memory ---------------------------------------------------------------------------------------- */

/* Device memory between two bands that hold 0xff, which reads as NaN. With TREEATTN_TEST_TIGHT=1 there are no bands, so that a
 * memory checker sees the first byte beyond. */
typedef struct device_buffer {
  unsigned char *data; /* aligned to 256 */
  size_t bytes;
  unsigned char *base;
  size_t base_bytes;
} device_buffer;

/* 1 if this machine has a GPU that the build serves; the reason why not is printed once. */
bool td_available(void);
/* Skips the running test where there is none. */
#define TD_NEED_DEVICE()   \
  do {                     \
    if (!td_available()) { \
      skip();              \
    }                      \
  } while (0)

/* All bytes are 0xff. */
device_buffer td_alloc(size_t bytes);
/* A copy of host memory. */
device_buffer td_alloc_copy(const void *host, size_t bytes);
void td_free(device_buffer *buffer);
void td_fill(const device_buffer *buffer, int byte);
void td_upload(void *device, const void *host, size_t bytes);
void td_download(void *host, const void *device, size_t bytes);
/* Waits; a failed launch or kernel ends the test. */
void td_sync(void);
bool td_intact(const device_buffer *buffer);

/* ---- a problem there --------------------------------------------------------------------------------------- */

typedef struct gpu_options {
  treeattn_mode mode;
  treeattn_dtype q_dtype, out_dtype; /* 0: f32 */
  int32_t num_multiprocessors, block_rows;
  int q_pad, out_pad, lse_pad; /* elements added to the strides of rows and heads */
  bool shared_kv;              /* V is the beginning of K's rows: problem_share_kv */
} gpu_options;

typedef struct gpu_case {
  harness *h;
  gpu_options how;
  treeattn_plan_args args;
  treeattn_plan *plan;
  treeattn_plan_info info;
  treeattn_cuda_options options;
  treeattn_cuda_needs needs;
  treeattn_cuda_run_args run;
  unsigned char *image_host;
  device_buffer q, k, v, sinks, out, lse, image, scratch, status;
} gpu_case;

/* h must have been built and must outlive the case. */
void gpu_build(gpu_case *g, harness *h, const gpu_options *how);
/* Copies Q, K and V of the harness again, after they were changed. */
void gpu_refresh(gpu_case *g);
/* Fills outputs and scratch with 0xff, runs, waits, checks the status word, all bands and all pads. */
void gpu_run(gpu_case *g);
/* out [T][H][DV] as f32, lse [T][H] or NULL */
void gpu_read(const gpu_case *g, float *out, float *lse);
void gpu_free(gpu_case *g);
/* All at once. lse may be NULL. */
void gpu_once(harness *h, const gpu_options *how, float *out, float *lse);

/* A layout that the CUDA back end takes with everything that must not matter chosen at random. */
layout gpu_layout_random(rng *r);
/* Cuts, types' strides and pads, at random; mode and types are left alone. */
void gpu_options_random(gpu_options *how, rng *r);

/* Rounds all queries to a type, so that both back ends are given the same ones. */
void problem_round_queries(problem *p, treeattn_dtype dtype);
/* Makes V the beginning of K's rows, as MLA has it. */
void problem_share_kv(problem *p);
/* The path of a node as a problem of its own: one query, everything before it contiguous. */
problem path_problem(const problem *p, int request, int node);
/* The same on the GPU: out [H][DV], lse [H]. */
void gpu_path_decode(const problem *p, int request, int node, const gpu_options *how, float *out, float *lse);

/* What the output type makes of an f32 value, as f32. */
float round_to(treeattn_dtype dtype, float value);

/* Gives request n a mask of its own, [N][num_slots]; bias, likewise, counts for DENSE_F32 alone and may be NULL. Plans again. */
void harness_set_mask(harness *h, int n, treeattn_mask_kind kind, const uint8_t *sees, const float *bias);

#endif
