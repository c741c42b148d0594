/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: the promises hold on random numbers but not on what a model computes: large scores, few dominant keys, uneven channels. */
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/capture.h"
#include "support/harness.h"
#include "support/oracle.h"

static int num_layers_seen;

static float *new_floats(int64_t count) {
  return calloc((size_t)count + 1, sizeof(float));
}

/* Every node, every head, every instruction set: the bits of decoding the path alone with the scalar reference. */
static void nodes_equal_their_paths(const problem *p) {
  const request_data *data = &p->requests[0];
  int64_t row = (int64_t)p->num_heads * p->head_dim_v;
  float *paths = new_floats(row * data->num_nodes), *path_lse = new_floats((int64_t)p->num_heads * data->num_nodes);
  float *out = new_floats(row * data->num_nodes), *lse = new_floats((int64_t)p->num_heads * data->num_nodes);
  for (int i = 0; i < data->num_nodes; i++) {
    path_decode(p, 0, i, TREEATTN_ISA_SCALAR, paths + i * row, path_lse + i * p->num_heads);
  }
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int n = 0; n < num_isas; n++) {
    for (int kind = TREEATTN_MASK_PARENTS; kind <= TREEATTN_MASK_BITS; kind++) {
      rng r = {(uint64_t)(n * 10 + kind)}, order;
      thread_team team;
      layout how = layout_random(&r, &team, &order);
      how.isa = isas[n];
      how.encoding = (treeattn_mask_kind)kind;
      harness_once(p, &how, out, lse);
      CHECK_SAME_BITS(treeattn_isa_name(isas[n]), out, paths, (int64_t)data->num_nodes * p->num_heads, p->head_dim_v);
      CHECK_SAME_BITS(treeattn_isa_name(isas[n]), how.no_lse ? path_lse : lse, path_lse, data->num_nodes, p->num_heads);
    }
  }
  free(paths);
  free(path_lse);
  free(out);
  free(lse);
}

/* For each node, NaN in everything that it does not see: nothing changes. */
static void unseen_slots_do_not_matter(const problem *p) {
  const request_data *data = &p->requests[0];
  int64_t row = (int64_t)p->num_heads * p->head_dim_v;
  float *clean = new_floats(row * data->num_nodes), *dirty = new_floats(row * data->num_nodes);
  uint8_t *sees = calloc((size_t)data->num_nodes * (size_t)data->num_slots, 1);
  tree_visibility(data->parents, data->num_nodes, data->prefix_len, 0, sees);
  layout how = LAYOUT_INIT;
  harness h;
  harness_build(&h, p, &how);
  harness_run(&h);
  harness_read(&h, clean, NULL);
  for (int i = 0; i < data->num_nodes; i++) {
    for (int slot = 0; slot < data->num_slots; slot++) {
      if (sees[i * data->num_slots + slot] == 0) {
        harness_poison_slot(&h, 0, slot, NAN);
      }
    }
    harness_run(&h);
    harness_read(&h, dirty, NULL);
    CHECK_SAME_BITS("NaN in what a node does not see", dirty + i * row, clean + i * row, p->num_heads, p->head_dim_v);
    for (int slot = data->prefix_len; slot < data->num_slots; slot++) {
      harness_restore_slot(&h, 0, slot);
    }
  }
  harness_free(&h);
  free(clean);
  free(dirty);
  free(sees);
}

static void results_are_accurate(const problem *p, const char *name, int layer) {
  const request_data *data = &p->requests[0];
  int64_t rows = (int64_t)data->num_nodes * p->num_heads;
  float *out = new_floats(rows * p->head_dim_v), *lse = new_floats(rows);
  double *expected = calloc((size_t)(rows * p->head_dim_v), sizeof *expected),
         *expected_lse = calloc((size_t)rows, sizeof *expected_lse);
  layout how = LAYOUT_INIT;
  harness_once(p, &how, out, lse);
  oracle_all(p, expected, expected_lse);
  double score = largest_score(p), error = relative_error(out, expected, rows * p->head_dim_v);
  double bound = fmax(2e-6, score * ldexp(1.0, -23));
  print_message("%s layer %d: largest score %.1f, relative error %.3g (at most %.3g)\n", name, layer, score, error,
                bound);
  CHECK(error <= bound, "%s layer %d: relative error %.3g, at most %.3g allowed", name, layer, error, bound);
  free(out);
  free(lse);
  free(expected);
  free(expected_lse);
}

static void positions_are_those_of_the_model(const capture *c, const problem *p) {
  layout how = LAYOUT_INIT;
  harness h;
  harness_build(&h, p, &how);
  int32_t *positions = calloc((size_t)c->num_nodes, sizeof *positions);
  CHECK_OK(treeattn_plan_get_positions(h.plan, positions, c->num_nodes, &error));
  for (int i = 0; i < c->num_nodes; i++) {
    CHECK(positions[i] == c->positions[i], "node %d has position %d, the model gave it %d", i, (int)positions[i],
          (int)c->positions[i]);
  }
  free(positions);
  harness_free(&h);
}

static void check_capture(const char *folder, const char *file, bool required) {
  char path[1024];
  (void)snprintf(path, sizeof path, "%s/%s", folder, file);
  capture c;
  if (!capture_open(&c, path)) {
    CHECK(!required, "%s cannot be opened", path);
    return;
  }
  for (int layer = 0; layer < 100; layer++) {
    problem p;
    if (capture_layer(&c, layer, &p)) {
      num_layers_seen++;
      positions_are_those_of_the_model(&c, &p);
      nodes_equal_their_paths(&p);
      if (!test_quick()) {
        unseen_slots_do_not_matter(&p);
        results_are_accurate(&p, file, layer);
      }
      problem_free(&p);
    }
  }
  capture_close(&c);
}

static void test_capture_in_the_repository(void **state) {
  (void)state;
  num_layers_seen = 0;
  check_capture(TA_SOURCE_DIR "/examples/data", "code.safetensors", true);
  CHECK(num_layers_seen > 0, "the capture has no layers");
}

/* TREEATTN_CAPTURES names a folder with whole captures. */
static void test_whole_captures(void **state) {
  (void)state;
  const char *folder = getenv("TREEATTN_CAPTURES");
  if (folder == NULL) {
    print_message("TREEATTN_CAPTURES names no folder with whole captures\n");
    skip();
  }
  num_layers_seen = 0;
  check_capture(folder, "code.safetensors", true);
  check_capture(folder, "prose.safetensors", true);
  print_message("%d layers\n", num_layers_seen);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_capture_in_the_repository),
      cmocka_unit_test(test_whole_captures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
