/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: the one-call operators part from each other, from the plan, or from the checks that their users rely on. */
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/guard.h"
#include "support/harness.h"

typedef struct call {
  treeattn_tree_attention_params tree;
  treeattn_flash_attn_vec_params flash;
  treeattn_tensor q, k, v, mask, output, tmp;
} call;

static call call_of(const problem *p, int kv_seq_len, int capacity, int num_queries, int mask_stride) {
  call c;
  memset(&c, 0, sizeof c);
  c.tree = (treeattn_tree_attention_params){(uint32_t)p->num_heads, (uint32_t)p->num_kv_heads, (uint32_t)p->head_dim,
                                            (uint32_t)kv_seq_len,   (uint32_t)capacity,        p->scale,
                                            (uint32_t)num_queries,  (uint32_t)mask_stride};
  c.flash = (treeattn_flash_attn_vec_params){(uint32_t)p->num_heads, (uint32_t)p->num_kv_heads, (uint32_t)p->head_dim,
                                             (uint32_t)kv_seq_len,   (uint32_t)capacity,        p->scale,
                                             (uint32_t)num_queries,  (uint32_t)p->window,       p->softcap};
  size_t rows = (size_t)p->num_heads * (size_t)num_queries;
  size_t kv_bytes = (size_t)p->num_kv_heads * (size_t)capacity * (size_t)p->head_dim * element_bytes(p->kv_dtype);
  c.q = (treeattn_tensor){NULL, rows * (size_t)p->head_dim * 4, TREEATTN_F32};
  c.k = c.v = (treeattn_tensor){NULL, kv_bytes, p->kv_dtype};
  c.mask = (treeattn_tensor){NULL, (size_t)num_queries * (size_t)mask_stride * 4, TREEATTN_F32};
  c.output = (treeattn_tensor){NULL, rows * (size_t)p->head_dim * 4, TREEATTN_F32};
  c.tmp = (treeattn_tensor){
      NULL, treeattn_tmp_buffer_bytes((uint32_t)p->num_heads, (uint32_t)p->head_dim, (uint32_t)num_queries),
      TREEATTN_F32};
  return c;
}

static treeattn_status run_tree(const call *c, const treeattn_executor *executor, treeattn_error *error) {
  return treeattn_tree_attention(&c->tree, &c->q, &c->k, &c->v, &c->mask, &c->output, &c->tmp, executor, error);
}

static treeattn_status run_flash(const call *c, const treeattn_executor *executor, treeattn_error *error) {
  return treeattn_flash_attn_vec(&c->flash, &c->q, &c->k, &c->v, &c->output, &c->tmp, executor, error);
}

static void attach(treeattn_tensor *tensor, guarded *buffer) {
  *buffer = guarded_new(tensor->bytes, false);
  tensor->data = buffer->data;
}

/* The explicit causal or window mask, pads NaN, against the computed one, and both against the scalar plan. */
static void test_explicit_equals_computed(void **state) {
  (void)state;
  static const int dims[] = {128, 256, 512};
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  static const int prefixes[] = {0, 1, 31, 32, 33, 63, 500, 511, 512, 600};
  for (int n = 0; n < trial_count(60, 8); n++) {
    rng r;
    int index = trial_begin(&r, 41, n);
    int num_kv_heads = rng_range(&r, 1, 2);
    problem p =
        problem_new(num_kv_heads * rng_range(&r, 1, 4), num_kv_heads, dims[index % 3], 0, dtypes[(index / 3) % 3]);
    int queries = rng_range(&r, 1, 24), prefix = PICK(&r, prefixes);
    p.window = index % 2 == 0 ? 0 : PICK(&r, ((const int[]){1, 2, 5, 16, 32, 100, 511, 1000, 2147483647}));
    request_data *data = problem_add_tree(&p, prefix, queries, TREE_CHAIN, 4.0f, &r);
    int stride = data->num_slots + rng_below(&r, 3) * rng_below(&r, 40);
    call c = call_of(&p, data->num_slots, data->num_slots, queries, stride);
    guarded q, k, v, mask, output, tmp;
    attach(&c.q, &q);
    attach(&c.k, &k);
    attach(&c.v, &v);
    attach(&c.mask, &mask);
    attach(&c.output, &output);
    attach(&c.tmp, &tmp);
    memcpy(q.data, data->q, q.bytes);
    memcpy(k.data, data->k, k.bytes);
    memcpy(v.data, data->v, v.bytes);
    uint8_t *sees = calloc((size_t)queries * (size_t)data->num_slots, 1);
    tree_visibility(data->parents, queries, prefix, p.window, sees);
    for (int i = 0; i < queries; i++) {
      for (int s = 0; s < data->num_slots; s++) {
        ((float *)(void *)mask.data)[i * stride + s] = sees[i * data->num_slots + s] != 0 ? 0.0f : TREEATTN_MASK_HIDDEN;
      }
    }
    thread_team team = {rng_range(&r, 1, 4)};
    treeattn_executor executor = thread_team_executor(&team);
    float *computed = malloc(output.bytes), *planned = malloc(output.bytes);
    CHECK_OK(run_flash(&c, rng_chance(&r, 2) ? &executor : NULL, &error));
    memcpy(computed, output.data, output.bytes);
    memset(output.data, 0xff, output.bytes);
    CHECK_OK(run_tree(&c, rng_chance(&r, 2) ? &executor : NULL, &error));
    char what[128];
    (void)snprintf(what, sizeof what, "explicit against computed mask, D %d, P %d, N %d, window %lld, %s", p.head_dim,
                   prefix, queries, (long long)p.window, treeattn_dtype_name(p.kv_dtype));
    CHECK_SAME_BITS(what, (const float *)(void *)output.data, computed, queries * p.num_heads, p.head_dim);
    layout how = LAYOUT_INIT;
    how.isa = TREEATTN_ISA_SCALAR;
    how.encoding = TREEATTN_MASK_CHAIN;
    harness_once(&p, &how, planned, NULL);
    CHECK_SAME_BITS("the operator against a plan", computed, planned, queries * p.num_heads, p.head_dim);
    p.softcap = c.flash.softcap = 7.0f;
    CHECK_OK(run_flash(&c, NULL, &error));
    harness_once(&p, &how, planned, NULL);
    CHECK_SAME_BITS("softcap in the operator", (const float *)(void *)output.data, planned, queries * p.num_heads,
                    p.head_dim);
    guarded *all[] = {&q, &k, &v, &mask, &output, &tmp};
    for (size_t b = 0; b < sizeof all / sizeof all[0]; b++) {
      CHECK(guarded_intact(all[b]), "bytes around buffer %zu were written", b);
      guarded_free(all[b]);
    }
    free(computed);
    free(planned);
    free(sees);
    problem_free(&p);
  }
}

/* A valid call whose buffers are one page each with made-up sizes: whatever is refused must be refused before any access. */
typedef struct refusal {
  call c;
  guarded output;
} refusal;

static refusal refusal_new(void) {
  problem p = problem_new(4, 2, 128, 0, TREEATTN_F16);
  refusal r;
  r.c = call_of(&p, 20, 24, 3, 20);
  r.output = guarded_new(r.c.output.bytes, false);
  static float anything[4];
  r.c.q.data = r.c.k.data = r.c.v.data = r.c.mask.data = r.c.tmp.data = anything;
  r.c.output.data = r.output.data;
  return r;
}

/* Both operators where the field exists in both. */
static void refused(refusal *r, bool tree, bool flash, treeattn_status status, const char *field, const char *a,
                    const char *b) {
  if (tree) {
    CHECK_ERROR(run_tree(&r->c, NULL, &error), status, field, a, b);
    CHECK(run_tree(&r->c, NULL, NULL) == status, "another status without an error to fill");
  }
  if (flash) {
    CHECK_ERROR(run_flash(&r->c, NULL, &error), status, field, a, b);
  }
  for (size_t n = 0; n < r->output.bytes; n++) {
    CHECK(r->output.data[n] == 0xff, "byte %zu of output was written although %s was refused", n, field);
  }
  guarded_free(&r->output);
  *r = refusal_new();
}

static void test_parameters_are_refused(void **state) {
  (void)state;
  const treeattn_status bad = TREEATTN_ERROR_INVALID_ARGUMENT;
  refusal r = refusal_new();
  static const uint32_t dims[] = {0, 1, 64, 127, 129, 255, 384, 1024, UINT32_MAX};
  for (size_t n = 0; n < sizeof dims / sizeof dims[0]; n++) {
    char value[32];
    (void)snprintf(value, sizeof value, "%lu", (unsigned long)dims[n]);
    r.c.tree.head_dim = r.c.flash.head_dim = dims[n];
    refused(&r, true, true, bad, "head_dim", value, NULL);
  }
  r.c.tree.num_heads = r.c.flash.num_heads = 0;
  refused(&r, true, true, bad, "num_heads", "0", NULL);
  r.c.tree.num_kv_heads = r.c.flash.num_kv_heads = 0;
  refused(&r, true, true, bad, "num_kv_heads", "0", NULL);
  r.c.tree.num_heads = r.c.flash.num_heads = 5;
  refused(&r, true, true, bad, "num_heads", "5", "2");
  r.c.tree.num_heads = r.c.flash.num_heads = 1;
  refused(&r, true, true, bad, "num_heads", "1", "2");
  r.c.tree.kv_seq_len = r.c.flash.kv_seq_len = 0;
  refused(&r, true, true, bad, "kv_seq_len", "0", NULL);
  r.c.tree.kv_capacity = r.c.flash.kv_capacity = 19;
  refused(&r, true, true, bad, "kv_capacity", "19", "20");
  r.c.tree.q_seq_len = r.c.flash.q_seq_len = 0;
  refused(&r, true, true, bad, "q_seq_len", "0", NULL);
  r.c.tree.mask_stride = 19;
  refused(&r, true, false, bad, "mask_stride", "19", "20");
  r.c.flash.q_seq_len = 21;
  refused(&r, false, true, bad, "q_seq_len", "21", "20");
  static const float scales[] = {NAN, INFINITY, -INFINITY};
  for (size_t n = 0; n < 3; n++) {
    r.c.tree.scale = r.c.flash.scale = scales[n];
    refused(&r, true, true, bad, "scale", n == 0 ? "nan" : "inf", NULL);
  }
  static const float caps[] = {NAN, INFINITY, -1.0f};
  for (size_t n = 0; n < 3; n++) {
    r.c.flash.softcap = caps[n];
    refused(&r, false, true, bad, "softcap", n == 0 ? "nan" : (n == 1 ? "inf" : "-1"), NULL);
  }
  guarded_free(&r.output);
}

static void test_types_are_refused(void **state) {
  (void)state;
  refusal r = refusal_new();
  const treeattn_status bad = TREEATTN_ERROR_INVALID_ARGUMENT;
  r.c.q.dtype = TREEATTN_F16;
  refused(&r, true, true, bad, "q", "f16", NULL);
  r.c.k.dtype = TREEATTN_F32;
  refused(&r, true, true, bad, "k", "f32", "f16");
  r.c.v.dtype = TREEATTN_BF16;
  refused(&r, true, true, bad, "v", "bf16", "f16");
  r.c.k.dtype = r.c.v.dtype = (treeattn_dtype)9;
  refused(&r, true, true, bad, "k", "9", NULL);
  r.c.mask.dtype = TREEATTN_F16;
  refused(&r, true, false, bad, "mask", "f16", NULL);
  r.c.output.dtype = TREEATTN_BF16;
  refused(&r, true, true, bad, "output", "bf16", NULL);
  r.c.tmp.dtype = TREEATTN_F16;
  refused(&r, true, true, bad, "tmp", "f16", NULL);
  guarded_free(&r.output);
}

static void test_small_buffers_are_refused(void **state) {
  (void)state;
  refusal r = refusal_new();
  for (int which = 0; which < 6; which++) {
    static const char *const names[] = {"q", "k", "v", "mask", "output", "tmp"};
    treeattn_tensor *tensors[] = {&r.c.q, &r.c.k, &r.c.v, &r.c.mask, &r.c.output, &r.c.tmp};
    for (int shortage = 0; shortage < 3; shortage++) {
      size_t needed = tensors[which]->bytes;
      size_t bytes = shortage == 0 ? needed - 1 : (shortage == 1 ? needed / 2 : 0);
      char have[32], need[32];
      (void)snprintf(have, sizeof have, "%zu", bytes);
      (void)snprintf(need, sizeof need, "%zu", needed);
      tensors[which]->bytes = bytes;
      refused(&r, true, which != 3, TREEATTN_ERROR_BUFFER_TOO_SMALL, names[which], have, need);
    }
    void *data = tensors[which]->data;
    tensors[which]->data = NULL;
    refused(&r, true, which != 3, TREEATTN_ERROR_INVALID_ARGUMENT, names[which], NULL, NULL);
    CHECK(data != NULL, "the valid call has no %s", names[which]);
  }
  guarded_free(&r.output);
}

static void test_missing_arguments_are_refused(void **state) {
  (void)state;
  refusal r = refusal_new();
  const treeattn_status bad = TREEATTN_ERROR_INVALID_ARGUMENT;
  const call *c = &r.c;
  CHECK_ERROR(treeattn_tree_attention(NULL, &c->q, &c->k, &c->v, &c->mask, &c->output, &c->tmp, NULL, &error), bad,
              "params", NULL, NULL);
  CHECK_ERROR(treeattn_tree_attention(&c->tree, NULL, &c->k, &c->v, &c->mask, &c->output, &c->tmp, NULL, &error), bad,
              "q", NULL, NULL);
  CHECK_ERROR(treeattn_tree_attention(&c->tree, &c->q, NULL, &c->v, &c->mask, &c->output, &c->tmp, NULL, &error), bad,
              "k", NULL, NULL);
  CHECK_ERROR(treeattn_tree_attention(&c->tree, &c->q, &c->k, NULL, &c->mask, &c->output, &c->tmp, NULL, &error), bad,
              "v", NULL, NULL);
  CHECK_ERROR(treeattn_tree_attention(&c->tree, &c->q, &c->k, &c->v, NULL, &c->output, &c->tmp, NULL, &error), bad,
              "mask", NULL, NULL);
  CHECK_ERROR(treeattn_tree_attention(&c->tree, &c->q, &c->k, &c->v, &c->mask, NULL, &c->tmp, NULL, &error), bad,
              "output", NULL, NULL);
  CHECK_ERROR(treeattn_tree_attention(&c->tree, &c->q, &c->k, &c->v, &c->mask, &c->output, NULL, NULL, &error), bad,
              "tmp", NULL, NULL);
  CHECK_ERROR(treeattn_flash_attn_vec(NULL, &c->q, &c->k, &c->v, &c->output, &c->tmp, NULL, &error), bad, "params",
              NULL, NULL);
  guarded_free(&r.output);
}

static void test_overflowing_sizes_are_refused(void **state) {
  (void)state;
  refusal r = refusal_new();
  for (int which = 0; which < 3; which++) {
    treeattn_tensor *tensors[] = {&r.c.q, &r.c.k, &r.c.v, &r.c.mask, &r.c.output, &r.c.tmp};
    for (size_t n = 0; n < 6; n++) {
      tensors[n]->bytes = SIZE_MAX;
    }
    r.c.tree.head_dim = r.c.flash.head_dim = 512;
    if (which == 0) {
      r.c.tree.num_heads = r.c.flash.num_heads = r.c.tree.q_seq_len = r.c.flash.q_seq_len = UINT32_C(1) << 31;
      r.c.tree.kv_seq_len = r.c.flash.kv_seq_len = r.c.tree.kv_capacity = r.c.flash.kv_capacity = UINT32_C(1) << 31;
      r.c.tree.mask_stride = UINT32_MAX;
    } else if (which == 1) {
      r.c.tree.num_heads = r.c.flash.num_heads = r.c.tree.num_kv_heads = r.c.flash.num_kv_heads = UINT32_C(1) << 31;
      r.c.tree.kv_capacity = r.c.flash.kv_capacity = UINT32_MAX;
    } else {
      r.c.tree.q_seq_len = UINT32_MAX;
      r.c.tree.mask_stride = UINT32_MAX;
    }
    refused(&r, true, which != 2, TREEATTN_ERROR_OVERFLOW, which == 0 ? "q" : (which == 1 ? "k" : "mask"), NULL, NULL);
  }
  guarded_free(&r.output);
}

static void test_tmp_query(void **state) {
  (void)state;
  static const uint32_t heads[] = {0, 1, 2, 40, 65535, UINT32_MAX}, dims[] = {0, 128, 256, 512, UINT32_MAX},
                        rows[] = {0, 1, 64, 1025, UINT32_MAX};
  for (size_t a = 0; a < sizeof heads / sizeof heads[0]; a++) {
    for (size_t b = 0; b < sizeof dims / sizeof dims[0]; b++) {
      for (size_t c = 0; c < sizeof rows / sizeof rows[0]; c++) {
        long double exact = (long double)heads[a] * (long double)rows[c] * 32.0L * ((long double)dims[b] + 2.0L) * 4.0L;
        size_t expected =
            exact > (long double)SIZE_MAX ? SIZE_MAX : (size_t)heads[a] * rows[c] * 32 * ((size_t)dims[b] + 2) * 4;
        size_t actual = treeattn_tmp_buffer_bytes(heads[a], dims[b], rows[c]);
        CHECK(actual == expected, "tmp bytes of %lu heads, head_dim %lu, %lu rows: %zu instead of %zu",
              (unsigned long)heads[a], (unsigned long)dims[b], (unsigned long)rows[c], actual, expected);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_explicit_equals_computed),
      cmocka_unit_test(test_parameters_are_refused),
      cmocka_unit_test(test_types_are_refused),
      cmocka_unit_test(test_small_buffers_are_refused),
      cmocka_unit_test(test_missing_arguments_are_refused),
      cmocka_unit_test(test_overflowing_sizes_are_refused),
      cmocka_unit_test(test_tmp_query),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
