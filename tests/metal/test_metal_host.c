/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: the host side refuses nothing, names the wrong field, builds pipelines again, leaks, or encodes where it should not. */
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "metal_harness.h"

#ifndef __APPLE__
#include "standin/bridge.h"
#endif

static const treeattn_status bad = TREEATTN_ERROR_INVALID_ARGUMENT;
static const treeattn_status small = TREEATTN_ERROR_BUFFER_TOO_SMALL;

typedef struct fixture {
  problem p;
  harness h;
  metal_buffers m;
} fixture;

static void fixture_new(fixture *f, treeattn_dtype dtype, int head_dim, rng *r) {
  f->p = problem_new(4, 2, head_dim, 0, dtype);
  (void)problem_add_tree(&f->p, 20, 6, TREE_RANDOM, 4.0f, r);
  problem_set_sinks(&f->p, r);
  layout how = LAYOUT_INIT;
  harness_build(&f->h, &f->p, &how);
  metal_buffers_new(&f->m, &f->h, r);
}

static void fixture_free(fixture *f) {
  metal_buffers_free(&f->m);
  harness_free(&f->h);
  problem_free(&f->p);
}

/* The run is refused, says why, and has written nothing. */
static void refused(fixture *f, const treeattn_metal_run_args *run, treeattn_status status, const char *a,
                    const char *b, const char *c) {
  metal_buffers_clear(&f->m);
  CHECK_ERROR(treeattn_metal_attend(metal_of_tests(), f->h.plan, run, &error), status, a, b, c);
  CHECK(treeattn_metal_attend(metal_of_tests(), f->h.plan, run, NULL) == status, "another status without an error");
  const unsigned char *out = device_contents(f->m.run.out.buffer);
  for (size_t n = 0; n < f->m.run.out.offset + f->m.out_bytes; n++) {
    CHECK(out[n] == 0xff, "byte %zu of out was written although %s was refused", n, a);
  }
}

static void test_missing_arguments(void **state) {
  (void)state;
  rng r;
  fixture f;
  (void)trial_begin(&r, 181, 0);
  fixture_new(&f, TREEATTN_F16, 32, &r);
  treeattn_metal *metal = NULL;
  treeattn_metal_plan_info info = TREEATTN_METAL_PLAN_INFO_INIT;
  CHECK_ERROR(treeattn_metal_create(NULL, NULL, &error), bad, "metal", NULL, NULL);
  CHECK_ERROR(treeattn_metal_attend(NULL, f.h.plan, &f.m.run, &error), bad, "metal", NULL, NULL);
  CHECK_ERROR(treeattn_metal_attend(metal_of_tests(), NULL, &f.m.run, &error), bad, "plan", NULL, NULL);
  CHECK_ERROR(treeattn_metal_attend(metal_of_tests(), f.h.plan, NULL, &error), bad, "run", NULL, NULL);
  CHECK_ERROR(treeattn_metal_plan_get_info(NULL, &info, &error), bad, "plan", NULL, NULL);
  CHECK_ERROR(treeattn_metal_plan_get_info(f.h.plan, NULL, &error), bad, "info", NULL, NULL);
  info.struct_size = 8;
  CHECK_ERROR(treeattn_metal_plan_get_info(f.h.plan, &info, &error), bad, "struct_size", "8", NULL);
  treeattn_metal_run_args run = f.m.run;
  run.struct_size = 16;
  refused(&f, &run, bad, "struct_size", "16", NULL);
  CHECK_OK(treeattn_metal_create(NULL, &metal, &error)); /* the system's own device */
  treeattn_metal_destroy(metal);
  treeattn_metal_destroy(NULL);
  fixture_free(&f);
}

static void test_writing_a_plan(void **state) {
  (void)state;
  rng r;
  fixture f;
  (void)trial_begin(&r, 182, 0);
  fixture_new(&f, TREEATTN_F32, 32, &r);
  size_t need = f.m.info.plan_bytes;
  guarded memory = guarded_new((need + 15) / 16 * 16, true);
  char have[32], want[32];
  (void)snprintf(have, sizeof have, "%zu", need - 1);
  (void)snprintf(want, sizeof want, "%zu", need);
  CHECK_ERROR(treeattn_metal_plan_write(NULL, memory.data, need, &error), bad, "plan", NULL, NULL);
  CHECK_ERROR(treeattn_metal_plan_write(f.h.plan, NULL, need, &error), bad, "memory", want, NULL);
  CHECK_ERROR(treeattn_metal_plan_write(f.h.plan, memory.data + 8, need, &error), bad, "memory", "16", NULL);
  CHECK_ERROR(treeattn_metal_plan_write(f.h.plan, memory.data, need - 1, &error), small, "memory_bytes", have, want);
  for (size_t n = 0; n < memory.bytes; n++) {
    CHECK(memory.data[n] == 0xff, "byte %zu was written on failure", n);
  }
  CHECK_OK(treeattn_metal_plan_write(f.h.plan, memory.data, need, &error));
  CHECK(guarded_intact(&memory), "bytes around the device part were written");
  guarded_free(&memory);
  fixture_free(&f);
}

static void test_buffers(void **state) {
  (void)state;
  static const char *const names[] = {"q", "k", "v", "out", "lse", "scratch", "plan"};
  static const size_t steps[] = {4, 2, 2, 4, 4, 4, 16};
  rng r;
  fixture f;
  (void)trial_begin(&r, 183, 0);
  fixture_new(&f, TREEATTN_F16, 32, &r);
  size_t needs[] = {f.h.info.q_bytes,   f.h.info.k_bytes,       f.h.info.v_bytes,   f.h.info.out_bytes,
                    f.h.info.lse_bytes, f.m.info.scratch_bytes, f.m.info.plan_bytes};
  treeattn_metal_run_args run = f.m.run;
  treeattn_metal_buffer *buffers[] = {&run.q, &run.k, &run.v, &run.out, &run.lse, &run.scratch, &run.plan};
  for (int n = 0; n < 7; n++) {
    treeattn_metal_buffer kept = *buffers[n];
    char need[32], have[32];
    (void)snprintf(need, sizeof need, "%zu", needs[n]);
    (void)snprintf(have, sizeof have, "%zu", needs[n] - steps[n]);
    if (n != 4) { /* lse is optional */
      buffers[n]->buffer = NULL;
      refused(&f, &run, bad, names[n], "NULL", n == 6 ? NULL : need);
    }
    *buffers[n] = kept;
    if (n < 6) { /* of the plan, what lies there would be no header */
      buffers[n]->offset += steps[n];
      refused(&f, &run, small, names[n], have, need);
    }
    buffers[n]->offset = 1 << 30;
    refused(&f, &run, small, names[n], "0", n == 6 ? NULL : need);
    *buffers[n] = kept;
    buffers[n]->offset += 1;
    refused(&f, &run, bad, names[n], "offset", NULL);
    *buffers[n] = kept;
  }
  fixture_free(&f);
}

static void test_overlaps(void **state) {
  (void)state;
  rng r;
  fixture f;
  (void)trial_begin(&r, 184, 0);
  fixture_new(&f, TREEATTN_F32, 32, &r);
  size_t total = f.h.info.q_bytes + f.h.info.k_bytes + f.h.info.out_bytes + f.m.info.scratch_bytes;
  void *shared = device_buffer(metal_device_of_tests(), total);
  treeattn_metal_run_args run = f.m.run;
  run.q = (treeattn_metal_buffer){shared, 0};
  run.out = (treeattn_metal_buffer){shared, f.h.info.q_bytes - 4};
  refused(&f, &run, bad, "out", "q", "overlap");
  run.out.offset += 4;
  CHECK_OK(treeattn_metal_attend(metal_of_tests(), f.h.plan, &run, &error));
  run.k = (treeattn_metal_buffer){shared, f.h.info.q_bytes + f.h.info.out_bytes - 4};
  refused(&f, &run, bad, "out", "k", "overlap");
  run.k = f.m.run.k;
  run.out = f.m.run.out;
  run.scratch = (treeattn_metal_buffer){shared, 0};
  refused(&f, &run, bad, "scratch", "q", "overlap");
  run = f.m.run;
  run.lse = run.out;
  refused(&f, &run, bad, "out", "lse", "overlap");
  run = f.m.run;
  run.v = run.k; /* inputs may */
  CHECK_OK(treeattn_metal_attend(metal_of_tests(), f.h.plan, &run, &error));
  device_release(shared);
  fixture_free(&f);
}

static void test_plans_and_sinks(void **state) {
  (void)state;
  rng r;
  fixture f, other;
  (void)trial_begin(&r, 185, 0);
  fixture_new(&f, TREEATTN_F16, 32, &r);
  fixture_new(&other, TREEATTN_F16, 64, &r);
  treeattn_metal_run_args run = f.m.run;
  run.plan = other.m.run.plan;
  refused(&f, &run, bad, "plan", "this plan", NULL);
  run.plan = f.m.run.q;
  run.plan.offset = 0;
  refused(&f, &run, bad, "plan", "this plan", NULL);
  void *hidden = device_private_buffer(metal_device_of_tests(), f.m.info.plan_bytes);
  run.plan = (treeattn_metal_buffer){hidden, 0};
  refused(&f, &run, bad, "plan", "shared", NULL);
  device_release(hidden);
  run = f.m.run;
  run.sinks_bytes = 15;
  refused(&f, &run, small, "sinks_bytes", "15", "16");
  float sinks[4] = {0.0f, 1.0f, NAN, 2.0f};
  run = f.m.run;
  run.sinks = sinks;
  refused(&f, &run, TREEATTN_ERROR_INVALID_VALUE, "sinks[2]", "nan", NULL);
  sinks[2] = INFINITY;
  refused(&f, &run, TREEATTN_ERROR_INVALID_VALUE, "sinks[2]", "inf", NULL);
  fixture_free(&f);
  fixture_free(&other);
}

static void test_many_heads(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 186, 0);
  problem p = problem_new(1025, 1, 8, 0, TREEATTN_F16);
  (void)problem_add_tree(&p, 3, 1, TREE_CHAIN, 1.0f, &r);
  layout how = LAYOUT_INIT;
  how.isa = TREEATTN_ISA_SCALAR;
  float *expected = calloc(1025 * 8, sizeof *expected), *out = calloc(1025 * 8, sizeof *out);
  harness_once(&p, &how, expected, NULL);
  metal_once(&p, &how, out, NULL, &r);
  CHECK_SAME_BITS("1025 heads", out, expected, 1025, 8);
  problem_set_sinks(&p, &r);
  harness h;
  metal_buffers m;
  harness_build(&h, &p, &how);
  metal_buffers_new(&m, &h, &r);
  CHECK_ERROR(treeattn_metal_attend(metal_of_tests(), h.plan, &m.run, &error), TREEATTN_ERROR_UNSUPPORTED, "num_heads",
              "1025", "1024");
  metal_buffers_free(&m);
  harness_free(&h);
  free(expected);
  free(out);
  problem_free(&p);
}

/* In the caller's command buffer and encoder: nothing runs before it is committed, and the bits are the same. */
static void test_targets(void **state) {
  (void)state;
  rng r;
  fixture f;
  (void)trial_begin(&r, 187, 0);
  fixture_new(&f, TREEATTN_BF16, 48, &r);
  size_t count = 6 * 4 * 48;
  float *own = calloc(count, sizeof *own), *out = calloc(count, sizeof *out);
  CHECK_OK(treeattn_metal_attend(metal_of_tests(), f.h.plan, &f.m.run, &error));
  metal_buffers_read(&f.m, &f.h, own, NULL);
  for (int with_encoder = 0; with_encoder < 2; with_encoder++) {
    treeattn_metal_run_args run = f.m.run;
    metal_buffers_clear(&f.m);
    device_commands commands = device_commands_begin(metal_device_of_tests());
    run.target.command_buffer = commands.command_buffer;
    if (with_encoder != 0) {
      device_commands_open_encoder(&commands);
      run.target.encoder = commands.encoder;
    }
    CHECK_OK(treeattn_metal_attend(metal_of_tests(), f.h.plan, &run, &error));
    metal_buffers_read(&f.m, &f.h, out, NULL);
    for (size_t n = 0; n < count; n++) {
      CHECK(out[n] != out[n], "element %zu was written before the commands were committed", n);
    }
    char message[512];
    CHECK(device_commands_finish(&commands, message, sizeof message) != 0, "the commands failed: %s", message);
    metal_buffers_read(&f.m, &f.h, out, NULL);
    CHECK_SAME_BITS("commands of the caller", out, own, 24, 48);
  }
  free(own);
  free(out);
  fixture_free(&f);
}

/* No rows: nothing is encoded. Rows that see nothing: zeros. */
static void test_nothing_to_do(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 188, 0);
  problem p = problem_new(2, 1, 16, 0, TREEATTN_F16);
  (void)problem_add_tree(&p, 5, 0, TREE_CHAIN, 1.0f, &r);
  float out[32], lse[2];
  layout how = LAYOUT_INIT;
  metal_once(&p, &how, out, lse, &r);
  problem_free(&p);
  p = problem_new(2, 1, 16, 0, TREEATTN_F16);
  (void)problem_add_tree(&p, 0, 1, TREE_CHAIN, 1.0f, &r);
  how.encoding = TREEATTN_MASK_DENSE_BOOL;
  harness h;
  metal_buffers m;
  harness_build(&h, &p, &how);
  h.masks[0].data[0] = 0;
  treeattn_plan_destroy(h.plan);
  CHECK_OK(treeattn_plan_create(&h.args, &h.plan, &error));
  metal_buffers_new(&m, &h, &r);
  CHECK_OK(treeattn_metal_attend(metal_of_tests(), h.plan, &m.run, &error));
  metal_buffers_read(&m, &h, out, lse);
  for (int n = 0; n < 32; n++) {
    CHECK(out[n] == 0.0f && lse[n / 16] == -INFINITY, "a row that sees nothing gives %g, lse %g", (double)out[n],
          (double)lse[n / 16]);
  }
  metal_buffers_free(&m);
  harness_free(&h);
  problem_free(&p);
}

/* Strides so large that elements of q, k, v, out and lse lie beyond 2^31, their bytes beyond 2^32. */
static void test_offsets_have_64_bits(void **state) {
  (void)state;
  enum { HEADS = 2, DIM = 8, SLOTS = 3, NODES = 2 };
  const int64_t far = (INT64_C(1) << 31) + 16; /* elements; twice that is beyond 2^32 */
  float q[HEADS][NODES][DIM], k[SLOTS][DIM], v[SLOTS][DIM], expected[NODES][HEADS][DIM], lse[NODES][HEADS];
  for (int n = 0; n < HEADS * NODES * DIM; n++) {
    (&q[0][0][0])[n] = fill_value((uint32_t)n, 1);
  }
  for (int n = 0; n < SLOTS * DIM; n++) {
    (&k[0][0])[n] = fill_value((uint32_t)n, 2);
    (&v[0][0])[n] = fill_value((uint32_t)n, 3);
  }
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = NODES;
  request.prefix_len = SLOTS - NODES;
  treeattn_plan_args args = TREEATTN_PLAN_ARGS_INIT;
  args.requests = &request;
  args.num_requests = 1;
  args.request_bytes = sizeof request;
  args.num_heads = HEADS;
  args.num_kv_heads = 1;
  args.head_dim = DIM;
  args.kv_dtype = TREEATTN_F32;
  args.kv_capacity = SLOTS;
  args.scale = 0.5f;
  attend_simply(&args, q, k, v, NULL, &expected[0][0][0], &lse[0][0]);
  args.q_stride_head = args.k_stride_slot = args.v_stride_slot = args.out_stride_row = args.lse_stride_row = far;
  treeattn_plan *plan = NULL;
  treeattn_metal_plan_info info = TREEATTN_METAL_PLAN_INFO_INIT;
  CHECK_OK(treeattn_plan_create(&args, &plan, &error));
  const treeattn_plan_info sizes = plan_info(plan);
  CHECK_OK(treeattn_metal_plan_get_info(plan, &info, &error));
  void *device = metal_device_of_tests();
  treeattn_metal_run_args run = TREEATTN_METAL_RUN_ARGS_INIT;
  treeattn_metal_buffer *buffers[] = {&run.q, &run.k, &run.v, &run.out, &run.lse, &run.plan, &run.scratch};
  const size_t bytes[] = {sizes.q_bytes,   sizes.k_bytes,   sizes.v_bytes,     sizes.out_bytes,
                          sizes.lse_bytes, info.plan_bytes, info.scratch_bytes};
  for (int n = 0; n < 7; n++) {
    buffers[n]->buffer = device_untouched_buffer(device, bytes[n]);
    if (buffers[n]->buffer == NULL) {
      print_message("no buffer of %zu bytes\n", bytes[n]);
      for (int made = 0; made < n; made++) {
        device_release(buffers[made]->buffer);
      }
      treeattn_plan_destroy(plan);
      skip();
    }
  }
  for (int h = 0; h < HEADS; h++) {
    memcpy(device_contents(run.q.buffer) + (size_t)(h * far) * 4, q[h], sizeof q[h]);
  }
  for (int slot = 0; slot < SLOTS; slot++) {
    memcpy(device_contents(run.k.buffer) + (size_t)(slot * far) * 4, k[slot], sizeof k[slot]);
    memcpy(device_contents(run.v.buffer) + (size_t)(slot * far) * 4, v[slot], sizeof v[slot]);
  }
  CHECK_OK(treeattn_metal_plan_write(plan, device_contents(run.plan.buffer), info.plan_bytes, &error));
  CHECK_OK(treeattn_metal_attend(metal_of_tests(), plan, &run, &error));
  for (int i = 0; i < NODES; i++) {
    const float *out = (const float *)(void *)(device_contents(run.out.buffer) + (size_t)(i * far) * 4);
    CHECK_SAME_BITS("far apart", out, &expected[i][0][0], HEADS, DIM);
    CHECK_SAME_BITS("lse far apart", (const float *)(void *)(device_contents(run.lse.buffer) + (size_t)(i * far) * 4),
                    lse[i], 1, HEADS);
  }
  for (int n = 0; n < 7; n++) {
    device_release(buffers[n]->buffer);
  }
  treeattn_plan_destroy(plan);
}

#ifndef __APPLE__
/* One pipeline for each pass, types and dimensions; dispatches as the header says; the text has no files to look for. */
static void test_pipelines_are_kept(void **state) {
  (void)state;
  rng r;
  fixture f;
  (void)trial_begin(&r, 189, 0);
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  treeattn_metal *metal = NULL;
  CHECK_OK(treeattn_metal_create(metal_device_of_tests(), &metal, &error));
  for (int again = 0; again < 2; again++) {
    for (int n = 0; n < 6; n++) {
      fixture_new(&f, dtypes[n % 3], n < 3 ? 32 : 64, &r);
      long pipelines = standin_pipelines(), dispatches = standin_dispatches();
      for (int run = 0; run < 3; run++) {
        CHECK_OK(treeattn_metal_attend(metal, f.h.plan, &f.m.run, &error));
      }
      CHECK(standin_pipelines() - pipelines == (again == 0 ? 2 : 0), "%ld pipelines were built in pass %d",
            standin_pipelines() - pipelines, again);
      CHECK(standin_dispatches() - dispatches == 6, "%ld dispatches for three runs", standin_dispatches() - dispatches);
      fixture_free(&f);
    }
  }
  treeattn_metal_destroy(metal);
  const char *text = standin_last_source();
  CHECK(strstr(text, "kernel void treeattn_attend(") != NULL && strstr(text, "kernel void treeattn_combine(") != NULL,
        "a kernel is missing in the embedded text");
  CHECK(strstr(text, "#include \"") == NULL, "the embedded text includes a file");
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_missing_arguments),
      cmocka_unit_test(test_writing_a_plan),
      cmocka_unit_test(test_buffers),
      cmocka_unit_test(test_overlaps),
      cmocka_unit_test(test_plans_and_sinks),
      cmocka_unit_test(test_many_heads),
      cmocka_unit_test(test_targets),
      cmocka_unit_test(test_nothing_to_do),
      cmocka_unit_test(test_offsets_have_64_bits),
#ifndef __APPLE__
      cmocka_unit_test(test_pipelines_are_kept),
#endif
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  metal_close();
  return failed;
}
