/* SPDX-License-Identifier: Apache-2.0 */
/* One decoding step on the GPU: a plan, sets of buffers that together exceed the L2 cache, a graph over them, and its oracle. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "bench.h"
#include "fill.h"
#include "timing.h"

struct Set {
  void *q, *k, *v, *out, *scratch;
};

struct Step {
  Workload shape;
  treeattn_dtype dtype, out_dtype;
  std::vector<int32_t> parents;
  treeattn_plan *plan;
  treeattn_plan_info info;
  treeattn_cuda_options options;
  treeattn_cuda_needs needs;
  void *image;
  int32_t *status;
  std::vector<Set> sets;
};

/* A random tree: each node's parent is any earlier one. */
static std::vector<int32_t> random_tree(int nodes) {
  std::vector<int32_t> parents(nodes, -1);
  uint32_t state = 1;
  for (int i = 1; i < nodes; ++i) {
    state = state * 1664525u + 1013904223u;
    parents[i] = (int32_t)((state >> 8) % (uint32_t)i);
  }
  return parents;
}

static void step_open(Step *step, const Workload &w, treeattn_dtype dtype, treeattn_mode mode, int num_sets,
                      const treeattn_cuda_options &options) {
  step->shape = w;
  step->dtype = dtype;
  step->parents = random_tree(w.nodes);
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = w.nodes;
  request.prefix_len = w.kv_len - w.nodes;
  request.mask_kind = TREEATTN_MASK_PARENTS;
  request.mask = step->parents.data();
  request.mask_bytes = step->parents.size() * sizeof(int32_t);
  treeattn_plan_args args = TREEATTN_PLAN_ARGS_INIT;
  args.num_requests = 1;
  args.requests = &request;
  args.request_bytes = sizeof request;
  args.num_heads = w.heads;
  args.num_kv_heads = w.kv_heads;
  args.head_dim = w.dim;
  args.q_dtype = args.kv_dtype = dtype;
  /* Rounded to bf16 an output would be off by 1.7e-3 whatever was computed. */
  args.out_dtype = step->out_dtype = dtype == TREEATTN_BF16 ? TREEATTN_F32 : dtype;
  args.scale = (float)(1.0 / std::sqrt((double)w.dim));
  args.kv_capacity = w.kv_len;
  args.mode = mode;
  args.backend = TREEATTN_BACKEND_CUDA;
  TREEATTN(treeattn_plan_create(&args, &step->plan, &error));
  step->info = TREEATTN_PLAN_INFO_INIT;
  TREEATTN(treeattn_plan_get_info(step->plan, &step->info, &error));
  step->options = options;
  step->needs = TREEATTN_CUDA_NEEDS_INIT;
  TREEATTN(treeattn_cuda_get_needs(step->plan, &step->options, &step->needs, &error));
  std::vector<double> image((step->needs.image_bytes + 31) / 8); /* operator new aligns it to 16 */
  TREEATTN(treeattn_cuda_write_image(step->plan, &step->options, image.data(), step->needs.image_bytes, &error));
  step->image = device_alloc(step->needs.image_bytes);
  CUDA(cudaMemcpy(step->image, image.data(), step->needs.image_bytes, cudaMemcpyHostToDevice));
  step->status = (int32_t *)device_alloc(sizeof(int32_t));
  const bool bfloat = dtype == TREEATTN_BF16;
  for (int n = 0; n < num_sets; ++n) {
    Set set = {device_alloc(step->info.q_bytes), device_alloc(step->info.k_bytes), device_alloc(step->info.v_bytes),
               device_alloc(step->info.out_bytes), device_alloc(step->needs.scratch_bytes)};
    fill_normal(set.q, (int64_t)(step->info.q_bytes / 2), bfloat, 3u * (uint32_t)n);
    fill_normal(set.k, (int64_t)(step->info.k_bytes / 2), bfloat, 3u * (uint32_t)n + 1u);
    fill_normal(set.v, (int64_t)(step->info.v_bytes / 2), bfloat, 3u * (uint32_t)n + 2u);
    step->sets.push_back(set);
  }
  CUDA(cudaDeviceSynchronize());
}

static void step_close(Step *step) {
  for (const Set &set : step->sets) {
    CUDA(cudaFree(set.q));
    CUDA(cudaFree(set.k));
    CUDA(cudaFree(set.v));
    CUDA(cudaFree(set.out));
    CUDA(cudaFree(set.scratch));
  }
  CUDA(cudaFree(step->image));
  CUDA(cudaFree(step->status));
  treeattn_plan_destroy(step->plan);
}

static void run_set(const Step &step, const Set &set, cudaStream_t stream) {
  treeattn_cuda_run_args run = TREEATTN_CUDA_RUN_ARGS_INIT;
  run.image = step.image;
  run.image_bytes = step.needs.image_bytes;
  run.q = set.q;
  run.q_bytes = step.info.q_bytes;
  run.k = set.k;
  run.k_bytes = step.info.k_bytes;
  run.v = set.v;
  run.v_bytes = step.info.v_bytes;
  run.out = set.out;
  run.out_bytes = step.info.out_bytes;
  run.scratch = set.scratch;
  run.scratch_bytes = step.needs.scratch_bytes;
  run.status = step.status;
  run.stream = stream;
  TREEATTN(treeattn_cuda_attend(step.plan, &step.options, &run, &error));
}

/* Seconds of one layer: the median over replays of a graph of `launches` layers, which go round the sets. */
static double time_layers(const Step &step, int launches, int repeat) {
  const double seconds = time_graph(launches, repeat, [&](int n, cudaStream_t stream) {
    run_set(step, step.sets[(size_t)n % step.sets.size()], stream);
  });
  int32_t status = -1;
  CUDA(cudaMemcpy(&status, step.status, sizeof status, cudaMemcpyDeviceToHost));
  if (status != 0) {
    DIE("the status word is %d", (int)status);
  }
  return seconds;
}

/* ---- the oracle -------------------------------------------------------------------------------------------- */

static double element(treeattn_dtype dtype, const uint16_t *data, size_t i) {
  if (dtype == TREEATTN_F16) {
    __half_raw raw;
    raw.x = data[i];
    return (double)__half2float(__half(raw));
  }
  __nv_bfloat16_raw raw;
  raw.x = data[i];
  return (double)__bfloat162float(__nv_bfloat16(raw));
}

static std::vector<uint16_t> download(const void *data, size_t offset, size_t count) {
  std::vector<uint16_t> host(count);
  CUDA(cudaMemcpy(host.data(), (const uint16_t *)data + offset, count * 2, cudaMemcpyDeviceToHost));
  return host;
}

static double result(const Step &step, size_t offset) {
  if (step.out_dtype != TREEATTN_F32) {
    return element(step.out_dtype, download(step.sets[0].out, offset, 1).data(), 0);
  }
  float value = 0;
  CUDA(cudaMemcpy(&value, (const float *)step.sets[0].out + offset, sizeof value, cudaMemcpyDeviceToHost));
  return (double)value;
}

/* ||out - ref|| / ||ref|| in float64 over a few rows of the first set. */
static double sampled_error(const Step &step) {
  const Workload &w = step.shape;
  const size_t dim = (size_t)w.dim, length = (size_t)w.kv_len, prefix = (size_t)(w.kv_len - w.nodes);
  const int nodes[3] = {0, w.nodes / 2, w.nodes - 1};
  const int heads[3] = {0, w.heads / 2, w.heads - 1};
  double difference = 0, norm = 0;
  for (int n = 0; n < 3; ++n) {
    const int node = nodes[n], head = heads[n], g = head / (w.heads / w.kv_heads);
    const std::vector<uint16_t> q = download(step.sets[0].q, ((size_t)head * (size_t)w.nodes + (size_t)node) * dim, dim);
    const std::vector<uint16_t> k = download(step.sets[0].k, (size_t)g * length * dim, length * dim);
    const std::vector<uint16_t> v = download(step.sets[0].v, (size_t)g * length * dim, length * dim);
    const size_t out = ((size_t)node * (size_t)w.heads + (size_t)head) * dim;
    std::vector<char> seen(length, 0);
    std::fill(seen.begin(), seen.begin() + (std::ptrdiff_t)prefix, 1);
    for (int j = node; j >= 0; j = step.parents[(size_t)j]) {
      seen[prefix + (size_t)j] = 1;
    }
    std::vector<double> score(length, 0), sum(dim, 0);
    double largest = -HUGE_VAL, denominator = 0;
    for (size_t s = 0; s < length; ++s) {
      for (size_t d = 0; seen[s] && d < dim; ++d) {
        score[s] += element(step.dtype, q.data(), d) * element(step.dtype, k.data(), s * dim + d);
      }
      score[s] *= (double)(float)(1.0 / std::sqrt((double)w.dim));
      largest = seen[s] && score[s] > largest ? score[s] : largest;
    }
    for (size_t s = 0; s < length; ++s) {
      if (seen[s]) {
        const double weight = std::exp(score[s] - largest);
        denominator += weight;
        for (size_t d = 0; d < dim; ++d) {
          sum[d] += weight * element(step.dtype, v.data(), s * dim + d);
        }
      }
    }
    for (size_t d = 0; d < dim; ++d) {
      const double delta = result(step, out + d) - sum[d] / denominator;
      difference += delta * delta;
      norm += sum[d] / denominator * (sum[d] / denominator);
    }
  }
  return std::isfinite(difference) ? std::sqrt(difference / norm) : HUGE_VAL;
}

/* ---- measurements ------------------------------------------------------------------------------------------ */

Result measure(const Workload &w, treeattn_dtype dtype, treeattn_mode mode, int repeat, const treeattn_cuda_options &options) {
  /* Sets of inputs that together are four times the largest L2 there is. */
  const double bytes = 4.0 * w.kv_heads * w.kv_len * w.dim;
  const int num_sets = std::max(4, (int)std::ceil(256e6 / bytes));
  Step step;
  step_open(&step, w, dtype, mode, num_sets, options);
  Result result;
  result.us = 1e6 * time_layers(step, num_sets, repeat);
  result.error = sampled_error(step);
  result.scratch_bytes = step.needs.scratch_bytes;
  result.image_bytes = step.needs.image_bytes;
  result.units = step.needs.num_units;
  result.blocks = step.needs.num_blocks;
  result.block_rows = step.needs.block_rows;
  result.unit_leaves = step.needs.unit_leaves;
  step_close(&step);
  return result;
}

double measure_launch(treeattn_mode mode, int repeat) {
  const Workload tiny = {"tiny", 32, 8, 128, 1, 64};
  const treeattn_cuda_options options = TREEATTN_CUDA_OPTIONS_INIT;
  Step step;
  step_open(&step, tiny, TREEATTN_F16, mode, 1, options);
  const double seconds = time_layers(step, 100, repeat);
  step_close(&step);
  return seconds;
}
