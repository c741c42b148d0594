/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the measurement share: the workloads, their results and the end of everything that fails. */
#ifndef BENCH_CUDA_BENCH_H
#define BENCH_CUDA_BENCH_H

#include <treeattn/treeattn_cuda.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define DIE(...)                       \
  do {                                 \
    std::fprintf(stderr, __VA_ARGS__); \
    std::fputc('\n', stderr);          \
    std::exit(1);                      \
  } while (0)

#define CUDA(call)                                                                \
  do {                                                                            \
    const cudaError_t code_ = (call);                                             \
    if (code_ != cudaSuccess) {                                                   \
      DIE("%s: CUDA error %d: %s", #call, (int)code_, cudaGetErrorString(code_)); \
    }                                                                             \
  } while (0)

/* The call must use `error`. */
#define TREEATTN(call)                        \
  do {                                        \
    treeattn_error error = {TREEATTN_OK, ""}; \
    if ((call) != TREEATTN_OK) {              \
      DIE("%s: %s", #call, error.message);    \
    }                                         \
  } while (0)

struct Workload {
  const char *name;
  int heads, kv_heads, dim, nodes, kv_len;
};

struct Result {
  double us, error;
  size_t scratch_bytes, image_bytes;
  int64_t units, blocks;
  int block_rows, unit_leaves;
};

struct StepTime {
  const char *name, *what;
  double us, gb_per_s; /* 0: memory is not what it waits for */
};

struct Step; /* step.cu: one plan with several sets of buffers */

/* Times one workload; repeat replays, each of as many layers as there are sets. */
Result measure(const Workload &workload, treeattn_dtype dtype, treeattn_mode mode, int repeat,
               const treeattn_cuda_options &options);
/* Seconds from one launch to the next at the smallest size. */
double measure_launch(treeattn_mode mode, int repeat);
/* The rest of a step: masks, verification, compaction. */
std::vector<StepTime> measure_steps(int repeat);

#endif
