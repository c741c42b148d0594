/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: the emulator looks away. Every wrong kernel must be reported, and every barrier of the right ones be missed. */
#include "support/check.h"

#include <stdio.h>
#include <string.h>

#include "metal_harness.h"
#include "standin/bridge.h"

static char *read_text(const char *path) {
  FILE *stream = fopen(path, "rb");
  CHECK(stream != NULL, "%s cannot be opened", path);
  char *text = calloc(1, 1 << 20);
  size_t length = fread(text, 1, (1 << 20) - 1, stream);
  (void)fclose(stream);
  CHECK(length > 0, "%s cannot be read", path);
  return text;
}

typedef struct broken_run {
  standin_source *source;
  uint32_t out[256];
  uint32_t nobodys[1024]; /* between them, so that the end of one is not the start of the other */
  uint32_t number;
  standin_dispatch dispatch;
} broken_run;

/* Buffer 0 is `out`, the buffer that `number_at` names holds one number, threadgroup memory has 64 words. */
static const char *run_broken(broken_run *b, const char *kernel, int number_at, uint32_t number, uint32_t groups) {
  static char report[1024];
  char *text = read_text(TA_SOURCE_DIR "/tests/metal/emulator/broken.metal");
  memset(b, 0, sizeof *b);
  b->source = standin_source_new(text);
  free(text);
  b->number = number;
  b->dispatch.source = b->source;
  b->dispatch.kernel = kernel;
  b->dispatch.data[0] = (unsigned char *)b->out;
  b->dispatch.bytes[0] = sizeof b->out;
  if (number_at > 0) {
    b->dispatch.data[number_at] = (unsigned char *)&b->number;
    b->dispatch.bytes[number_at] = sizeof b->number;
  }
  b->dispatch.threadgroup_bytes[0] = 256;
  b->dispatch.grid[0] = groups;
  b->dispatch.grid[1] = b->dispatch.grid[2] = 1;
  b->dispatch.lanes = 64;
  CHECK(standin_source_has(b->source, kernel) != 0, "no kernel %s", kernel);
  (void)snprintf(report, sizeof report, "%s", standin_run(&b->dispatch));
  standin_barrier();
  standin_source_free(b->source);
  return report;
}

static void expect_report(const char *kernel, int number_at, uint32_t number, uint32_t groups, const char *word_a,
                          const char *word_b) {
  broken_run b;
  for (int order = 0; order < 20; order++) { /* whatever the order of lanes is */
    standin_shuffle((uint64_t)order);
    const char *report = run_broken(&b, kernel, number_at, number, groups);
    CHECK(strstr(report, word_a) == report && strstr(report, word_b) != NULL,
          "%s: the report \"%s\" does not begin with \"%s\" and contain \"%s\"", kernel, report, word_a, word_b);
  }
}

static void test_right_kernel(void **state) {
  (void)state;
  broken_run b;
  for (int order = 0; order < 20; order++) {
    standin_shuffle((uint64_t)order);
    const char *report = run_broken(&b, "neighbour", 1, 1, 3);
    CHECK(report[0] == '\0', "a right kernel is reported: %s", report);
    for (uint32_t n = 0; n < 192; n++) {
      CHECK(b.out[n] == (n % 64 + 1) % 64, "out[%u] is %u", (unsigned)n, (unsigned)b.out[n]);
    }
  }
}

static void test_races(void **state) {
  (void)state;
  expect_report("neighbour", 1, 0, 1, "", "neighbour"); /* a race, or uninitialized if the reader comes first */
  expect_report("barrier_of_nothing", 0, 0, 1, "race", "threadgroup memory");
  expect_report("same_word", 0, 0, 2, "race", "buffer 0");
  expect_report("other_threadgroup", 0, 0, 2, "race", "buffer 0");
}

static void test_bounds(void **state) {
  (void)state;
  expect_report("past_the_end", 1, 256, 1, "bounds", "reads 4 bytes outside");
  expect_report("write_past_the_end", 1, 256, 1, "bounds", "writes 4 bytes outside");
  expect_report("write_past_the_end", 1, 100000000, 1, "bounds", "write_past_the_end");
  expect_report("before_the_start", 0, 0, 1, "bounds", "writes");
  expect_report("past_threadgroup_memory", 0, 0, 1, "bounds", "lane 63");
  expect_report("never_written", 0, 0, 1, "uninitialized", "lane 7");
  expect_report("write_to_input", 0, 0, 1, "constant", "buffer 0");
  broken_run b;
  CHECK(run_broken(&b, "past_the_end", 1, 255, 1)[0] == '\0', "reading the last element is reported");
  CHECK(run_broken(&b, "write_past_the_end", 1, 255, 1)[0] == '\0', "writing the last element is reported");
}

static void test_divergence(void **state) {
  (void)state;
  expect_report("half_at_the_barrier", 0, 0, 1, "divergence", "has ended");
  expect_report("two_barriers", 0, 0, 1, "divergence", "waits at");
  expect_report("lonely_shuffle", 0, 0, 1, "divergence", "simdgroup");
}

static void test_arguments(void **state) {
  (void)state;
  expect_report("past_the_end", 2, 0, 1, "argument", "buffer(1)"); /* nothing is bound there */
  expect_report("neighbour", 0, 0, 1, "argument", "buffer(1)");
}

/* A step that passes every barrier more than once: several panels, leaves and keys of nodes that differ. */
static problem busy_problem(rng *r) {
  problem p = problem_new(6, 2, 160, 136, TREEATTN_F16);
  (void)problem_add_tree(&p, 1020, 9, TREE_BINARY, 4.0f, r);
  return p;
}

/* What the commands of a run report; "" if all is well. */
static const char *report_of_run(const problem *p, rng *r) {
  static treeattn_error error;
  layout how = LAYOUT_INIT;
  harness h;
  metal_buffers m;
  harness_build(&h, p, &how);
  metal_buffers_new(&m, &h, r);
  treeattn_status status = treeattn_metal_attend(metal_of_tests(), h.plan, &m.run, &error);
  metal_buffers_free(&m);
  harness_free(&h);
  return status == TREEATTN_OK ? "" : error.message;
}

static void test_every_barrier_is_missed(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 161, 0);
  problem p = busy_problem(&r);
  CHECK(report_of_run(&p, &r)[0] == '\0', "%s", report_of_run(&p, &r));
  char places[32][64];
  int count = 0;
  for (const char *place; (place = standin_barrier_place(count)) != NULL;) {
    (void)snprintf(places[count++], sizeof places[0], "%s", place);
    CHECK(count < 32, "more barriers than the test has room for");
  }
  int dropped = 0;
  for (int n = 0; n < count; n++) {
    if (strstr(places[n], "broken.metal") != NULL) {
      continue;
    }
    standin_drop_barrier(places[n]);
    const char *report = report_of_run(&p, &r);
    standin_drop_barrier("");
    CHECK(strstr(report, "race") != NULL || strstr(report, "uninitialized") != NULL,
          "without the barrier at %s the report is \"%s\"", places[n], report);
    dropped++;
  }
  CHECK(dropped == 8, "%d barriers were passed, the kernels have 8", dropped);
  CHECK(report_of_run(&p, &r)[0] == '\0', "the barriers did not come back");
  problem_free(&p);
}

static void test_barrier_between_passes_is_missed(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 162, 0);
  problem p = busy_problem(&r);
  standin_drop_device_barriers(1);
  const char *report = report_of_run(&p, &r);
  standin_drop_device_barriers(0);
  CHECK(strstr(report, "race") != NULL && strstr(report, "treeattn_combine") != NULL, "the report is \"%s\"", report);
  CHECK(report_of_run(&p, &r)[0] == '\0', "the barrier did not come back");
  problem_free(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_right_kernel),
      cmocka_unit_test(test_races),
      cmocka_unit_test(test_bounds),
      cmocka_unit_test(test_divergence),
      cmocka_unit_test(test_arguments),
      cmocka_unit_test(test_every_barrier_is_missed),
      cmocka_unit_test(test_barrier_between_passes_is_missed),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  metal_close();
  return failed;
}
