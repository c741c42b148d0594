/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: a wrong argument is not refused with a message, an error writes output or spoils the context, a captured graph does not
 * follow the image. */
#include "support.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "cuda/image.h"

#define CUDA_OK(call)                                                                                \
  do {                                                                                               \
    const cudaError_t code = (call);                                                                 \
    CHECK(code == cudaSuccess, "%s: CUDA error %d: %s", #call, (int)code, cudaGetErrorString(code)); \
  } while (0)

typedef struct fixture {
  problem p;
  harness h;
  gpu_case g;
} fixture;

static void fixture_open(fixture *f, treeattn_mode mode, int prefix, int nodes, rng *r) {
  const layout how = LAYOUT_INIT;
  gpu_options options = {.mode = mode, .block_rows = 64};
  f->p = problem_new(8, 2, 64, 0, TREEATTN_F16);
  (void)problem_add_tree(&f->p, prefix, nodes, TREE_RANDOM, 2.0f, r);
  problem_set_sinks(&f->p, r);
  harness_build(&f->h, &f->p, &how);
  gpu_build(&f->g, &f->h, &options);
}

static void fixture_close(fixture *f) {
  gpu_free(&f->g);
  harness_free(&f->h);
  problem_free(&f->p);
}

static void check_untouched(const gpu_case *g, const char *field) {
  const device_buffer *written[] = {&g->out, &g->lse};
  for (int n = 0; n < 2; n++) {
    unsigned char *copy = malloc(written[n]->bytes);
    td_download(copy, written[n]->data, written[n]->bytes);
    for (size_t k = 0; k < written[n]->bytes; k++) {
      CHECK(copy[k] == 0xab, "byte %zu of %s was written although %s was refused", k, n == 0 ? "out" : "lse", field);
    }
    free(copy);
  }
}

static void expect_refusal(gpu_case *g, treeattn_cuda_run_args run, treeattn_status expected, const char *field,
                           const char *more) {
  td_fill(&g->out, 0xab);
  td_fill(&g->lse, 0xab);
  CHECK_ERROR(treeattn_cuda_attend(g->plan, &g->options, &run, &error), expected, field, more, NULL);
  CHECK(treeattn_cuda_attend(g->plan, &g->options, &run, NULL) == expected, "another status without an error to fill");
  td_sync();
  check_untouched(g, field);
}

/* What the caller does after a refusal still works. */
static void expect_usable(gpu_case *g) {
  CHECK(cudaGetLastError() == cudaSuccess, "a refusal left an error behind for the caller's next call");
  gpu_run(g);
}

static void test_buffers(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  static const treeattn_mode modes[] = {TREEATTN_MODE_EXACT, TREEATTN_MODE_FAST};
  for (int m = 0; m < 2; m++) {
    rng r;
    (void)trial_begin(&r, 241, m);
    fixture f;
    fixture_open(&f, modes[m], 700, 9, &r);
    gpu_case *g = &f.g;
    treeattn_cuda_run_args run = g->run;
    struct {
      const char *name, *bytes_name;
      size_t *bytes;
      const void **data;
      size_t alignment;
    } fields[] = {{"q", "q_bytes", &run.q_bytes, &run.q, 4},
                  {"k", "k_bytes", &run.k_bytes, &run.k, 16},
                  {"v", "v_bytes", &run.v_bytes, &run.v, 16},
                  {"sinks", "sinks_bytes", &run.sinks_bytes, (const void **)&run.sinks, 4},
                  {"image", "image_bytes", &run.image_bytes, &run.image, 16},
                  {"out", "out_bytes", &run.out_bytes, (const void **)&run.out, 4},
                  {"lse", "lse_bytes", &run.lse_bytes, (const void **)&run.lse, 4},
                  {"scratch", "scratch_bytes", &run.scratch_bytes, (const void **)&run.scratch, 256}};
    void *host = malloc(1 << 20);
    for (size_t n = 0; n < sizeof fields / sizeof fields[0]; n++) {
      if (strcmp(fields[n].name, "scratch") == 0 && g->needs.scratch_bytes == 0) {
        continue;
      }
      run = g->run;
      const size_t need = *fields[n].bytes;
      char text[32];
      (void)snprintf(text, sizeof text, "%zu", need);
      *fields[n].bytes = need - 1;
      expect_refusal(g, run, TREEATTN_ERROR_BUFFER_TOO_SMALL, fields[n].bytes_name, text);
      *fields[n].bytes = 0;
      expect_refusal(g, run, TREEATTN_ERROR_BUFFER_TOO_SMALL, fields[n].bytes_name, text);
      run = g->run;
      *fields[n].data = (const unsigned char *)*fields[n].data + fields[n].alignment / 2;
      *fields[n].bytes += 1024;
      expect_refusal(g, run, TREEATTN_ERROR_INVALID_ARGUMENT, fields[n].name, "aligned");
      run = g->run;
      *fields[n].data = (const void *)(((uintptr_t)host + 255) / 256 * 256);
      expect_refusal(g, run, TREEATTN_ERROR_INVALID_ARGUMENT, fields[n].name, "device memory");
      if (strcmp(fields[n].name, "sinks") != 0 && strcmp(fields[n].name, "lse") != 0) {
        run = g->run;
        *fields[n].data = NULL;
        expect_refusal(g, run, TREEATTN_ERROR_INVALID_ARGUMENT, fields[n].name, "NULL");
      }
      expect_usable(g);
    }
    int32_t on_host = 5;
    run = g->run;
    run.status = &on_host;
    expect_refusal(g, run, TREEATTN_ERROR_INVALID_ARGUMENT, "status", "device memory");
    run = g->run;
    run.out = (void *)(uintptr_t)g->run.q;
    expect_refusal(g, run, TREEATTN_ERROR_INVALID_ARGUMENT, "overlap", "q");
    run = g->run;
    run.lse = g->run.out;
    expect_refusal(g, run, TREEATTN_ERROR_INVALID_ARGUMENT, "overlap", NULL);
    run = g->run;
    run.struct_size -= 8;
    expect_refusal(g, run, TREEATTN_ERROR_INVALID_ARGUMENT, "struct_size", NULL);
    expect_usable(g);
    free(host);
    fixture_close(&f);
  }
}

static void test_plans_and_options(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  rng r;
  (void)trial_begin(&r, 242, 0);
  fixture f;
  fixture_open(&f, TREEATTN_MODE_FAST, 700, 9, &r);
  gpu_case *g = &f.g;
  treeattn_cuda_needs needs = TREEATTN_CUDA_NEEDS_INIT;
  /* A plan of the other back end, each way. */
  CHECK_ERROR(treeattn_cuda_attend(f.h.plan, &g->options, &g->run, &error), TREEATTN_ERROR_UNSUPPORTED, "backend", NULL,
              NULL);
  CHECK_ERROR(treeattn_cuda_get_needs(f.h.plan, NULL, &needs, &error), TREEATTN_ERROR_UNSUPPORTED, "backend", NULL,
              NULL);
  CHECK_ERROR(treeattn_attend(g->plan, &f.h.run, &error), TREEATTN_ERROR_UNSUPPORTED, "backend", NULL, NULL);
  CHECK_ERROR(treeattn_cuda_attend(NULL, NULL, &g->run, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "plan", NULL, NULL);
  CHECK_ERROR(treeattn_cuda_attend(g->plan, NULL, NULL, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "run", NULL, NULL);
  CHECK_ERROR(treeattn_cuda_get_needs(g->plan, NULL, NULL, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "needs", NULL,
              NULL);
  treeattn_cuda_options options = g->options;
  options.block_rows = 96;
  CHECK_ERROR(treeattn_cuda_get_needs(g->plan, &options, &needs, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "block_rows",
              "96", NULL);
  options = g->options;
  options.num_multiprocessors = -3;
  CHECK_ERROR(treeattn_cuda_get_needs(g->plan, &options, &needs, &error), TREEATTN_ERROR_INVALID_ARGUMENT,
              "num_multiprocessors", "-3", NULL);
  options = g->options;
  options.struct_size = 4;
  CHECK_ERROR(treeattn_cuda_get_needs(g->plan, &options, &needs, &error), TREEATTN_ERROR_INVALID_ARGUMENT,
              "struct_size", "4", NULL);
  unsigned char *image = aligned_alloc(16, (g->needs.image_bytes + 31) / 16 * 16);
  memset(image, 0xa5, g->needs.image_bytes);
  CHECK_ERROR(treeattn_cuda_write_image(g->plan, &g->options, image, g->needs.image_bytes - 1, &error),
              TREEATTN_ERROR_BUFFER_TOO_SMALL, "image_bytes", NULL, NULL);
  CHECK_ERROR(treeattn_cuda_write_image(g->plan, &g->options, image + 8, g->needs.image_bytes, &error),
              TREEATTN_ERROR_INVALID_ARGUMENT, "aligned", NULL, NULL);
  CHECK_ERROR(treeattn_cuda_write_image(g->plan, &g->options, NULL, g->needs.image_bytes, &error),
              TREEATTN_ERROR_INVALID_ARGUMENT, "image", NULL, NULL);
  for (size_t n = 0; n < g->needs.image_bytes; n++) {
    CHECK(image[n] == 0xa5, "byte %zu of a refused image was written", n);
  }
  free(image);
  /* Strides that 16-byte loads cannot follow, and dimensions that the fast mode does not serve. */
  treeattn_plan *plan = NULL;
  treeattn_plan_args args = g->args;
  args.k_stride_slot = 68;
  CHECK_OK(treeattn_plan_create(&args, &plan, &error));
  treeattn_cuda_run_args run = g->run;
  run.k_bytes += (size_t)1 << 40;
  treeattn_status status = TREEATTN_OK;
  treeattn_error message = {TREEATTN_OK, ""};
  status = treeattn_cuda_attend(plan, &g->options, &run, &message);
  check_error(__FILE__, __LINE__, status, TREEATTN_ERROR_INVALID_ARGUMENT, &message, "k_stride_slot", "68", NULL);
  treeattn_plan_destroy(plan);
  args = g->args;
  args.head_dim = 80;
  args.head_dim_v = 80;
  args.q_stride_head = args.q_stride_row = args.out_stride_head = args.out_stride_row = 0;
  CHECK_OK(treeattn_plan_create(&args, &plan, &error));
  CHECK_ERROR(treeattn_cuda_get_needs(plan, &g->options, &needs, &error), TREEATTN_ERROR_UNSUPPORTED, "head_dim", "80",
              NULL);
  treeattn_plan_destroy(plan);
  args = g->args;
  args.kv_dtype = TREEATTN_F32;
  CHECK_ERROR(treeattn_plan_create(&args, &plan, &error), TREEATTN_ERROR_UNSUPPORTED, "mode", "f32", NULL);
  expect_usable(g);
  fixture_close(&f);
}

static void test_devices(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  int32_t count = 0;
  CHECK_OK(treeattn_cuda_device_count(&count, &error));
  CHECK(count >= 1, "%d devices", (int)count);
  treeattn_cuda_device device = TREEATTN_CUDA_DEVICE_INIT;
  for (int32_t n = 0; n < count; n++) {
    CHECK_OK(treeattn_cuda_get_device(n, &device, &error));
    CHECK(device.name[0] != '\0' && device.num_multiprocessors > 0 && device.memory_bytes > 0, "device %d has no name",
          (int)n);
    CHECK(device.usable == 1 || device.reason[0] != '\0', "device %d is not usable and does not say why", (int)n);
  }
  CHECK_ERROR(treeattn_cuda_get_device(count, &device, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "index", NULL, NULL);
  CHECK_ERROR(treeattn_cuda_get_device(-1, &device, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "index", "-1", NULL);
  CHECK_ERROR(treeattn_cuda_get_device(0, NULL, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "device", NULL, NULL);
  CHECK_ERROR(treeattn_cuda_device_count(NULL, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "count", NULL, NULL);
}

/* ---- graphs ------------------------------------------------------------------------------------------------ */

typedef struct captured {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
} captured;

static void capture(captured *c, gpu_case *g) {
  CUDA_OK(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
  CUDA_OK(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeGlobal));
  treeattn_cuda_run_args run = g->run;
  run.stream = c->stream;
  CHECK_OK(treeattn_cuda_attend(g->plan, &g->options, &run, &error));
  CUDA_OK(cudaStreamEndCapture(c->stream, &c->graph));
  CUDA_OK(cudaGraphInstantiate(&c->exec, c->graph, 0));
}

static void replay(const captured *c) {
  CUDA_OK(cudaDeviceSynchronize());
  CUDA_OK(cudaGraphLaunch(c->exec, c->stream));
  CUDA_OK(cudaStreamSynchronize(c->stream));
}

static void release(captured *c) {
  CUDA_OK(cudaGraphExecDestroy(c->exec));
  CUDA_OK(cudaGraphDestroy(c->graph));
  CUDA_OK(cudaStreamDestroy(c->stream));
}

static int32_t status_word(const gpu_case *g) {
  int32_t status = -1;
  td_download(&status, g->status.data, sizeof status);
  return status;
}

/*
 * One capture over buffers for the largest step; then steps with other lengths and trees, whose images replace the old one. A step has
 * the bits that it has when it is run by itself. The number of nodes stays: it is part of the strides of Q.
 */
static void test_graph_follows_the_image(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  enum { NODES = 24, CAPACITY = 2400 };
  for (int m = 0; m < 2; m++) {
    rng r;
    (void)trial_begin(&r, 243, m);
    const treeattn_mode mode = m == 0 ? TREEATTN_MODE_EXACT : TREEATTN_MODE_FAST;
    const gpu_options options = {.mode = mode, .block_rows = 64};
    problem big = problem_new(8, 2, 64, 0, TREEATTN_F16);
    (void)problem_add_tree(&big, CAPACITY - NODES, NODES, TREE_CHAIN, 2.0f, &r);
    const layout plain = LAYOUT_INIT;
    harness big_h;
    gpu_case g;
    harness_build(&big_h, &big, &plain);
    gpu_build(&g, &big_h, &options);
    /* Steps with longer tails than the first one's must fit as well. */
    td_free(&g.image);
    td_free(&g.scratch);
    g.image = td_alloc(g.needs.image_bytes * 2 + 65536);
    g.scratch = td_alloc(g.needs.scratch_bytes * 2 + 65536);
    g.run.image = g.image.data;
    g.run.image_bytes = g.image.bytes;
    g.run.scratch = g.scratch.data;
    g.run.scratch_bytes = g.scratch.bytes;
    td_upload(g.image.data, g.image_host, g.needs.image_bytes);
    captured c;
    capture(&c, &g);
    replay(&c);
    CHECK(status_word(&g) == 0, "status %d after the first replay", (int)status_word(&g));
    const int prefixes[] = {CAPACITY - NODES, 0, 1, 511, 512, 1300, 2000};
    const int64_t rows = (int64_t)NODES * big.num_heads;
    float *expected = calloc((size_t)(rows * big.head_dim_v), sizeof(float)),
          *actual = calloc((size_t)(rows * big.head_dim_v), sizeof(float));
    for (size_t k = 0; k < sizeof prefixes / sizeof prefixes[0]; k++) {
      problem p = problem_new(8, 2, 64, 0, TREEATTN_F16);
      (void)problem_add_tree(&p, prefixes[k], NODES, (tree_shape)rng_below(&r, NUM_TREE_SHAPES), 2.0f, &r);
      layout how = LAYOUT_INIT;
      how.extra_slots = CAPACITY - NODES - prefixes[k]; /* the same capacity, so the same strides */
      how.poison = NAN;
      harness h;
      gpu_case one;
      harness_build(&h, &p, &how);
      gpu_build(&one, &h, &options);
      gpu_run(&one);
      gpu_read(&one, expected, NULL);
      CHECK(one.needs.image_bytes <= g.image.bytes && one.needs.scratch_bytes <= g.scratch.bytes,
            "step %zu does not fit", k);
      td_upload(g.image.data, one.image_host, one.needs.image_bytes);
      CUDA_OK(cudaMemcpy(g.q.data, one.q.data, one.q.bytes, cudaMemcpyDeviceToDevice));
      CUDA_OK(cudaMemcpy(g.k.data, one.k.data, one.k.bytes, cudaMemcpyDeviceToDevice));
      CUDA_OK(cudaMemcpy(g.v.data, one.v.data, one.v.bytes, cudaMemcpyDeviceToDevice));
      td_fill(&g.out, 0xff);
      td_fill(&g.status, 0xff);
      replay(&c);
      CHECK(status_word(&g) == 0, "status %d with prefix %d", (int)status_word(&g), prefixes[k]);
      gpu_read(&g, actual, NULL);
      CHECK_SAME_BITS("a replay with another image", actual, expected, rows, p.head_dim_v);
      gpu_free(&one);
      harness_free(&h);
      problem_free(&p);
    }
    free(expected);
    free(actual);
    release(&c);
    gpu_free(&g);
    harness_free(&big_h);
    problem_free(&big);
  }
}

static void expect_status_word(gpu_case *g, const captured *c, const void *image, size_t bytes,
                               treeattn_status expected, const char *what) {
  td_fill(&g->out, 0xab);
  td_fill(&g->lse, 0xab);
  td_fill(&g->status, 0xff);
  td_upload(g->image.data, image, bytes);
  replay(c);
  CHECK(status_word(g) == (int32_t)expected, "%s: the status word is %d instead of %d", what, (int)status_word(g),
        (int)expected);
  check_untouched(g, what);
}

/* Images that the captured run must refuse on the device. */
static void test_graph_refuses_images(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int m = 0; m < 2; m++) {
    rng r;
    (void)trial_begin(&r, 244, m);
    const treeattn_mode mode = m == 0 ? TREEATTN_MODE_EXACT : TREEATTN_MODE_FAST;
    fixture f;
    fixture_open(&f, mode, 1600, 9, &r);
    gpu_case *g = &f.g;
    td_free(&g->image);
    g->image = td_alloc_copy(g->image_host, g->needs.image_bytes);
    device_buffer roomy = td_alloc(g->needs.image_bytes + (1 << 20));
    td_free(&g->image);
    g->image = roomy;
    g->run.image = g->image.data;
    g->run.image_bytes = g->image.bytes;
    td_upload(g->image.data, g->image_host, g->needs.image_bytes);
    captured c;
    capture(&c, g);
    replay(&c);
    CHECK(status_word(g) == 0, "status %d before any change", (int)status_word(g));
    /* Another shape: half as many KV heads; another dimension; no image at all. */
    const layout plain = LAYOUT_INIT;
    const gpu_options options = {.mode = mode, .block_rows = 64};
    const int shapes[][3] = {{8, 1, 64}, {4, 2, 64}, {8, 2, 128}};
    for (size_t k = 0; k < 3; k++) {
      problem p = problem_new(shapes[k][0], shapes[k][1], shapes[k][2], 0, TREEATTN_F16);
      (void)problem_add_tree(&p, 1600, 9, TREE_RANDOM, 1.0f, &r);
      harness h;
      gpu_case other;
      harness_build(&h, &p, &plain);
      gpu_build(&other, &h, &options);
      expect_status_word(g, &c, other.image_host, other.needs.image_bytes, TREEATTN_ERROR_INVALID_ARGUMENT,
                         "another shape");
      gpu_free(&other);
      harness_free(&h);
      problem_free(&p);
    }
    unsigned char *zeros = calloc(1, g->needs.image_bytes);
    expect_status_word(g, &c, zeros, g->needs.image_bytes, TREEATTN_ERROR_INVALID_ARGUMENT, "zeros");
    free(zeros);
    /* The same shape with so long a cache that the scratch does not hold its parts. */
    problem p = problem_new(8, 2, 64, 0, TREEATTN_F16);
    (void)problem_add_tree(&p, 16000, 9, TREE_RANDOM, 1.0f, &r);
    harness h;
    gpu_case other;
    harness_build(&h, &p, &plain);
    gpu_build(&other, &h, &options);
    CHECK(other.needs.scratch_bytes > g->scratch.bytes, "the longer step needs no more scratch: %zu",
          other.needs.scratch_bytes);
    expect_status_word(g, &c, other.image_host, other.needs.image_bytes, TREEATTN_ERROR_BUFFER_TOO_SMALL,
                       "too little scratch");
    gpu_free(&other);
    harness_free(&h);
    problem_free(&p);
    /* More rows than q, out and lse hold, although everything else fits. */
    p = problem_new(8, 2, 64, 0, TREEATTN_F16);
    (void)problem_add_tree(&p, 100, 10, TREE_RANDOM, 1.0f, &r);
    harness_build(&h, &p, &plain);
    gpu_build(&other, &h, &options);
    CHECK(other.needs.scratch_bytes <= g->scratch.bytes && other.needs.image_bytes <= g->image.bytes,
          "the step with more rows does not fit anyway: %zu, %zu", other.needs.scratch_bytes, other.needs.image_bytes);
    expect_status_word(g, &c, other.image_host, other.needs.image_bytes, TREEATTN_ERROR_BUFFER_TOO_SMALL,
                       "too many rows");
    gpu_free(&other);
    harness_free(&h);
    problem_free(&p);
    /* An image that says that it goes on behind its buffer. */
    unsigned char *longer = malloc(g->needs.image_bytes);
    memcpy(longer, g->image_host, g->needs.image_bytes);
    const uint64_t too_long = g->image.bytes + 16;
    memcpy(longer + offsetof(ta_image_header, image_bytes), &too_long, sizeof too_long);
    expect_status_word(g, &c, longer, g->needs.image_bytes, TREEATTN_ERROR_BUFFER_TOO_SMALL, "too long an image");
    free(longer);
    /* And back. */
    td_upload(g->image.data, g->image_host, g->needs.image_bytes);
    gpu_run(g);
    release(&c);
    fixture_close(&f);
  }
}

/* A plan without rows launches nothing and succeeds. */
static void test_no_rows(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  rng r;
  (void)trial_begin(&r, 245, 0);
  problem p = problem_new(4, 2, 64, 0, TREEATTN_F16);
  (void)problem_add_tree(&p, 100, 0, TREE_CHAIN, 1.0f, &r);
  const layout how = LAYOUT_INIT;
  const gpu_options options = {.mode = TREEATTN_MODE_FAST};
  harness h;
  gpu_case g;
  harness_build(&h, &p, &how);
  gpu_build(&g, &h, &options);
  CHECK_OK(treeattn_cuda_attend(g.plan, &g.options, &g.run, &error));
  td_sync();
  gpu_free(&g);
  harness_free(&h);
  problem_free(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_buffers),
      cmocka_unit_test(test_plans_and_options),
      cmocka_unit_test(test_devices),
      cmocka_unit_test(test_graph_follows_the_image),
      cmocka_unit_test(test_graph_refuses_images),
      cmocka_unit_test(test_no_rows),
  };
  return cmocka_run_group_tests_name("cuda_api", tests, NULL, NULL);
}
