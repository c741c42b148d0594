/* SPDX-License-Identifier: Apache-2.0 */
/* Speculate, verify, compact, go on: no later bit tells that there was speculation. */
#include <stdio.h>
#include <string.h>

#include <treeattn/treeattn.h>

#include "support/check.h"
#include "support/threads.h"
#include "support/toy_model.h"
#include "support/trees.h"

enum { PLAIN_STEPS = 50, MAX_STEPS = 400 };

/* A request decoded one token at a time by the scalar reference in a cache of its own, as far as anyone has asked. */
typedef struct plain {
  toy_cache cache;
  int64_t prefix_len, num_steps;
  int32_t *tokens;     /* [prefix_len + num_steps + 1]: what stands at each position */
  toy_output *outputs; /* [num_steps]: of the token at prefix_len + step */
} plain;

static void plain_new(plain *p, const toy_model *model, int64_t prefix_len, rng *r) {
  memset(p, 0, sizeof *p);
  p->prefix_len = prefix_len;
  p->tokens = calloc((size_t)prefix_len + MAX_STEPS + 1, sizeof *p->tokens);
  p->outputs = calloc(MAX_STEPS, sizeof *p->outputs);
  CHECK(p->tokens != NULL && p->outputs != NULL, "out of memory");
  for (int64_t n = 0; n <= prefix_len; n++) {
    p->tokens[n] = rng_below(r, model->vocab_size);
  }
  toy_cache_new(&p->cache, model, 1, prefix_len + MAX_STEPS, 0, r);
  toy_prefill(&p->cache, 0, p->tokens, prefix_len);
}

static void plain_free(plain *p) {
  toy_cache_free(&p->cache);
  free(p->tokens);
  free(p->outputs);
}

/* Decodes until the output at `position` is there. */
static const toy_output *plain_at(plain *p, int64_t position) {
  static const int32_t no_parent[] = {-1};
  static const toy_way way = {TREEATTN_ISA_SCALAR, 1, {NULL, NULL}};
  while (p->prefix_len + p->num_steps <= position) {
    CHECK(p->num_steps < MAX_STEPS, "a trial longer than %d steps", MAX_STEPS);
    toy_output output[1][TOY_MAX_NODES];
    const int64_t here = p->prefix_len + p->num_steps;
    const toy_request request = {0, here, 1, no_parent, &p->tokens[here], false};
    toy_run(&p->cache, &way, &request, 1, output);
    p->outputs[p->num_steps++] = output[0][0];
    p->tokens[here + 1] = output[0][0].next_token;
  }
  return &p->outputs[position - p->prefix_len];
}

/* A draft tree below the last committed token. Drafts are right as often as a good drafter's, and the right child of
 * a node can have any rank among its siblings, so that accepted paths have gaps. */
static int draft(plain *p, int64_t prefix_len, int max_nodes, int vocab_size, rng *r, int32_t *parents,
                 int32_t *tokens) {
  int32_t depths[TOY_MAX_NODES];
  bool on_path[TOY_MAX_NODES];
  const int num_nodes = rng_range(r, 1, max_nodes);
  tree_make((tree_shape)rng_below(r, NUM_TREE_SHAPES), num_nodes, r, parents);
  tree_depths(parents, num_nodes, depths);
  const int wrong_one_in = rng_range(r, 2, 9);
  for (int i = 0; i < num_nodes; i++) {
    (void)plain_at(p, prefix_len + depths[i]);
    const int32_t right = p->tokens[prefix_len + depths[i]];
    const bool wrong = i > 0 && rng_chance(r, wrong_one_in);
    tokens[i] = wrong ? rng_below(r, vocab_size) : right;
    /* A second child with the right token would never be visited: make it a wrong one. */
    on_path[i] = i == 0 || (parents[i] >= 0 && on_path[parents[i]] && tokens[i] == right);
    for (int other = 0; other < i && on_path[i] && i > 0; other++) {
      if (parents[other] == parents[i] && on_path[other]) {
        tokens[i] = (right + 1) % vocab_size;
        on_path[i] = false;
      }
    }
  }
  return num_nodes;
}

typedef enum commit_way { COMMIT_ALL, COMMIT_BY_LAYER, COMMIT_BY_TASK, COMMIT_BY_NAME, NUM_COMMIT_WAYS } commit_way;

static void commit_names(const toy_cache *cache, const toy_request *toy, const int32_t *path, int64_t path_len) {
  int32_t remapped[TOY_MAX_NODES];
  int32_t scratch[TOY_MAX_NODES];
  int32_t *slots = &cache->page_tables[toy->request][toy->prefix_len];
  CHECK_OK(treeattn_commit_remap(toy->num_nodes, path, path_len, slots, remapped, scratch, &error));
  memcpy(slots, remapped, (size_t)toy->num_nodes * sizeof *slots);
}

static void commit_rows(const toy_cache *cache, const toy_request *toys, int num_requests,
                        int32_t paths[][TOY_MAX_NODES], const int64_t *path_lens, commit_way how,
                        treeattn_executor executor) {
  const toy_model *model = cache->model;
  treeattn_commit_request requests[TOY_MAX_REQUESTS];
  for (int n = 0; n < num_requests; n++) {
    requests[n] = (treeattn_commit_request){toys[n].prefix_len,
                                            toys[n].num_nodes,
                                            paths[n],
                                            path_lens[n],
                                            cache->cache_index[toys[n].request],
                                            cache->page_tables[toys[n].request],
                                            cache->page_table_len};
  }
  treeattn_commit_args args = TREEATTN_COMMIT_ARGS_INIT;
  args.num_requests = num_requests;
  args.requests = requests;
  args.page_size = cache->page_size;
  args.kv_capacity = cache->capacity;
  args.num_sequences = cache->num_blocks;
  args.num_pages = cache->num_blocks;
  treeattn_commit_plan *plan = NULL;
  CHECK_OK(treeattn_commit_plan_create(&args, &plan, &error));
  treeattn_commit_tensor tensors[2 * TOY_MAX_LAYERS];
  for (int t = 0; t < 2 * model->num_layers; t++) {
    const guarded *buffer = t % 2 == 0 ? &cache->k[t / 2] : &cache->v[t / 2];
    tensors[t] = (treeattn_commit_tensor){
        buffer->data, buffer->bytes, toy_row_bytes(model, t % 2 == 1), model->num_kv_heads, 0, 0, 0};
  }
  treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
  run.executor = executor;
  for (int t = 0; t < 2 * model->num_layers; t += (int)run.num_tensors) {
    run.num_tensors = how == COMMIT_BY_LAYER ? 2 : 2 * model->num_layers;
    run.tensors = &tensors[t];
    if (how != COMMIT_BY_TASK) {
      CHECK_OK(treeattn_commit_apply(plan, &run, &error));
      continue;
    }
    int64_t num_tasks = 0;
    CHECK_OK(treeattn_commit_check(plan, &run, &num_tasks, &error));
    for (int64_t task = 0; task < num_tasks; task++) {
      treeattn_commit_task(plan, &run, task);
    }
  }
  treeattn_commit_plan_destroy(plan);
}

typedef struct trial {
  toy_model model;
  toy_cache cache;
  toy_way way;
  commit_way commit;
  bool by_level;
  int num_requests, max_nodes;
  plain plains[TOY_MAX_REQUESTS];
  int64_t prefix_len[TOY_MAX_REQUESTS]; /* tokens in the cache now */
  int64_t num_accepted, num_gaps;
} trial;

/* One step of the batch. max_nodes 1 is plain decoding; a request may sit a step out. */
static void step(trial *t, int max_nodes, rng *r) {
  int32_t parents[TOY_MAX_REQUESTS][TOY_MAX_NODES];
  int32_t tokens[TOY_MAX_REQUESTS][TOY_MAX_NODES];
  int32_t paths[TOY_MAX_REQUESTS][TOY_MAX_NODES];
  int64_t path_lens[TOY_MAX_REQUESTS];
  toy_request toys[TOY_MAX_REQUESTS];
  static toy_output outputs[TOY_MAX_REQUESTS][TOY_MAX_NODES];
  for (int n = 0; n < t->num_requests; n++) {
    const bool idle = t->num_requests > 1 && rng_chance(r, 6);
    const int num_nodes =
        idle ? 0 : draft(&t->plains[n], t->prefix_len[n], max_nodes, t->model.vocab_size, r, parents[n], tokens[n]);
    toys[n] = (toy_request){n, t->prefix_len[n], num_nodes, parents[n], tokens[n], t->by_level};
  }
  toy_run(&t->cache, &t->way, toys, t->num_requests, outputs);
  for (int n = 0; n < t->num_requests; n++) {
    int32_t next[TOY_MAX_NODES];
    int32_t emitted[TOY_MAX_NODES];
    path_lens[n] = 0;
    for (int i = 0; i < toys[n].num_nodes; i++) {
      next[i] = outputs[n][i].next_token;
    }
    CHECK_OK(treeattn_verify_greedy(toys[n].num_nodes, parents[n], tokens[n], next, paths[n], emitted, &path_lens[n],
                                    &error));
    for (int64_t i = 0; i < path_lens[n]; i++) {
      const int64_t position = t->prefix_len[n] + i;
      toy_check_same(&t->model, "an accepted node", position, &outputs[n][paths[n][i]],
                     plain_at(&t->plains[n], position));
      CHECK(emitted[i] == t->plains[n].tokens[position + 1], "token %d instead of %d at %lld", (int)emitted[i],
            (int)t->plains[n].tokens[position + 1], (long long)position + 1);
      t->num_gaps += paths[n][i] == i ? 0 : 1;
    }
    t->num_accepted += path_lens[n] > 1 ? path_lens[n] - 1 : 0;
  }
  if (t->commit == COMMIT_BY_NAME && t->cache.page_size == 1) {
    for (int n = 0; n < t->num_requests; n++) {
      commit_names(&t->cache, &toys[n], paths[n], path_lens[n]);
    }
  } else {
    commit_rows(&t->cache, toys, t->num_requests, paths, path_lens, t->commit, t->way.executor);
  }
  for (int n = 0; n < t->num_requests; n++) {
    t->prefix_len[n] += path_lens[n];
  }
}

/* The rows of the cache themselves: those of the tokens that plain decoding wrote. */
static void check_cache(const trial *t) {
  for (int n = 0; n < t->num_requests; n++) {
    for (int layer = 0; layer < t->model.num_layers; layer++) {
      for (int row = 0; row < 2 * t->model.num_kv_heads; row++) {
        const bool is_v = row % 2 == 1;
        for (int64_t slot = 0; slot < t->prefix_len[n]; slot++) {
          CHECK(memcmp(toy_cache_row(&t->cache, layer, is_v, n, row / 2, slot),
                       toy_cache_row(&t->plains[n].cache, layer, is_v, 0, row / 2, slot),
                       toy_row_bytes(&t->model, is_v)) == 0,
                "request %d, layer %d, %s head %d: slot %lld differs", n, layer, is_v ? "V" : "K", row / 2,
                (long long)slot);
        }
      }
    }
  }
}

static void run_trial(int index, rng *r, int64_t *num_accepted, int64_t *num_gaps) {
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  static const treeattn_isa isas[] = {TREEATTN_ISA_AUTO, TREEATTN_ISA_AVX2, TREEATTN_ISA_AVX512, TREEATTN_ISA_NEON,
                                      TREEATTN_ISA_SCALAR};
  static const int page_sizes[] = {0, 1, 7, 16, 0, 64};
  static const int leaf_edges[] = {505, 1017, 0, 20, 509, 1022};
  static const float sinks[] = {0.5f, -1.0f, 2.0f, -0.25f, 0.0f, 1.0f};
  thread_team team = {2};
  trial t;
  memset(&t, 0, sizeof t);
  t.model.num_layers = rng_range(r, 1, TOY_MAX_LAYERS);
  t.model.num_kv_heads = rng_range(r, 1, 2);
  t.model.num_heads = t.model.num_kv_heads * rng_range(r, 1, 3);
  t.model.head_dim = 8 * rng_range(r, 1, 4);
  t.model.head_dim_v = rng_chance(r, 3) ? 16 : (t.model.head_dim <= 16 ? t.model.head_dim : 8);
  t.model.vocab_size = 50;
  t.model.kv_dtype = dtypes[index % 3];
  t.model.scale = 0.4f;
  t.model.softcap = index % 4 == 1 ? 5.0f : 0.0f;
  t.model.window = index % 5 == 2 ? rng_range(r, 1, 40) : 0;
  t.model.sinks = index % 6 == 3 ? sinks : NULL;
  t.model.seed = rng_next(r);
  t.way.isa = isas[index % 5];
  if (!treeattn_isa_available(t.way.isa)) {
    t.way.isa = TREEATTN_ISA_AUTO;
  }
  t.way.num_workers = 1;
  if (index % 7 == 4) {
    t.way.num_workers = 2;
    t.way.executor = thread_team_executor(&team);
  }
  t.commit = (commit_way)(index % NUM_COMMIT_WAYS);
  t.by_level = index % 3 == 2;
  t.num_requests = rng_range(r, 1, index % 2 == 0 ? 1 : 3);
  t.max_nodes = rng_range(r, 2, TOY_MAX_NODES);
  const int64_t page_size = t.commit == COMMIT_BY_NAME && index % 8 == 3 ? 1 : page_sizes[index % 6];
  toy_cache_new(&t.cache, &t.model, t.num_requests, 1040 + MAX_STEPS, page_size, r);
  for (int n = 0; n < t.num_requests; n++) {
    t.prefix_len[n] = leaf_edges[(index + n) % 6] + rng_below(r, 12);
    plain_new(&t.plains[n], &t.model, t.prefix_len[n], r);
    toy_prefill(&t.cache, n, t.plains[n].tokens, t.prefix_len[n]);
  }
  const int num_speculated = rng_range(r, 1, 6);
  for (int n = 0; n < num_speculated; n++) {
    step(&t, t.max_nodes, r);
  }
  check_cache(&t);
  for (int n = 0; n < PLAIN_STEPS; n++) {
    step(&t, 1, r);
  }
  check_cache(&t);
  *num_accepted += t.num_accepted;
  *num_gaps += t.num_gaps;
  for (int n = 0; n < t.num_requests; n++) {
    plain_free(&t.plains[n]);
  }
  toy_cache_free(&t.cache);
}

static void test_speculation_leaves_no_trace(void **state) {
  (void)state;
  const int count = trial_count(60, 15);
  int64_t num_accepted = 0;
  int64_t num_gaps = 0;
  for (int index = 0; index < count; index++) {
    rng r;
    const int trial_index = trial_begin(&r, 0x726f756e, index);
    run_trial(trial_index, &r, &num_accepted, &num_gaps);
  }
  print_message("%lld drafts accepted in %d trials, %lld of them moved; instruction sets:", (long long)num_accepted,
                count, (long long)num_gaps);
  for (int isa = TREEATTN_ISA_SCALAR; isa <= TREEATTN_ISA_NEON; isa++) {
    print_message("%s%s", treeattn_isa_available((treeattn_isa)isa) ? " " : " without ",
                  treeattn_isa_name((treeattn_isa)isa));
  }
  print_message("\n");
  /* A property about accepted drafts is worth nothing if there are none. */
  CHECK(count == 1 || (num_accepted > 2 * count && num_gaps > count), "%lld drafts accepted, %lld moved",
        (long long)num_accepted, (long long)num_gaps);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_speculation_leaves_no_trace),
  };
  return cmocka_run_group_tests_name("round trip", tests, NULL, NULL);
}
