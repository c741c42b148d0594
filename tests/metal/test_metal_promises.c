/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: on the GPU, hidden bytes reach a row, a path decoded alone differs, or a run leaves traces for the next; also on a GPU that
 * flushes subnormal numbers to zero, where results cannot be compared with the CPU's. */
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "metal_harness.h"
#include "support/halves.h"

static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
static const float poisons[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 65504.0f};

static void run_metal(harness *h, float *out, float *lse, rng *r) {
  metal_buffers m;
  metal_buffers_new(&m, h, r);
  CHECK_OK(treeattn_metal_attend(metal_of_tests(), h->plan, &m.run, &error));
  metal_buffers_read(&m, h, out, lse);
  metal_buffers_free(&m);
}

/* For each row in turn, every slot that it does not see is poisoned; the row must not change. */
static void test_unseen_slots(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(12, 3); n++) {
    rng r;
    int index = trial_begin(&r, 171, n);
    int prefix = rng_chance(&r, 3) ? 505 + rng_below(&r, 12) : rng_below(&r, 70);
    problem p = problem_new(2 * rng_range(&r, 1, 3), 2, PICK(&r, ((const int[]){8, 32, 80})), 0, dtypes[index % 3]);
    p.window = rng_chance(&r, 2) ? rng_range(&r, 1, 40) : 0;
    (void)problem_add_tree(&p, prefix, rng_range(&r, 2, 12), (tree_shape)rng_below(&r, NUM_TREE_SHAPES), 4.0f, &r);
    const request_data *request = &p.requests[0];
    thread_team team;
    rng order;
    layout how = layout_random(&r, &team, &order);
    how.no_lse = false;
    harness h;
    harness_build(&h, &p, &how);
    size_t row = (size_t)p.num_heads * (size_t)p.head_dim_v, rows = (size_t)request->num_nodes;
    float *clean = calloc(rows * row, sizeof *clean), *dirty = calloc(rows * row, sizeof *dirty);
    float *clean_lse = calloc(rows * (size_t)p.num_heads, sizeof *clean),
          *dirty_lse = calloc(rows * (size_t)p.num_heads, sizeof *clean);
    uint8_t *sees = calloc(rows * (size_t)request->num_slots, 1);
    tree_visibility(request->parents, request->num_nodes, prefix, p.window, sees);
    run_metal(&h, clean, clean_lse, &r);
    for (int i = 0; i < request->num_nodes; i++) {
      float poison = poisons[(size_t)(i + index) % (sizeof poisons / sizeof poisons[0])];
      for (int slot = 0; slot < request->num_slots; slot++) {
        if (sees[i * request->num_slots + slot] == 0) {
          harness_poison_slot(&h, 0, slot, poison);
        }
      }
      run_metal(&h, dirty, dirty_lse, &r);
      char what[128];
      (void)snprintf(what, sizeof what, "node %d, unseen slots hold %g", i, (double)poison);
      CHECK_SAME_BITS(what, dirty + (size_t)i * row, clean + (size_t)i * row, p.num_heads, p.head_dim_v);
      CHECK_SAME_BITS(what, dirty_lse + i * p.num_heads, clean_lse + i * p.num_heads, 1, p.num_heads);
      for (int slot = 0; slot < request->num_slots; slot++) {
        harness_restore_slot(&h, 0, slot);
      }
    }
    harness_free(&h);
    free(clean);
    free(dirty);
    free(clean_lse);
    free(dirty_lse);
    free(sees);
    problem_free(&p);
  }
}

/* The problem of one node alone: its path is the prefix, the node the only row. */
static problem path_problem(const problem *p, const request_data *data, int node, rng *r) {
  problem alone = problem_new(p->num_heads, p->num_kv_heads, p->head_dim, p->head_dim_v, p->kv_dtype);
  alone.scale = p->scale;
  alone.softcap = p->softcap;
  alone.window = p->window;
  int length = data->prefix_len + data->depths[node] + 1;
  const int32_t root = -1;
  request_data *one = problem_add(&alone, length - 1, 1, &root, 1.0f, r);
  for (int h = 0; h < p->num_heads; h++) {
    memcpy(one->q + h * p->head_dim, data->q + (h * data->num_nodes + node) * p->head_dim,
           (size_t)p->head_dim * sizeof(float));
  }
  int64_t slot_of_last = data->prefix_len + node;
  for (int position = length - 1; position >= 0; position--) {
    int64_t slot = position < data->prefix_len ? position : slot_of_last;
    for (int g = 0; g < p->num_kv_heads; g++) {
      for (int is_v = 0; is_v < 2; is_v++) {
        size_t bytes = (size_t)(is_v != 0 ? p->head_dim_v : p->head_dim) * element_bytes(p->kv_dtype);
        const unsigned char *from = is_v != 0 ? data->v : data->k;
        unsigned char *to = is_v != 0 ? one->v : one->k;
        memcpy(to + (size_t)(g * length + position) * bytes, from + (size_t)(g * data->num_slots + slot) * bytes,
               bytes);
      }
    }
    if (position > data->prefix_len) {
      slot_of_last = data->prefix_len + data->parents[slot - data->prefix_len];
    }
  }
  return alone;
}

static void set_flushing(bool flush) {
#if defined(__x86_64__) && !defined(__APPLE__)
  _mm_setcsr((_mm_getcsr() & ~0x8040u) | (flush ? 0x8040u : 0u));
#else
  (void)flush;
#endif
}

/* Two layouts of the tree and every path alone: the same bits. With subnormal numbers in K and V, and on x86 also with
 * subnormal numbers flushed, as Metal allows. */
static void test_paths_alone(void **state) {
  (void)state;
  bool flushing_shows = false;
  for (int n = 0; n < trial_count(16, 4); n++) {
    rng r;
    int index = trial_begin(&r, 172, n);
    problem p = problem_new(4, 2, 32, 24, dtypes[index % 3]);
    request_data *data = problem_add_tree(&p, PICK(&r, ((const int[]){0, 3, 62, 508, 515})), rng_range(&r, 2, 9),
                                          (tree_shape)rng_below(&r, NUM_TREE_SHAPES), 6.0f, &r);
    p.softcap = index % 4 == 0 ? 5.0f : 0.0f;
    for (int64_t e = 0; e < (int64_t)p.num_kv_heads * data->num_slots * p.head_dim_v; e++) {
      element_store(p.kv_dtype, data->v, e,
                    element_load(p.kv_dtype, data->v, e) * (p.kv_dtype == TREEATTN_F16 ? 3e-6f : 2e-38f));
    }
    size_t row = (size_t)p.num_heads * (size_t)p.head_dim_v, rows = (size_t)data->num_nodes;
    float *one = calloc(rows * row, sizeof *one), *other = calloc(rows * row, sizeof *other),
          *alone = calloc(row, sizeof *alone), *unflushed = calloc(rows * row, sizeof *unflushed);
    for (int flush = 0; flush < 2; flush++) {
      thread_team team;
      rng order;
      layout first = layout_random(&r, &team, &order), second = layout_random(&r, &team, &order);
      layout plain = LAYOUT_INIT;
      set_flushing(flush != 0);
      metal_once(&p, &first, one, NULL, &r);
      metal_once(&p, &second, other, NULL, &r);
      set_flushing(false);
      CHECK_SAME_BITS(flush != 0 ? "two layouts, flushing" : "two layouts", other, one, (int64_t)rows * p.num_heads,
                      p.head_dim_v);
      if (flush == 0) {
        memcpy(unflushed, one, rows * row * sizeof *one);
      } else {
        flushing_shows = flushing_shows || memcmp(unflushed, one, rows * row * sizeof *one) != 0;
      }
      for (int i = 0; i < data->num_nodes; i++) {
        problem path = path_problem(&p, data, i, &r);
        set_flushing(flush != 0);
        metal_once(&path, &plain, alone, NULL, &r);
        set_flushing(false);
        CHECK_SAME_BITS(flush != 0 ? "a path alone, flushing" : "a path alone", one + (size_t)i * row, alone,
                        p.num_heads, p.head_dim_v);
        problem_free(&path);
      }
    }
    free(one);
    free(other);
    free(alone);
    free(unflushed);
    problem_free(&p);
  }
#if defined(__x86_64__) && !defined(__APPLE__)
  CHECK(flushing_shows || getenv("TREEATTN_TEST_SEED") != NULL, "flushing changed nothing: it was not on");
#else
  (void)flushing_shows;
#endif
}

/* Again and again from one plan, over what the run before left in scratch and output. */
static void test_runs_leave_no_trace(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 173, 0);
  problem p = problem_new(6, 2, 40, 0, TREEATTN_F16);
  (void)problem_add_tree(&p, 700, 7, TREE_RANDOM, 4.0f, &r);
  (void)problem_add_tree(&p, 20, 5, TREE_BINARY, 4.0f, &r);
  layout how = LAYOUT_INIT;
  how.num_workers = 64;
  harness h;
  metal_buffers m;
  harness_build(&h, &p, &how);
  metal_buffers_new(&m, &h, &r);
  size_t count = 12 * 6 * 40;
  float *first = calloc(count, sizeof *first), *again = calloc(count, sizeof *again);
  for (int n = 0; n < 3; n++) {
    CHECK_OK(treeattn_metal_attend(metal_of_tests(), h.plan, &m.run, &error));
    metal_buffers_read(&m, &h, n == 0 ? first : again, NULL);
    if (n > 0) {
      CHECK_SAME_BITS("another run", again, first, 12 * 6, 40);
    }
  }
  metal_buffers_free(&m);
  harness_free(&h);
  free(first);
  free(again);
  problem_free(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_unseen_slots),
      cmocka_unit_test(test_paths_alone),
      cmocka_unit_test(test_runs_leave_no_trace),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  metal_close();
  return failed;
}
