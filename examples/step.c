/* SPDX-License-Identifier: Apache-2.0 */
/* The whole step of speculative decoding through the public API: draft a tree, attend it, verify, compact, go on. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <treeattn/treeattn.h>

enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, DIM = 32, WIDTH = HEADS * DIM, CAPACITY = 128, MAX_NODES = 32 };
enum { PROMPT = 20, GENERATED = 40, VOCABULARY = 97, SUCCESSORS = 4 };

/* Every call of the library ends here: a message is the library's, what to do about it the caller's. */
#define CALL(function, ...)                                        \
  do {                                                             \
    treeattn_error error;                                          \
    if (function(__VA_ARGS__, &error) != TREEATTN_OK) {            \
      (void)fprintf(stderr, "%s: %s\n", #function, error.message); \
      exit(EXIT_FAILURE);                                          \
    }                                                              \
  } while (0)

/* ---- a toy model: what an engine would bring ---------------------------------------------------------------- */

typedef struct cache {
  float k[LAYERS][KV_HEADS][CAPACITY][DIM];
  float v[LAYERS][KV_HEADS][CAPACITY][DIM];
  int64_t length; /* tokens in it */
} cache;

/* A number in [-1, 1) that stands for a trained weight. */
static float weight(uint32_t kind, uint32_t row, uint32_t column) {
  uint32_t x = (kind * 2654435761u) ^ (row * 2246822519u) ^ (column * 3266489917u);
  x = (x ^ (x >> 15)) * 2246822519u;
  x = (x ^ (x >> 13)) * 3266489917u;
  return (float)((x ^ (x >> 16)) >> 8) / 8388608.0f - 1.0f;
}

/* The tokens that may follow, the likeliest first, as a drafter sees it; the model itself goes by its last layer. */
static int32_t successor(int32_t token, int rank) {
  return (token * 7 + 3 + 11 * rank) % VOCABULARY;
}

static int32_t choose(const float *hidden, int32_t token) {
  static const float favour[SUCCESSORS] = {1.5f, 1.2f, 1.0f, 0.5f};
  int best = 0;
  float best_score = 0.0f;
  for (int rank = 0; rank < SUCCESSORS; rank++) {
    float score = favour[rank];
    for (int c = 0; c < WIDTH; c++) {
      score += hidden[c] * weight(9, (uint32_t)(token * SUCCESSORS + rank), (uint32_t)c) / 4.0f;
    }
    if (rank == 0 || score > best_score) {
      best = rank;
      best_score = score;
    }
  }
  return successor(token, best);
}

/*
 * Runs the nodes through all layers: their K and V go into the slots behind the cache's tokens, and next[i] is the
 * token that the model wants after node i. Plain decoding is the same call with one node.
 */
static void forward(cache *kv, int64_t num_nodes, const int32_t *parents, const int32_t *tokens, int32_t *next,
                    float hidden[][WIDTH]) {
  /* One plan for the step; every layer runs it. */
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = num_nodes;
  request.prefix_len = kv->length;
  request.mask_kind = TREEATTN_MASK_PARENTS;
  request.mask = parents;
  request.mask_bytes = (size_t)num_nodes * sizeof *parents;
  treeattn_plan_args args = TREEATTN_PLAN_ARGS_INIT;
  args.num_requests = 1;
  args.requests = &request;
  args.request_bytes = sizeof request;
  args.num_heads = HEADS;
  args.num_kv_heads = KV_HEADS;
  args.head_dim = DIM;
  args.kv_dtype = TREEATTN_F32;
  args.scale = 0.17677669f; /* 1 / sqrt(DIM) */
  args.kv_capacity = CAPACITY;
  treeattn_plan *plan = NULL;
  CALL(treeattn_plan_create, &args, &plan);
  treeattn_plan_info info = TREEATTN_PLAN_INFO_INIT;
  CALL(treeattn_plan_get_info, plan, &info);
  void *scratch = malloc(info.scratch_bytes + 1);
  float *q = malloc(info.q_bytes);     /* [HEADS][num_nodes][DIM] */
  float *out = malloc(info.out_bytes); /* [num_nodes][HEADS][DIM] */
  int32_t positions[MAX_NODES];
  CALL(treeattn_plan_get_positions, plan, positions, MAX_NODES);
  if (scratch == NULL || q == NULL || out == NULL) {
    exit(EXIT_FAILURE);
  }

  for (int64_t i = 0; i < num_nodes; i++) {
    for (uint32_t c = 0; c < WIDTH; c++) {
      hidden[i][c] = weight(0, (uint32_t)tokens[i], c) + weight(1, (uint32_t)positions[i], c);
    }
  }
  for (uint32_t layer = 0; layer < LAYERS; layer++) {
    for (int64_t i = 0; i < num_nodes; i++) {
      for (uint32_t d = 0; d < DIM; d++) {
        for (int h = 0; h < HEADS; h++) {
          q[(h * num_nodes + i) * DIM + d] = 4.0f * weight(2, layer, d) * hidden[i][h * DIM + (int)d];
        }
        for (int g = 0; g < KV_HEADS; g++) {
          kv->k[layer][g][kv->length + i][d] = weight(3, layer, d) * hidden[i][g * DIM + (int)d];
          kv->v[layer][g][kv->length + i][d] = hidden[i][WIDTH - 1 - g * DIM - (int)d];
        }
      }
    }
    treeattn_run_args run = TREEATTN_RUN_ARGS_INIT;
    run.q = q;
    run.q_bytes = info.q_bytes;
    run.k = kv->k[layer];
    run.k_bytes = sizeof kv->k[layer];
    run.v = kv->v[layer];
    run.v_bytes = sizeof kv->v[layer];
    run.out = out;
    run.out_bytes = info.out_bytes;
    run.scratch = scratch;
    run.scratch_bytes = info.scratch_bytes;
    CALL(treeattn_attend, plan, &run);
    for (int64_t i = 0; i < num_nodes; i++) {
      for (int c = 0; c < WIDTH; c++) {
        hidden[i][c] += out[i * WIDTH + c];
      }
    }
  }
  for (int64_t i = 0; i < num_nodes; i++) {
    next[i] = choose(hidden[i], tokens[i]);
  }
  treeattn_plan_destroy(plan);
  free(scratch);
  free(q);
  free(out);
}

/* ---- one step ----------------------------------------------------------------------------------------------- */

/* After verification: path[i] goes from slot length + path[i] to slot length + i, in K and V of every layer. */
static void compact(cache *kv, int64_t num_nodes, const int32_t *path, int64_t num_path) {
  treeattn_commit_request request = TREEATTN_COMMIT_REQUEST_INIT;
  request.prefix_len = kv->length;
  request.num_nodes = num_nodes;
  request.path = path;
  request.path_len = num_path;
  treeattn_commit_args args = TREEATTN_COMMIT_ARGS_INIT;
  args.num_requests = 1;
  args.requests = &request;
  args.kv_capacity = CAPACITY;
  treeattn_commit_plan *plan = NULL;
  CALL(treeattn_commit_plan_create, &args, &plan);

  treeattn_commit_tensor tensors[2 * LAYERS];
  for (int t = 0; t < 2 * LAYERS; t++) {
    tensors[t] = (treeattn_commit_tensor)TREEATTN_COMMIT_TENSOR_INIT;
    tensors[t].data = t % 2 == 0 ? kv->k[t / 2] : kv->v[t / 2];
    tensors[t].bytes = sizeof kv->k[0];
    tensors[t].row_bytes = DIM * sizeof(float);
    tensors[t].num_heads = KV_HEADS;
  }
  treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
  run.num_tensors = 2 * LAYERS;
  run.tensors = tensors;
  CALL(treeattn_commit_apply, plan, &run);
  treeattn_commit_plan_destroy(plan);
  kv->length += num_path;
}

/* Drafts below `last`, the last committed token, which is node 0. Writes the emitted tokens and returns their number.
 * last_hidden gets the state that the last of them was chosen from. */
static int64_t speculate(cache *kv, int32_t last, int32_t *emitted, float *last_hidden) {
  /* 1. A tree: three guesses for the next token, two for each that follows. */
  static const int32_t branching[] = {3, 2, 2};
  int32_t parents[MAX_NODES], tokens[MAX_NODES], next[MAX_NODES], path[MAX_NODES];
  static float hidden[MAX_NODES][WIDTH];
  int64_t num_nodes = 0;
  CALL(treeattn_tree_make_branching, branching, 3, parents, MAX_NODES, &num_nodes);
  tokens[0] = last;
  int rank = 0;
  for (int64_t i = 1; i < num_nodes; i++) {
    rank = parents[i] == parents[i - 1] ? rank + 1 : 0;
    tokens[i] = successor(tokens[parents[i]], rank);
  }

  /* 2. All nodes through the model in one go. */
  forward(kv, num_nodes, parents, tokens, next, hidden);

  /* 3. The path that the model itself would have taken, and the token after it. */
  int64_t num_path = 0;
  CALL(treeattn_verify_greedy, num_nodes, parents, tokens, next, path, emitted, &num_path);
  memcpy(last_hidden, hidden[path[num_path - 1]], sizeof hidden[0]);

  char nodes[64] = "";
  for (int64_t i = 0, used = 0; i < num_path; i++) {
    used += snprintf(nodes + used, sizeof nodes - (size_t)used, " %d", (int)path[i]);
  }
  (void)printf("%3lld tokens, %lld nodes: accepted path%-12s emitted", (long long)kv->length, (long long)num_nodes,
               nodes);
  for (int64_t i = 0; i < num_path; i++) {
    (void)printf(" %d", (int)emitted[i]);
  }
  (void)printf("\n");

  /* 4. Its rows to the end of the tokens. What stays behind them is never read again. */
  compact(kv, num_nodes, path, num_path);
  return num_path;
}

/* ---- both ways ---------------------------------------------------------------------------------------------- */

static int64_t decode(bool speculating, cache *kv, int32_t *generated, float *last_hidden) {
  static float hidden[MAX_NODES][WIDTH];
  static const int32_t no_parent[] = {-1};
  int32_t last = 5;
  int64_t num_passes = 0;
  kv->length = 0;
  for (int n = 0; n < PROMPT; n++) {
    forward(kv, 1, no_parent, &last, &last, hidden);
    kv->length++;
  }
  for (int64_t num_generated = 0; num_generated < GENERATED; num_passes++) {
    int32_t emitted[MAX_NODES];
    int64_t num_emitted = 1;
    if (speculating && num_generated + 4 <= GENERATED) { /* not beyond the end: the tree has 4 levels */
      num_emitted = speculate(kv, last, emitted, last_hidden);
    } else {
      forward(kv, 1, no_parent, &last, emitted, hidden);
      memcpy(last_hidden, hidden[0], sizeof hidden[0]);
      kv->length++;
    }
    memcpy(&generated[num_generated], emitted, (size_t)num_emitted * sizeof *emitted);
    num_generated += num_emitted;
    last = emitted[num_emitted - 1];
  }
  return num_passes;
}

static bool same_cache(const cache *a, const cache *b) {
  bool same = a->length == b->length;
  for (int layer = 0; layer < LAYERS; layer++) {
    for (int g = 0; g < KV_HEADS; g++) {
      const size_t bytes = (size_t)a->length * sizeof a->k[0][0][0];
      same = same && memcmp(a->k[layer][g], b->k[layer][g], bytes) == 0 &&
             memcmp(a->v[layer][g], b->v[layer][g], bytes) == 0;
    }
  }
  return same;
}

int main(void) {
  static cache speculated_cache, plain_cache;
  int32_t speculated[GENERATED], plain[GENERATED];
  float speculated_hidden[WIDTH], plain_hidden[WIDTH];
  const int64_t num_steps = decode(true, &speculated_cache, speculated, speculated_hidden);
  const int64_t num_plain_steps = decode(false, &plain_cache, plain, plain_hidden);
  const bool tokens = memcmp(speculated, plain, sizeof plain) == 0;
  const bool bits = memcmp(speculated_hidden, plain_hidden, sizeof plain_hidden) == 0;
  const bool rows = same_cache(&speculated_cache, &plain_cache);
  (void)printf("%d tokens in %lld passes of the model instead of %lld\n", GENERATED, (long long)num_steps,
               (long long)num_plain_steps);
  (void)printf("as in plain decoding: tokens %s, bits of the last state %s, bytes of the cache %s\n",
               tokens ? "yes" : "NO", bits ? "yes" : "NO", rows ? "yes" : "NO");
  return tokens && bits && rows && num_steps < num_plain_steps ? EXIT_SUCCESS : EXIT_FAILURE;
}
