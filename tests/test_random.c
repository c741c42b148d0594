/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers: the published answers, and a function of seed, request, position, stream and index alone. */
#include <math.h>
#include <string.h>

#include <treeattn/verify.h>

#include "support/check.h"

/* The philox4x32-10 lines of kat_vectors in the Random123 distribution. */
static void philox_gives_the_known_answers(void **state) {
  (void)state;
  static const struct {
    uint32_t counter[4], key[2], output[4];
  } vectors[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (size_t n = 0; n < sizeof vectors / sizeof vectors[0]; n++) {
    uint32_t output[4];
    treeattn_philox4x32(vectors[n].counter, vectors[n].key, output);
    for (int w = 0; w < 4; w++) {
      CHECK(output[w] == vectors[n].output[w], "vector %zu, word %d: %08x instead of %08x", n, w, output[w],
            vectors[n].output[w]);
    }
    uint32_t in_place[4]; /* input and output may be one */
    memcpy(in_place, vectors[n].counter, sizeof in_place);
    treeattn_philox4x32(in_place, vectors[n].key, in_place);
    assert_memory_equal(in_place, output, sizeof output);
  }
}

static void uniforms_are_the_upper_24_bits(void **state) {
  (void)state;
  const uint64_t seed = UINT64_C(0x0123456789abcdef);
  const uint64_t request = UINT64_C(0xfedcba9876543210);
  enum { COUNT = 4099 };
  static float uniforms[COUNT];
  CHECK_OK(treeattn_uniforms_fill(seed, request, 77, TREEATTN_STREAM_DRAFT, COUNT, uniforms, &error));
  for (uint32_t i = 0; i < COUNT; i++) {
    const uint32_t counter[4] = {1u << 24 | i / 4, 77, 0x76543210u, 0xfedcba98u};
    const uint32_t key[2] = {0x89abcdefu, 0x01234567u};
    uint32_t output[4];
    treeattn_philox4x32(counter, key, output);
    const double expected = (double)(output[i % 4] >> 8) / 16777216.0;
    CHECK((double)uniforms[i] == expected, "uniform %u is %.9g instead of %.9g", i, (double)uniforms[i], expected);
  }
}

static void a_shorter_request_is_a_prefix(void **state) {
  (void)state;
  float whole[64];
  CHECK_OK(treeattn_uniforms_fill(1, 2, 3, 0, 64, whole, &error));
  for (int count = 0; count < 64; count++) {
    float part[65];
    memset(part, 0xff, sizeof part);
    CHECK_OK(treeattn_uniforms_fill(1, 2, 3, 0, count, part, &error));
    assert_memory_equal(part, whole, (size_t)count * sizeof *part);
    assert_true(isnan(part[count]));
  }
}

static void every_argument_matters(void **state) {
  (void)state;
  float base[4], other[4];
  CHECK_OK(treeattn_uniforms_fill(5, 6, 7, 0, 4, base, &error));
  for (int bit = 0; bit < 64; bit++) {
    const uint64_t flip = UINT64_C(1) << bit;
    CHECK_OK(treeattn_uniforms_fill(5 ^ flip, 6, 7, 0, 4, other, &error));
    CHECK(memcmp(base, other, sizeof base) != 0, "bit %d of the seed changes nothing", bit);
    CHECK_OK(treeattn_uniforms_fill(5, 6 ^ flip, 7, 0, 4, other, &error));
    CHECK(memcmp(base, other, sizeof base) != 0, "bit %d of the request changes nothing", bit);
    if (bit < 32) {
      CHECK_OK(treeattn_uniforms_fill(5, 6, 7 ^ (uint32_t)flip, 0, 4, other, &error));
      CHECK(memcmp(base, other, sizeof base) != 0, "bit %d of the position changes nothing", bit);
    }
    if (bit < 8) {
      CHECK_OK(treeattn_uniforms_fill(5, 6, 7, (uint32_t)flip, 4, other, &error));
      CHECK(memcmp(base, other, sizeof base) != 0, "bit %d of the stream changes nothing", bit);
    }
  }
}

static void uniforms_fill_the_unit_interval(void **state) {
  (void)state;
  enum { COUNT = 1 << 20, CELLS = 256 };
  static float uniforms[COUNT];
  static int cells[CELLS];
  CHECK_OK(treeattn_uniforms_fill(2024, 0, 0, TREEATTN_STREAM_MAX, COUNT, uniforms, &error));
  for (int i = 0; i < COUNT; i++) {
    CHECK(uniforms[i] >= 0.0f && uniforms[i] < 1.0f, "uniform %d is %.9g", i, (double)uniforms[i]);
    cells[(int)(uniforms[i] * CELLS)]++;
  }
  double chi_square = 0; /* mean 255, standard deviation 22.6 */
  for (int c = 0; c < CELLS; c++) {
    const double expected = (double)COUNT / CELLS;
    chi_square += (cells[c] - expected) * (cells[c] - expected) / expected;
  }
  CHECK(chi_square > 150 && chi_square < 380, "chi-square is %g on 255 degrees of freedom", chi_square);
}

static void bad_arguments_write_nothing(void **state) {
  (void)state;
  float uniforms[4] = {-1, -1, -1, -1};
  CHECK_ERROR(treeattn_uniforms_fill(0, 0, 0, 256, 4, uniforms, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "stream",
              "256", NULL);
  CHECK_ERROR(treeattn_uniforms_fill(0, 0, 0, 0, -1, uniforms, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "count", "-1",
              NULL);
  CHECK_ERROR(treeattn_uniforms_fill(0, 0, 0, 0, TREEATTN_UNIFORMS_MAX + 1, uniforms, &error),
              TREEATTN_ERROR_INVALID_ARGUMENT, "count", "67108865", NULL);
  CHECK_ERROR(treeattn_uniforms_fill(0, 0, 0, 0, 4, NULL, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "uniforms", "4",
              NULL);
  for (int i = 0; i < 4; i++) {
    assert_true(uniforms[i] == -1.0f);
  }
  CHECK_OK(treeattn_uniforms_fill(0, 0, 0, 0, 0, NULL, &error));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(philox_gives_the_known_answers),  cmocka_unit_test(uniforms_are_the_upper_24_bits),
      cmocka_unit_test(a_shorter_request_is_a_prefix),   cmocka_unit_test(every_argument_matters),
      cmocka_unit_test(uniforms_fill_the_unit_interval), cmocka_unit_test(bad_arguments_write_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
