/* SPDX-License-Identifier: Apache-2.0 */
/* What a decoding step does besides attending: masks from parents, verification of 64 nodes, compaction of 32 layers. */
#include <cuda_runtime.h>

#include <cmath>

#include "bench.h"
#include "fill.h"
#include "timing.h"

namespace {

enum { NODES = 64, DEPTH = 8, VOCAB = 131072, PREFIX = 8192, LAYERS = 32, KV_HEADS = 8, DIM = 128, SETS = 8 };

template <typename T>
T *upload(const std::vector<T> &host) {
  T *device = (T *)device_alloc(host.size() * sizeof(T));
  CUDA(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return device;
}

void expect_ok(const treeattn_cuda_outcome *device, const char *what) {
  treeattn_cuda_outcome outcome;
  CUDA(cudaMemcpy(&outcome, device, sizeof outcome, cudaMemcpyDeviceToHost));
  if (outcome.status != TREEATTN_OK) {
    DIE("%s: status %d, field %d", what, (int)outcome.status, (int)outcome.field);
  }
}

/* Nodes 0 to 7 are the path that will be accepted; the others hang below it anywhere. */
std::vector<int32_t> tree(void) {
  std::vector<int32_t> parents(NODES);
  for (int i = 0; i < NODES; ++i) {
    parents[(size_t)i] = i < DEPTH ? i - 1 : (i * 5) % (DEPTH - 1);
  }
  return parents;
}

treeattn_cuda_batch one_request(const int32_t *offsets) {
  treeattn_cuda_batch batch = {};
  batch.num_requests = 1;
  batch.num_nodes = batch.max_nodes = NODES;
  batch.offsets = offsets;
  return batch;
}

StepTime measure_expand(int repeat, const treeattn_cuda_batch &batch, const int32_t *parents, const int32_t *prefix,
                        treeattn_cuda_outcome *outcome) {
  const size_t words = (PREFIX + NODES) / 8;
  treeattn_cuda_expand_args args = TREEATTN_CUDA_EXPAND_ARGS_INIT;
  args.batch = batch;
  args.parents = parents;
  args.prefix_lens = prefix;
  args.depths = (int32_t *)device_alloc(NODES * sizeof(int32_t));
  args.positions = (int32_t *)device_alloc(NODES * sizeof(int32_t));
  args.prefix_columns = 1;
  args.mask_bits.data = device_alloc(NODES * words);
  args.mask_bits.bytes = NODES * words;
  args.mask_bits.row_stride = (int64_t)words;
  args.outcomes = outcome;
  const double seconds = time_graph(20, repeat, [&](int, cudaStream_t stream) {
    args.stream = stream;
    TREEATTN(treeattn_cuda_expand(&args, &error));
  });
  expect_ok(outcome, "expand");
  CUDA(cudaFree(args.depths));
  CUDA(cudaFree(args.positions));
  CUDA(cudaFree(args.mask_bits.data));
  return {"expand", "64 nodes: depths, positions, mask bits with 8192 columns of prefix", 1e6 * seconds, 0};
}

struct Verification {
  treeattn_cuda_verify_args args;
  void *logits[SETS], *draft_probs;
};

void open_verification(Verification *v, const treeattn_cuda_batch &batch, const int32_t *parents,
                       treeattn_cuda_outcome *outcome) {
  const size_t elements = (size_t)NODES * VOCAB;
  const uint16_t peak = 0x4d00; /* 20 in f16: far above the normal logits, so the walk takes this token */
  std::vector<int32_t> tokens(NODES);
  for (int i = 0; i < NODES; ++i) {
    tokens[(size_t)i] = 1000 + 17 * i;
  }
  for (int n = 0; n < SETS; ++n) {
    v->logits[n] = device_alloc(elements * 2);
    fill_normal(v->logits[n], (int64_t)elements, false, 100u + (uint32_t)n);
    for (int i = 0; i < DEPTH; ++i) {
      const size_t token = i + 1 < DEPTH ? (size_t)tokens[(size_t)i + 1] : VOCAB - 1;
      CUDA(cudaMemcpy((uint16_t *)v->logits[n] + (size_t)i * VOCAB + token, &peak, sizeof peak, cudaMemcpyHostToDevice));
    }
  }
  v->draft_probs = upload(std::vector<float>(elements, 1.0f / VOCAB));
  v->args = TREEATTN_CUDA_VERIFY_ARGS_INIT;
  v->args.batch = batch;
  v->args.vocab_size = VOCAB;
  v->args.parents = parents;
  v->args.tokens = upload(tokens);
  v->args.logits.bytes = elements * 2;
  v->args.logits.dtype = TREEATTN_F16;
  v->args.logits.data = v->logits[0];
  v->args.uniforms = upload(std::vector<float>(NODES, 0.5f));
  v->args.path = (int32_t *)device_alloc(NODES * sizeof(int32_t));
  v->args.path_tokens = (int32_t *)device_alloc(NODES * sizeof(int32_t));
  v->args.num_path = (int32_t *)device_alloc(sizeof(int32_t));
  v->args.outcomes = outcome;
}

void close_verification(Verification *v) {
  for (void *logits : v->logits) {
    CUDA(cudaFree(logits));
  }
  CUDA(cudaFree(v->draft_probs));
  CUDA(cudaFree((void *)v->args.tokens));
  CUDA(cudaFree((void *)v->args.uniforms));
  CUDA(cudaFree(v->args.path));
  CUDA(cudaFree(v->args.path_tokens));
  CUDA(cudaFree(v->args.num_path));
}

StepTime measure_verify(int repeat, Verification *v, treeattn_verify_method method, const char *name) {
  treeattn_cuda_verify_args args = v->args;
  const bool drafted = method == TREEATTN_VERIFY_RESIDUAL || method == TREEATTN_VERIFY_WITHOUT_REPLACEMENT;
  args.settings.method = (int32_t)method;
  if (drafted) {
    args.draft_probs.data = v->draft_probs;
    args.draft_probs.bytes = (size_t)NODES * VOCAB * sizeof(float);
    args.draft_probs.dtype = TREEATTN_F32;
  }
  TREEATTN(treeattn_cuda_verify_scratch_bytes(&args, &args.scratch_bytes, &error));
  args.scratch = device_alloc(args.scratch_bytes);
  const double seconds = time_graph(SETS, repeat, [&](int n, cudaStream_t stream) {
    args.logits.data = v->logits[n];
    args.stream = stream;
    TREEATTN(treeattn_cuda_verify(&args, &error));
  });
  expect_ok(args.outcomes, name);
  int32_t num_path = 0;
  CUDA(cudaMemcpy(&num_path, args.num_path, sizeof num_path, cudaMemcpyDeviceToHost));
  if (num_path != DEPTH) {
    DIE("%s: %d nodes were accepted instead of %d", name, (int)num_path, (int)DEPTH);
  }
  CUDA(cudaFree(args.scratch));
  const double bytes = (double)DEPTH * VOCAB * (drafted ? 6.0 : 2.0);
  return {name, "64 nodes, 131072 tokens, f16 logits, 8 rows on the path", 1e6 * seconds, bytes / seconds / 1e9};
}

StepTime measure_commit(int repeat, const treeattn_cuda_batch &batch, const int32_t *prefix,
                        treeattn_cuda_outcome *outcome) {
  const int64_t capacity = PREFIX + NODES;
  const size_t row = DIM * 2, bytes = (size_t)(KV_HEADS * capacity) * row;
  std::vector<int32_t> path(NODES, -1);
  for (int k = 0; k < DEPTH; ++k) {
    path[(size_t)k] = k == 0 ? 0 : 8 * k; /* all but the first move */
  }
  treeattn_cuda_commit_group groups[2] = {};
  for (treeattn_cuda_commit_group &group : groups) {
    group.base = device_alloc(bytes * LAYERS);
    CUDA(cudaMemset(group.base, 0, bytes * LAYERS));
    group.stride_tensor_bytes = (int64_t)bytes;
    group.num_tensors = LAYERS;
    group.bytes = bytes;
    group.row_bytes = row;
    group.num_heads = KV_HEADS;
  }
  treeattn_cuda_commit_args args = TREEATTN_CUDA_COMMIT_ARGS_INIT;
  args.batch = batch;
  args.path = upload(path);
  args.num_path = upload(std::vector<int32_t>(1, DEPTH));
  args.prefix_lens = prefix;
  args.kv_capacity = capacity;
  args.groups = groups;
  args.num_groups = 2;
  args.outcomes = outcome;
  const double seconds = time_graph(20, repeat, [&](int, cudaStream_t stream) {
    args.stream = stream;
    TREEATTN(treeattn_cuda_commit(&args, &error));
  });
  expect_ok(outcome, "commit");
  CUDA(cudaFree((void *)args.path));
  CUDA(cudaFree((void *)args.num_path));
  CUDA(cudaFree(groups[0].base));
  CUDA(cudaFree(groups[1].base));
  const double moved = 2.0 * LAYERS * 2 * KV_HEADS * (DEPTH - 1) * (double)row;
  return {"commit", "8 of 64 nodes, K and V of 32 layers, 8 heads of 128 f16", 1e6 * seconds, moved / seconds / 1e9};
}

}  // namespace

std::vector<StepTime> measure_steps(int repeat) {
  const int32_t *offsets = upload(std::vector<int32_t>{0, NODES});
  const int32_t *parents = upload(tree());
  const int32_t *prefix = upload(std::vector<int32_t>(1, PREFIX));
  treeattn_cuda_outcome *outcome = (treeattn_cuda_outcome *)device_alloc(sizeof *outcome);
  const treeattn_cuda_batch batch = one_request(offsets);
  std::vector<StepTime> times;
  times.push_back(measure_expand(repeat, batch, parents, prefix, outcome));
  Verification verification = {};
  open_verification(&verification, batch, parents, outcome);
  times.push_back(measure_verify(repeat, &verification, TREEATTN_VERIFY_GREEDY, "verify greedy"));
  times.push_back(measure_verify(repeat, &verification, TREEATTN_VERIFY_TARGET_ONLY, "verify target-only"));
  times.push_back(measure_verify(repeat, &verification, TREEATTN_VERIFY_WITHOUT_REPLACEMENT, "verify without-replacement"));
  close_verification(&verification);
  times.push_back(measure_commit(repeat, batch, prefix, outcome));
  CUDA(cudaFree((void *)offsets));
  CUDA(cudaFree((void *)parents));
  CUDA(cudaFree((void *)prefix));
  CUDA(cudaFree(outcome));
  return times;
}
