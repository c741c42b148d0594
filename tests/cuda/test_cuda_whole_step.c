/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: a step captured in a graph does not follow what device memory holds at its replay, or a request whose
 * verification failed moves rows. */
#include "step.h"

#include <cuda_runtime_api.h>
#include <math.h>

#define CUDA_OK(call)                                                                                \
  do {                                                                                               \
    const cudaError_t code = (call);                                                                 \
    CHECK(code == cudaSuccess, "%s: CUDA error %d: %s", #call, (int)code, cudaGetErrorString(code)); \
  } while (0)

enum {
  REQUESTS = 4,
  NODES = 24,
  ALL_NODES = REQUESTS * NODES,
  VOCAB = 700,
  CAPACITY = 80,
  HEADS = 2,
  LAYERS = 3,
  ROW = 48
};

/* What the three calls read and what the first two write, as one step of the CPU has it. */
typedef struct step_data {
  int32_t offsets[REQUESTS + 1], prefix_lens[REQUESTS], parents[ALL_NODES], tokens[ALL_NODES];
  float logits[ALL_NODES * VOCAB], uniforms[ALL_NODES];
  treeattn_cuda_verify_settings settings[REQUESTS];
  unsigned char cache[2 * LAYERS][REQUESTS * HEADS * CAPACITY * ROW]; /* K and V of each layer, one after another */
} step_data;

typedef struct step_results {
  int32_t positions[ALL_NODES], path[ALL_NODES], path_tokens[ALL_NODES], num_path[REQUESTS], next_prefix_lens[REQUESTS];
  uint8_t bits[ALL_NODES * 4];
} step_results;

static void make_step(step_data *s, rng *r) {
  s->offsets[0] = 0;
  for (int n = 0; n < REQUESTS; n++) {
    const int nodes = rng_range(r, 1, NODES);
    const int32_t begin = s->offsets[n];
    s->offsets[n + 1] = begin + nodes;
    s->prefix_lens[n] = rng_range(r, 0, CAPACITY - NODES);
    tree_make((tree_shape)rng_below(r, NUM_TREE_SHAPES), nodes, r, s->parents + begin);
    s->settings[n] = (treeattn_cuda_verify_settings){
        rng_chance(r, 2) ? TREEATTN_VERIFY_TARGET_ONLY : TREEATTN_VERIFY_GREEDY, 1.0f, 0.0f, 0.0f};
  }
  for (int i = 0; i < ALL_NODES; i++) {
    s->tokens[i] = rng_below(r, 3);
  }
  CHECK_OK(treeattn_uniforms_fill(rng_next(r), 0, 0, 0, ALL_NODES, s->uniforms, &error));
  for (int n = 0; n < ALL_NODES * VOCAB; n++) {
    s->logits[n] = rng_signed(r) * 2.0f + (n % VOCAB < 3 ? 6.0f : 0.0f);
  }
  for (size_t n = 0; n < sizeof s->cache; n++) {
    ((unsigned char *)s->cache)[n] = (unsigned char)rng_next(r);
  }
}

/* The step by the CPU's functions; the cache changes in place. Request `bad` has a NaN that its walk meets. */
static void step_here(step_data *s, step_results *want, int bad) {
  memset(want, 0xff, sizeof *want);
  for (int n = 0; n < REQUESTS; n++) {
    const int32_t begin = s->offsets[n];
    const int64_t nodes = s->offsets[n + 1] - begin;
    CHECK_OK(treeattn_tree_get_positions(nodes, s->parents + begin, s->prefix_lens[n], want->positions + begin, nodes,
                                         &error));
    CHECK_OK(treeattn_tree_get_mask_bits(nodes, s->parents + begin, 0, want->bits + 4 * begin, 4, (size_t)(4 * nodes),
                                         &error));
    treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
    request.method = (treeattn_verify_method)s->settings[n].method;
    request.num_nodes = nodes;
    request.parents = s->parents + begin;
    request.tokens = s->tokens + begin;
    request.logits.data = s->logits + begin * VOCAB;
    request.logits.bytes = (size_t)(nodes * VOCAB) * sizeof(float);
    request.uniforms = s->uniforms + begin;
    request.num_uniforms = nodes;
    treeattn_verify_result result = TREEATTN_VERIFY_RESULT_INIT;
    result.path = want->path + begin;
    result.tokens = want->path_tokens + begin;
    result.capacity = nodes;
    treeattn_verify_args args = TREEATTN_VERIFY_ARGS_INIT;
    args.vocab_size = VOCAB;
    args.num_requests = 1;
    args.requests = &request;
    args.results = &result;
    CHECK_OK(treeattn_verify_scratch_bytes(&args, &args.scratch_bytes, &error));
    args.scratch = step_calloc(args.scratch_bytes, 1);
    treeattn_error failure;
    const treeattn_status status = treeattn_verify(&args, &failure);
    free(args.scratch);
    CHECK((status == TREEATTN_OK) == (n != bad), "request %d: status %d", n, (int)status);
    if (n == bad) {
      continue;
    }
    want->num_path[n] = (int32_t)result.num_path;
    want->next_prefix_lens[n] = s->prefix_lens[n] + want->num_path[n];
    treeattn_commit_request move = TREEATTN_COMMIT_REQUEST_INIT;
    move.prefix_len = s->prefix_lens[n];
    move.num_nodes = nodes;
    move.path = want->path + begin;
    move.path_len = result.num_path;
    move.cache_index = n;
    treeattn_commit_args commit = TREEATTN_COMMIT_ARGS_INIT;
    commit.num_requests = 1;
    commit.requests = &move;
    commit.kv_capacity = CAPACITY;
    commit.num_sequences = REQUESTS;
    treeattn_commit_plan *plan = NULL;
    CHECK_OK(treeattn_commit_plan_create(&commit, &plan, &error));
    treeattn_commit_tensor tensors[2 * LAYERS];
    for (int t = 0; t < 2 * LAYERS; t++) {
      tensors[t] = (treeattn_commit_tensor){s->cache[t], sizeof s->cache[t], ROW, HEADS, 0, 0, 0};
    }
    treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
    run.num_tensors = 2 * LAYERS;
    run.tensors = tensors;
    CHECK_OK(treeattn_commit_apply(plan, &run, &error));
    treeattn_commit_plan_destroy(plan);
  }
}

/* Device memory for all of it, and the calls' arguments. */
typedef struct step_there {
  device_buffer data, results, scratch, outcomes[3];
  treeattn_cuda_commit_group group;
  treeattn_cuda_expand_args expand;
  treeattn_cuda_verify_args verify;
  treeattn_cuda_commit_args commit;
} step_there;

#define THERE(type, buffer, structure, member) ((type *)(void *)((buffer).data + offsetof(structure, member)))

static void there_new(step_there *g, cudaStream_t stream) {
  memset(g, 0, sizeof *g);
  g->data = td_alloc(sizeof(step_data));
  g->results = td_alloc(sizeof(step_results));
  for (int n = 0; n < 3; n++) {
    g->outcomes[n] = td_alloc(REQUESTS * sizeof(treeattn_cuda_outcome));
  }
  const treeattn_cuda_batch batch = {REQUESTS, ALL_NODES, NODES, THERE(int32_t, g->data, step_data, offsets)};
  g->expand = (treeattn_cuda_expand_args)TREEATTN_CUDA_EXPAND_ARGS_INIT;
  g->expand.batch = batch;
  g->expand.parents = THERE(int32_t, g->data, step_data, parents);
  g->expand.prefix_lens = THERE(int32_t, g->data, step_data, prefix_lens);
  g->expand.positions = THERE(int32_t, g->results, step_results, positions);
  g->expand.mask_bits = (treeattn_cuda_mask){THERE(uint8_t, g->results, step_results, bits), ALL_NODES * 4, 4};
  g->expand.outcomes = (treeattn_cuda_outcome *)(void *)g->outcomes[0].data;
  g->expand.stream = stream;
  g->verify = (treeattn_cuda_verify_args)TREEATTN_CUDA_VERIFY_ARGS_INIT;
  g->verify.batch = batch;
  g->verify.vocab_size = VOCAB;
  g->verify.parents = g->expand.parents;
  g->verify.tokens = THERE(int32_t, g->data, step_data, tokens);
  g->verify.request_settings = THERE(treeattn_cuda_verify_settings, g->data, step_data, settings);
  g->verify.logits.data = THERE(float, g->data, step_data, logits);
  g->verify.logits.bytes = ALL_NODES * VOCAB * sizeof(float);
  g->verify.uniforms = THERE(float, g->data, step_data, uniforms);
  g->verify.path = THERE(int32_t, g->results, step_results, path);
  g->verify.path_tokens = THERE(int32_t, g->results, step_results, path_tokens);
  g->verify.num_path = THERE(int32_t, g->results, step_results, num_path);
  g->verify.outcomes = (treeattn_cuda_outcome *)(void *)g->outcomes[1].data;
  g->verify.stream = stream;
  CHECK_OK(treeattn_cuda_verify_scratch_bytes(&g->verify, &g->verify.scratch_bytes, &error));
  g->scratch = td_alloc(g->verify.scratch_bytes);
  g->verify.scratch = g->scratch.data;
  g->group = (treeattn_cuda_commit_group){.base = THERE(unsigned char, g->data, step_data, cache),
                                          .stride_tensor_bytes = REQUESTS * HEADS * CAPACITY * ROW,
                                          .num_tensors = 2 * LAYERS,
                                          .bytes = REQUESTS * HEADS * CAPACITY * ROW,
                                          .row_bytes = ROW,
                                          .num_heads = HEADS};
  g->commit = (treeattn_cuda_commit_args)TREEATTN_CUDA_COMMIT_ARGS_INIT;
  g->commit.batch = batch;
  g->commit.path = g->verify.path;
  g->commit.num_path = g->verify.num_path;
  g->commit.verified = g->verify.outcomes;
  g->commit.prefix_lens = g->expand.prefix_lens;
  g->commit.kv_capacity = CAPACITY;
  g->commit.groups = &g->group;
  g->commit.num_groups = 1;
  g->commit.next_prefix_lens = THERE(int32_t, g->results, step_results, next_prefix_lens);
  g->commit.outcomes = (treeattn_cuda_outcome *)(void *)g->outcomes[2].data;
  g->commit.stream = stream;
}

static void there_free(step_there *g) {
  td_free(&g->data);
  td_free(&g->results);
  td_free(&g->scratch);
  for (int n = 0; n < 3; n++) {
    td_free(&g->outcomes[n]);
  }
}

static void check_step(const step_there *g, const step_data *s, const step_results *want, int bad) {
  treeattn_cuda_outcome outcomes[3][REQUESTS];
  for (int call = 0; call < 3; call++) {
    td_download(outcomes[call], g->outcomes[call].data, sizeof outcomes[call]);
    for (int n = 0; n < REQUESTS; n++) {
      if (call > 0 && n == bad) {
        step_check_outcome(&outcomes[call][n], n, TREEATTN_ERROR_INVALID_VALUE, TREEATTN_CUDA_FIELD_LOGITS, 0, 5);
      } else {
        step_check_outcome(&outcomes[call][n], n, TREEATTN_OK, TREEATTN_CUDA_FIELD_NONE, -1, -1);
      }
    }
  }
  step_check_bytes("results", &g->results, want);
  step_check_bytes("the inputs and the cache", &g->data, s);
  CHECK(td_intact(&g->scratch), "bytes around the scratch were written");
}

static void test_graph_replays(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  step_data *s = step_calloc(1, sizeof *s);
  step_results *want = step_calloc(1, sizeof *want);
  step_there g;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t step;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  there_new(&g, stream);
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK_OK(treeattn_cuda_expand(&g.expand, &error));
  CHECK_OK(treeattn_cuda_verify(&g.verify, &error));
  CHECK_OK(treeattn_cuda_commit(&g.commit, &error));
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  CUDA_OK(cudaGraphInstantiate(&step, graph, 0));
  for (int n = 0; n < trial_count(12, 3); n++) {
    rng r;
    (void)trial_begin(&r, 331, n);
    make_step(s, &r);
    const int bad = n % 3 == 1 ? rng_below(&r, REQUESTS) : -1;
    if (bad >= 0) {
      s->logits[(size_t)s->offsets[bad] * VOCAB + 5] = NAN;
    }
    td_upload(g.data.data, s, sizeof *s);
    td_fill(&g.results, 0xff);
    for (int call = 0; call < 3; call++) {
      td_fill(&g.outcomes[call], 0xff);
    }
    td_sync();
    CUDA_OK(cudaGraphLaunch(step, stream));
    td_sync();
    step_here(s, want, bad);
    check_step(&g, s, want, bad);
  }
  CUDA_OK(cudaGraphExecDestroy(step));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaStreamDestroy(stream));
  there_free(&g);
  free(s);
  free(want);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_graph_replays)};
  return cmocka_run_group_tests_name("cuda_whole_step", tests, NULL, NULL);
}
