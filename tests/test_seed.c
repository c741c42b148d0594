/* SPDX-License-Identifier: Apache-2.0 */
/* The baseline of the benches must be right, and read nothing that it does not own, or a comparison with it means
 * nothing. */
#include "../bench/seed/seed.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../bench/seed/seed_kernels.h"
#include "support/check.h"
#include "support/guard.h"
#include "support/halves.h"
#include "support/rng.h"

typedef struct shape {
  int num_heads, num_kv_heads, head_dim, num_nodes, kv_len, kv_capacity, mask_stride;
  treeattn_dtype dtype;
} shape;

static void test_halves(void **state) {
  (void)state;
  for (uint32_t bits = 0; bits < 65536; bits++) {
    const float expected = half_to_float((uint16_t)bits);
    const float actual = seed_half_to_float((uint16_t)bits);
    CHECK(memcmp(&expected, &actual, sizeof actual) == 0 || (isnan(expected) && isnan(actual)),
          "half 0x%04x gives %a, not %a", bits, (double)actual, (double)expected);
    if (isnan(expected)) {
      continue;
    }
    CHECK(seed_float_to_half(expected) == bits, "half 0x%04x comes back as 0x%04x", bits, seed_float_to_half(expected));
    const float nearby[] = {nextafterf(expected, INFINITY),
                            nextafterf(expected, -INFINITY),
                            expected * 1.00048828125f,
                            nextafterf(expected * 1.00048828125f, INFINITY),
                            expected + 0x1p-25f,
                            expected * 1.0003f};
    for (size_t n = 0; n < sizeof nearby / sizeof *nearby; n++) {
      CHECK(seed_float_to_half(nearby[n]) == float_to_half(nearby[n]), "%a becomes 0x%04x, not 0x%04x",
            (double)nearby[n], seed_float_to_half(nearby[n]), float_to_half(nearby[n]));
    }
  }
}

/* A random tree in the last slots when `tree`, otherwise holes everywhere. Columns past kv_len are NaN. */
static void fill_mask(float *mask, const shape *s, int tree, rng *r) {
  const int first = s->kv_len - s->num_nodes;
  for (int i = 0; i < s->num_nodes; i++) {
    float *row = mask + (size_t)i * (size_t)s->mask_stride;
    for (int p = 0; p < s->mask_stride; p++) {
      row[p] = p < s->kv_len ? TREEATTN_MASK_HIDDEN : NAN;
    }
    const int parent = i == 0 ? -1 : rng_below(r, i);
    for (int p = 0; p < s->kv_len; p++) {
      const int visible =
          !tree ? rng_chance(r, 3) && p / SEED_CHUNK % 3 != i % 3
          : p < first
              ? 1
              : p == first + i || (parent >= 0 && mask[(size_t)parent * (size_t)s->mask_stride + (size_t)p] == 0.0f);
      row[p] = visible ? 0.0f : TREEATTN_MASK_HIDDEN;
    }
  }
}

/* Queries rounded to half, everything after that in doubles. Hidden keys are left out, as -65504 leaves them here. */
static void reference(const shape *s, const float *q, const void *k, const void *v, const float *mask, float scale,
                      int h, int i, double *out) {
  const int g = h / (s->num_heads / s->num_kv_heads);
  const int64_t base = (int64_t)g * s->kv_capacity * s->head_dim;
  double *scores = malloc((size_t)s->kv_len * sizeof *scores);
  double max = -INFINITY;
  for (int p = 0; p < s->kv_len; p++) {
    scores[p] = -INFINITY;
    if (mask[(size_t)i * (size_t)s->mask_stride + (size_t)p] > TREEATTN_MASK_HIDDEN) {
      double dot = 0;
      for (int d = 0; d < s->head_dim; d++) {
        const float x = half_to_float(
            float_to_half(q[((size_t)h * (size_t)s->num_nodes + (size_t)i) * (size_t)s->head_dim + (size_t)d]));
        dot += (double)x * (double)element_load(s->dtype, k, base + (int64_t)p * s->head_dim + d);
      }
      scores[p] = dot * (double)scale;
      max = scores[p] > max ? scores[p] : max;
    }
  }
  double sum = 0;
  memset(out, 0, (size_t)s->head_dim * sizeof *out);
  for (int p = 0; p < s->kv_len; p++) {
    const double weight = isinf(scores[p]) ? 0.0 : exp(scores[p] - max);
    sum += weight;
    for (int d = 0; d < s->head_dim && weight > 0; d++) {
      out[d] += weight * (double)element_load(s->dtype, v, base + (int64_t)p * s->head_dim + d);
    }
  }
  for (int d = 0; d < s->head_dim && sum > 0; d++) {
    out[d] /= sum;
  }
  free(scores);
}

static int backwards(void *context, void (*task)(void *arg, size_t index), void *arg, size_t num_tasks) {
  (void)context;
  while (num_tasks > 0) {
    task(arg, --num_tasks);
  }
  return 0;
}

static double check_shape(const shape *s, int tree, seed_isa isa, rng *r) {
  const size_t num_q = (size_t)s->num_heads * (size_t)s->num_nodes * (size_t)s->head_dim;
  const int64_t num_kv = (int64_t)s->num_kv_heads * s->kv_capacity * s->head_dim;
  const size_t kv_bytes = (size_t)num_kv * treeattn_dtype_bytes(s->dtype);
  /* The last mask row ends with its last column, whatever the stride. */
  const size_t mask_cells = (size_t)(s->num_nodes - 1) * (size_t)s->mask_stride + (size_t)s->kv_len;
  guarded q = guarded_new(num_q * sizeof(float), false);
  guarded k = guarded_new(kv_bytes, false);
  guarded v = guarded_new(kv_bytes, false);
  guarded mask = guarded_new(mask_cells * sizeof(float), false);
  guarded out = guarded_new(num_q * sizeof(float), false);
  float *full_mask = malloc((size_t)s->num_nodes * (size_t)s->mask_stride * sizeof(float));
  fill_mask(full_mask, s, tree, r);
  memcpy(mask.data, full_mask, mask.bytes);
  for (size_t n = 0; n < num_q; n++) {
    ((float *)(void *)q.data)[n] = 3.0f * rng_signed(r);
  }
  /* Slots past kv_len keep the NaNs that guarded_new left. */
  for (int g = 0; g < s->num_kv_heads; g++) {
    for (int64_t n = 0; n < (int64_t)s->kv_len * s->head_dim; n++) {
      element_store(s->dtype, k.data, (int64_t)g * s->kv_capacity * s->head_dim + n, 2.0f * rng_signed(r));
      element_store(s->dtype, v.data, (int64_t)g * s->kv_capacity * s->head_dim + n, 2.0f * rng_signed(r));
    }
  }
  seed_args args = {.num_heads = s->num_heads,
                    .num_kv_heads = s->num_kv_heads,
                    .head_dim = s->head_dim,
                    .q_seq_len = s->num_nodes,
                    .kv_seq_len = s->kv_len,
                    .kv_capacity = s->kv_capacity,
                    .mask_stride = s->mask_stride,
                    .scale = (float)(1.0 / sqrt((double)s->head_dim)),
                    .kv_dtype = s->dtype,
                    .q = (const float *)(const void *)q.data,
                    .k = k.data,
                    .v = v.data,
                    .mask = (const float *)(const void *)mask.data,
                    .out = (float *)(void *)out.data,
                    .executor = {backwards, NULL},
                    .isa = isa};
  CHECK(seed_tree_attention(&args) == 0, "the baseline refused head_dim %d", s->head_dim);

  double worst = 0;
  double *expected = malloc((size_t)s->head_dim * sizeof *expected);
  for (int i = 0; i < s->num_nodes; i++) {
    for (int h = 0; h < s->num_heads; h++) {
      reference(s, args.q, k.data, v.data, full_mask, args.scale, h, i, expected);
      const float *actual = args.out + ((size_t)i * (size_t)s->num_heads + (size_t)h) * (size_t)s->head_dim;
      double difference = 0;
      double norm = 0;
      for (int d = 0; d < s->head_dim; d++) {
        difference += ((double)actual[d] - expected[d]) * ((double)actual[d] - expected[d]);
        norm += expected[d] * expected[d];
      }
      const double relative = norm > 0 ? sqrt(difference / norm) : sqrt(difference);
      CHECK(relative <= 1e-5, "row %d head %d of %d keys, head_dim %d: relative error %g", i, h, s->kv_len, s->head_dim,
            relative);
      worst = relative > worst ? relative : worst;
    }
  }
  guarded *all[] = {&q, &k, &v, &mask, &out};
  for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
    CHECK(guarded_intact(all[n]), "bytes beside buffer %zu were written", n);
    guarded_free(all[n]);
  }
  free(expected);
  free(full_mask);
  return worst;
}

static void check_isa(seed_isa isa, uint64_t salt) {
  static const int dims[] = {8, 32, 40, 64, 96, 128, 192, 256, 512, 1024};
  static const int lengths[] = {1, 7, 31, 32, 33, 63, 64, 65, 96, 250, 1023, 1024, 1025, 1500};
  static const int ratios[] = {1, 2, 3, 5};
  double worst = 0;
  const int count = trial_count(60, 20);
  for (int n = 0; n < count; n++) {
    rng r;
    const int index = trial_begin(&r, salt, n);
    shape s = {.head_dim = dims[index % 10], .kv_len = lengths[index % 14], .num_kv_heads = rng_range(&r, 1, 2)};
    s.num_heads = s.num_kv_heads * PICK(&r, ratios);
    s.dtype = rng_chance(&r, 2) ? TREEATTN_F16 : TREEATTN_F32;
    s.num_nodes = rng_range(&r, 1, s.kv_len < 5 ? s.kv_len : 5);
    s.kv_capacity = s.kv_len + (rng_chance(&r, 2) ? 0 : rng_range(&r, 1, 40));
    s.mask_stride = s.kv_len + (rng_chance(&r, 2) ? 0 : rng_range(&r, 1, 40));
    const double error = check_shape(&s, index % 3 != 0, isa, &r);
    worst = error > worst ? error : worst;
  }
  print_message("worst relative error against float64 with half queries: %.2g\n", worst);
}

static void test_plain(void **state) {
  (void)state;
  check_isa(SEED_ISA_PLAIN, 1);
}

static void test_avx2(void **state) {
  (void)state;
  if (strcmp(seed_isa_detect(), "avx2") != 0) {
    skip();
  }
  check_isa(SEED_ISA_AVX2, 2);
}

static void test_refusals(void **state) {
  (void)state;
  float buffer[64] = {0};
  const seed_args good = {.num_heads = 2,
                          .num_kv_heads = 1,
                          .head_dim = 8,
                          .q_seq_len = 1,
                          .kv_seq_len = 2,
                          .kv_capacity = 2,
                          .mask_stride = 2,
                          .scale = 1.0f,
                          .kv_dtype = TREEATTN_F32,
                          .q = buffer,
                          .k = buffer,
                          .v = buffer,
                          .mask = buffer,
                          .out = buffer + 32};
  assert_int_equal(seed_tree_attention(&good), 0);
  seed_args bad[8];
  for (int n = 0; n < 8; n++) {
    bad[n] = good;
  }
  bad[0].num_kv_heads = 3;
  bad[1].head_dim = 12;
  bad[2].head_dim = SEED_MAX_HEAD_DIM + 8;
  bad[3].q_seq_len = 0;
  bad[4].kv_seq_len = 0;
  bad[5].kv_capacity = 1;
  bad[6].mask_stride = 1;
  bad[7].kv_dtype = TREEATTN_BF16;
  for (int n = 0; n < 8; n++) {
    CHECK(seed_tree_attention(&bad[n]) == -1, "bad arguments number %d were accepted", n);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_halves),
      cmocka_unit_test(test_plain),
      cmocka_unit_test(test_avx2),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
