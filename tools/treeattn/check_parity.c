/* SPDX-License-Identifier: Apache-2.0 */
/* The two one-call operators: an explicit mask that says what causal or window visibility says gives the same bytes. */
#include <math.h>
#include <string.h>

#include "check.h"

typedef struct shape {
  uint32_t num_heads, num_kv_heads, head_dim, kv_seq_len, kv_capacity, q_seq_len, mask_stride, window;
  treeattn_dtype dtype;
} shape;

static shape random_shape(check_context *c, int index) {
  static const uint32_t dims[] = {128, 256, 512};
  static const uint32_t ratios[] = {1, 2, 3, 5, 8};
  static const uint32_t lengths[] = {1, 15, 16, 17, 32, 33, 100, 511, 512, 513, 700};
  shape s = {.head_dim = dims[index % 3], .kv_seq_len = lengths[problem_random_below(&c->random, 11)]};
  s.num_kv_heads = 1 + (uint32_t)problem_random_below(&c->random, 2);
  s.num_heads = s.num_kv_heads * ratios[problem_random_below(&c->random, 5)];
  s.q_seq_len = 1 + (uint32_t)problem_random_below(&c->random, s.kv_seq_len < 9 ? s.kv_seq_len : 9);
  s.kv_capacity = s.kv_seq_len + (uint32_t)problem_random_below(&c->random, 40);
  s.mask_stride = s.kv_seq_len + (uint32_t)problem_random_below(&c->random, 40);
  s.window = index % 2 == 0 ? 0 : 1 + (uint32_t)problem_random_below(&c->random, 2 * s.kv_seq_len);
  s.dtype = (treeattn_dtype)(TREEATTN_F32 + problem_random_below(&c->random, 2));
  return s;
}

static void fill_mask(const shape *s, float *mask) {
  for (uint32_t i = 0; i < s->q_seq_len; i++) {
    float *row = mask + (size_t)i * s->mask_stride;
    const uint32_t position = s->kv_seq_len - s->q_seq_len + i;
    for (uint32_t p = 0; p < s->mask_stride; p++) {
      const bool seen = p <= position && (s->window == 0 || position - p < s->window);
      row[p] = p >= s->kv_seq_len ? NAN : seen ? 0.0f : TREEATTN_MASK_HIDDEN;
    }
  }
}

static int compare(check_context *c, const shape *s, const problem *p, float *mask, float *out, float *other,
                   void *tmp) {
  const size_t out_bytes = (size_t)s->num_heads * s->q_seq_len * s->head_dim * sizeof *out;
  const size_t kv_bytes = (size_t)s->num_kv_heads * s->kv_capacity * s->head_dim * treeattn_dtype_bytes(s->dtype);
  const treeattn_tensor q = {p->q, out_bytes, TREEATTN_F32};
  const treeattn_tensor k = {p->k, kv_bytes, s->dtype};
  const treeattn_tensor v = {p->v, kv_bytes, s->dtype};
  const treeattn_tensor mask_tensor = {mask, (size_t)s->q_seq_len * s->mask_stride * sizeof *mask, TREEATTN_F32};
  const treeattn_tensor output = {out, out_bytes, TREEATTN_F32};
  const treeattn_tensor other_output = {other, out_bytes, TREEATTN_F32};
  const treeattn_tensor scratch = {tmp, treeattn_tmp_buffer_bytes(s->num_heads, s->head_dim, s->q_seq_len),
                                   TREEATTN_F32};
  const treeattn_tree_attention_params tree = {s->num_heads,   s->num_kv_heads, s->head_dim,  s->kv_seq_len,
                                               s->kv_capacity, p->scale,        s->q_seq_len, s->mask_stride};
  const treeattn_flash_attn_vec_params flash = {s->num_heads,  s->num_kv_heads, s->head_dim,
                                                s->kv_seq_len, s->kv_capacity,  p->scale,
                                                s->q_seq_len,  s->window,       0.0f};
  treeattn_error error;
  const treeattn_executor *executor = &c->teams[problem_random_below(&c->random, CHECK_NUM_TEAMS)];
  memset(out, 0xff, out_bytes);
  memset(other, 0xa5, out_bytes);
  if (treeattn_tree_attention(&tree, &q, &k, &v, &mask_tensor, &output, &scratch, executor, &error) != TREEATTN_OK ||
      treeattn_flash_attn_vec(&flash, &q, &k, &v, &other_output, &scratch, executor, &error) != TREEATTN_OK) {
    return cli_library_error("parity", &error);
  }
  for (uint32_t row = 0; row < s->q_seq_len * s->num_heads; row++) {
    const bool same =
        memcmp(out + (size_t)row * s->head_dim, other + (size_t)row * s->head_dim, s->head_dim * sizeof *out) == 0;
    check_count(c, CHECK_P1, same, "head_dim %u, %u keys, %u queries, window %u: query %u head %u", s->head_dim,
                s->kv_seq_len, s->q_seq_len, s->window, row / s->num_heads, row % s->num_heads);
  }
  return CLI_OK;
}

/* Slots past kv_seq_len are not data. */
static void poison_tail(const problem *p, void *cache) {
  for (int64_t g = 0; g < p->num_kv_heads; g++) {
    for (int64_t n = (p->prefix_len + p->num_nodes) * p->head_dim; n < p->kv_capacity * p->head_dim; n++) {
      problem_store_element(p->kv_dtype, cache, g * p->kv_capacity * p->head_dim + n, NAN);
    }
  }
}

int check_parity(check_context *c) {
  int status = CLI_OK;
  const int count = c->quick ? 8 : 40;
  for (int n = 0; n < count && status == CLI_OK; n++) {
    const shape s = random_shape(c, n);
    problem sizes = {.num_heads = s.num_heads,
                     .num_kv_heads = s.num_kv_heads,
                     .head_dim = s.head_dim,
                     .head_dim_v = s.head_dim,
                     .num_nodes = s.q_seq_len,
                     .prefix_len = s.kv_seq_len - s.q_seq_len,
                     .kv_capacity = s.kv_capacity,
                     .kv_dtype = s.dtype,
                     .scale = (float)(1.0 / sqrt((double)s.head_dim))};
    problem p;
    if (!problem_create_random(&sizes, 1.0f, problem_random(&c->random), &p)) {
      return cli_out_of_memory();
    }
    poison_tail(&p, p.k);
    poison_tail(&p, p.v);
    const size_t num_out = (size_t)s.num_heads * s.q_seq_len * s.head_dim;
    float *mask = cli_malloc_array((size_t)s.q_seq_len * s.mask_stride, sizeof *mask);
    float *out = cli_malloc_array(2 * num_out, sizeof *out);
    void *tmp = cli_malloc(treeattn_tmp_buffer_bytes(s.num_heads, s.head_dim, s.q_seq_len));
    status = mask == NULL || out == NULL || tmp == NULL ? cli_out_of_memory() : CLI_OK;
    if (status == CLI_OK) {
      fill_mask(&s, mask);
      status = compare(c, &s, &p, mask, out, out + num_out, tmp);
    }
    cli_free(mask);
    cli_free(out);
    cli_free(tmp);
    problem_free(&p);
  }
  return status;
}
