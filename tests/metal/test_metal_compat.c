/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: the one-call operators on Metal part from those on the CPU, in bits or in what they refuse. */
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "metal_harness.h"

typedef struct call {
  treeattn_tree_attention_params tree;
  treeattn_flash_attn_vec_params flash;
  treeattn_tensor cpu[6]; /* q, k, v, mask, output, tmp */
  treeattn_metal_tensor gpu[6];
} call;

enum { Q, K, V, MASK, OUTPUT, TMP, NUM_TENSORS };

static treeattn_status run_tree(const call *c, treeattn_error *error) {
  return treeattn_metal_tree_attention(metal_of_tests(), NULL, &c->tree, &c->gpu[Q], &c->gpu[K], &c->gpu[V],
                                       &c->gpu[MASK], &c->gpu[OUTPUT], &c->gpu[TMP], error);
}

static treeattn_status run_flash(const call *c, treeattn_error *error) {
  return treeattn_metal_flash_attn_vec(metal_of_tests(), NULL, &c->flash, &c->gpu[Q], &c->gpu[K], &c->gpu[V],
                                       &c->gpu[OUTPUT], &c->gpu[TMP], error);
}

/* The same tensors on both sides; the mask is what the window says. */
static void call_new(call *c, const problem *p, int stride_pad, rng *r) {
  const request_data *data = &p->requests[0];
  uint32_t stride = (uint32_t)(data->num_slots + stride_pad);
  memset(c, 0, sizeof *c);
  c->tree = (treeattn_tree_attention_params){(uint32_t)p->num_heads,    (uint32_t)p->num_kv_heads,
                                             (uint32_t)p->head_dim,     (uint32_t)data->num_slots,
                                             (uint32_t)data->num_slots, p->scale,
                                             (uint32_t)data->num_nodes, stride};
  c->flash = (treeattn_flash_attn_vec_params){c->tree.num_heads,  c->tree.num_kv_heads, c->tree.head_dim,
                                              c->tree.kv_seq_len, c->tree.kv_capacity,  p->scale,
                                              c->tree.q_seq_len,  (uint32_t)p->window,  p->softcap};
  size_t rows = (size_t)p->num_heads * (size_t)data->num_nodes, width = (size_t)p->head_dim;
  size_t cache = (size_t)p->num_kv_heads * (size_t)data->num_slots * width * element_bytes(p->kv_dtype);
  size_t bytes[] = {rows * width * 4,
                    cache,
                    cache,
                    (size_t)data->num_nodes * stride * 4,
                    rows * width * 4,
                    treeattn_tmp_buffer_bytes(c->tree.num_heads, c->tree.head_dim, c->tree.q_seq_len)};
  for (int n = 0; n < NUM_TENSORS; n++) {
    treeattn_dtype dtype = n == K || n == V ? p->kv_dtype : TREEATTN_F32;
    c->gpu[n] = (treeattn_metal_tensor){NULL, 4 * (size_t)rng_below(r, 4), dtype};
    c->gpu[n].buffer = device_buffer(metal_device_of_tests(), c->gpu[n].offset + bytes[n]);
    c->cpu[n] = (treeattn_tensor){device_contents(c->gpu[n].buffer) + c->gpu[n].offset, bytes[n], dtype};
  }
  memcpy(c->cpu[Q].data, data->q, bytes[Q]);
  memcpy(c->cpu[K].data, data->k, bytes[K]);
  memcpy(c->cpu[V].data, data->v, bytes[V]);
  uint8_t *sees = calloc((size_t)data->num_nodes * (size_t)data->num_slots, 1);
  tree_visibility(data->parents, data->num_nodes, data->prefix_len, p->window, sees);
  for (int i = 0; i < data->num_nodes; i++) {
    for (int s = 0; s < data->num_slots; s++) {
      ((float *)c->cpu[MASK].data)[(uint32_t)i * stride + (uint32_t)s] =
          sees[i * data->num_slots + s] != 0 ? 0.0f : TREEATTN_MASK_HIDDEN;
    }
  }
  free(sees);
}

static void call_free(call *c) {
  for (int n = 0; n < NUM_TENSORS; n++) {
    device_release(c->gpu[n].buffer);
  }
}

/* Explicit and computed mask on the GPU, and the CPU's operator: the same bytes. */
static void test_explicit_computed_and_cpu(void **state) {
  (void)state;
  static const int dims[] = {128, 256, 512};
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  for (int n = 0; n < trial_count(12, 4); n++) {
    rng r;
    int index = trial_begin(&r, 191, n);
    int num_kv_heads = rng_range(&r, 1, 2);
    problem p =
        problem_new(num_kv_heads * rng_range(&r, 1, 3), num_kv_heads, dims[index % 3], 0, dtypes[index / 3 % 3]);
    p.window = index % 2 == 0 ? 0 : rng_range(&r, 1, 100);
    const request_data *data =
        problem_add_tree(&p, PICK(&r, ((const int[]){0, 31, 63, 505})), rng_range(&r, 1, 10), TREE_CHAIN, 4.0f, &r);
    call c;
    call_new(&c, &p, rng_below(&r, 9), &r);
    size_t bytes = c.cpu[OUTPUT].bytes;
    float *computed = malloc(bytes), *expected = malloc(bytes);
    CHECK_OK(run_flash(&c, &error));
    memcpy(computed, c.cpu[OUTPUT].data, bytes);
    memset(c.cpu[OUTPUT].data, 0xff, bytes);
    CHECK_OK(run_tree(&c, &error));
    CHECK_SAME_BITS("explicit against computed mask", c.cpu[OUTPUT].data, computed, data->num_nodes * p.num_heads,
                    p.head_dim);
    treeattn_tensor output = {expected, bytes, TREEATTN_F32};
    CHECK_OK(treeattn_tree_attention(&c.tree, &c.cpu[Q], &c.cpu[K], &c.cpu[V], &c.cpu[MASK], &output, &c.cpu[TMP], NULL,
                                     &error));
    CHECK_SAME_BITS("the GPU against the CPU", computed, expected, data->num_nodes * p.num_heads, p.head_dim);
    c.flash.softcap = 7.0f;
    CHECK_OK(run_flash(&c, &error));
    CHECK_OK(treeattn_flash_attn_vec(&c.flash, &c.cpu[Q], &c.cpu[K], &c.cpu[V], &output, &c.cpu[TMP], NULL, &error));
    CHECK_SAME_BITS("softcap", c.cpu[OUTPUT].data, expected, data->num_nodes * p.num_heads, p.head_dim);
    free(computed);
    free(expected);
    call_free(&c);
    problem_free(&p);
  }
}

/* What tmp has no room for gets a buffer of its own: keys so far apart that there are more than 32 groups of leaves. */
static void test_scratch_beyond_tmp(void **state) {
  (void)state;
  if (test_quick()) {
    skip(); /* 150 MB */
  }
  rng r;
  (void)trial_begin(&r, 192, 0);
  problem p = problem_new(1, 1, 128, 0, TREEATTN_F16);
  (void)problem_add_tree(&p, 270335, 1, TREE_CHAIN, 4.0f, &r);
  call c;
  call_new(&c, &p, 0, &r);
  float *mask = c.cpu[MASK].data;
  for (int s = 1; s < 270300; s++) {
    mask[s] = -INFINITY;
  }
  float expected[128];
  treeattn_tensor output = {expected, sizeof expected, TREEATTN_F32};
  CHECK_OK(run_tree(&c, &error));
  CHECK_OK(treeattn_tree_attention(&c.tree, &c.cpu[Q], &c.cpu[K], &c.cpu[V], &c.cpu[MASK], &output, &c.cpu[TMP], NULL,
                                   &error));
  CHECK_SAME_BITS("33 groups of leaves", c.cpu[OUTPUT].data, expected, 1, 128);
  call_free(&c);
  problem_free(&p);
}

/* Both operators where the field exists in both; nothing is written, and the CPU's operators refuse alike. */
static void refused(const call *right, call *c, bool tree, bool flash, treeattn_status status, const char *field,
                    const char *value) {
  treeattn_error gpu, cpu;
  for (int which = 0; which < 2; which++) {
    if (!(which == 0 ? tree : flash)) {
      continue;
    }
    CHECK_ERROR(which == 0 ? run_tree(c, &error) : run_flash(c, &error), status, field, value, NULL);
    if (which == 0) {
      (void)run_tree(c, &gpu);
      (void)treeattn_tree_attention(&c->tree, &c->cpu[Q], &c->cpu[K], &c->cpu[V], &c->cpu[MASK], &c->cpu[OUTPUT],
                                    &c->cpu[TMP], NULL, &cpu);
    } else {
      (void)run_flash(c, &gpu);
      (void)treeattn_flash_attn_vec(&c->flash, &c->cpu[Q], &c->cpu[K], &c->cpu[V], &c->cpu[OUTPUT], &c->cpu[TMP], NULL,
                                    &cpu);
    }
    CHECK(strcmp(gpu.message, cpu.message) == 0, "the GPU says \"%s\", the CPU \"%s\"", gpu.message, cpu.message);
  }
  const unsigned char *out = device_contents(right->gpu[OUTPUT].buffer);
  for (size_t n = 0; n < right->gpu[OUTPUT].offset + right->cpu[OUTPUT].bytes; n++) {
    CHECK(out[n] == 0xff, "byte %zu of output was written although %s was refused", n, field);
  }
}

static void test_parameters_are_refused(void **state) {
  (void)state;
  const treeattn_status bad = TREEATTN_ERROR_INVALID_ARGUMENT;
  rng r;
  (void)trial_begin(&r, 193, 0);
  problem p = problem_new(4, 2, 128, 0, TREEATTN_F16);
  (void)problem_add_tree(&p, 17, 3, TREE_CHAIN, 4.0f, &r);
  call right, c;
  call_new(&right, &p, 0, &r);
#define REFUSED(change, tree, flash, field, value)           \
  do {                                                       \
    c = right;                                               \
    change;                                                  \
    refused(&right, &c, tree, flash, bad, (field), (value)); \
  } while (0)
  REFUSED(c.tree.head_dim = c.flash.head_dim = 64, true, true, "head_dim", "64");
  REFUSED(c.tree.num_heads = c.flash.num_heads = 0, true, true, "num_heads", "0");
  REFUSED(c.tree.num_kv_heads = c.flash.num_kv_heads = 0, true, true, "num_kv_heads", "0");
  REFUSED(c.tree.num_heads = c.flash.num_heads = 5, true, true, "num_heads", "5");
  REFUSED(c.tree.kv_seq_len = c.flash.kv_seq_len = 0, true, true, "kv_seq_len", "0");
  REFUSED(c.tree.kv_capacity = c.flash.kv_capacity = 19, true, true, "kv_capacity", "19");
  REFUSED(c.tree.q_seq_len = c.flash.q_seq_len = 0, true, true, "q_seq_len", "0");
  REFUSED(c.tree.mask_stride = 19, true, false, "mask_stride", "19");
  REFUSED(c.flash.q_seq_len = 21, false, true, "q_seq_len", "21");
  REFUSED(c.tree.scale = c.flash.scale = NAN, true, true, "scale", "nan");
  REFUSED(c.flash.softcap = -1.0f, false, true, "softcap", "-1");
  REFUSED(c.gpu[Q].dtype = c.cpu[Q].dtype = TREEATTN_F16, true, true, "q", "f16");
  REFUSED(c.gpu[K].dtype = c.cpu[K].dtype = TREEATTN_F32, true, true, "k", "f32");
  REFUSED(c.gpu[V].dtype = c.cpu[V].dtype = TREEATTN_BF16, true, true, "v", "bf16");
  REFUSED(c.gpu[MASK].dtype = c.cpu[MASK].dtype = TREEATTN_F16, true, false, "mask", "f16");
  REFUSED(c.gpu[OUTPUT].dtype = c.cpu[OUTPUT].dtype = TREEATTN_F16, true, true, "output", "f16");
  REFUSED(c.gpu[TMP].dtype = c.cpu[TMP].dtype = TREEATTN_F16, true, true, "tmp", "f16");
#undef REFUSED
  static const char *const names[] = {"q", "k", "v", "mask", "output", "tmp"};
  for (int n = 0; n < NUM_TENSORS; n++) {
    char have[32];
    c = right;
    c.gpu[n].offset += 4;
    c.cpu[n].bytes -= 4;
    (void)snprintf(have, sizeof have, "have %zu", c.cpu[n].bytes);
    refused(&right, &c, true, n != MASK, TREEATTN_ERROR_BUFFER_TOO_SMALL, names[n], have);
    c = right;
    c.gpu[n].buffer = NULL;
    c.cpu[n].data = NULL;
    c.cpu[n].bytes = 0;
    refused(&right, &c, true, n != MASK, TREEATTN_ERROR_BUFFER_TOO_SMALL, names[n], "have 0");
  }
  c = right;
  CHECK_ERROR(treeattn_metal_tree_attention(NULL, NULL, &c.tree, &c.gpu[Q], &c.gpu[K], &c.gpu[V], &c.gpu[MASK],
                                            &c.gpu[OUTPUT], &c.gpu[TMP], &error),
              bad, "metal", NULL, NULL);
  CHECK_ERROR(treeattn_metal_flash_attn_vec(NULL, NULL, &c.flash, &c.gpu[Q], &c.gpu[K], &c.gpu[V], &c.gpu[OUTPUT],
                                            &c.gpu[TMP], &error),
              bad, "metal", NULL, NULL);
  CHECK_ERROR(treeattn_metal_tree_attention(metal_of_tests(), NULL, NULL, &c.gpu[Q], &c.gpu[K], &c.gpu[V], &c.gpu[MASK],
                                            &c.gpu[OUTPUT], &c.gpu[TMP], &error),
              bad, "params", NULL, NULL);
  CHECK_ERROR(treeattn_metal_tree_attention(metal_of_tests(), NULL, &c.tree, NULL, &c.gpu[K], &c.gpu[V], &c.gpu[MASK],
                                            &c.gpu[OUTPUT], &c.gpu[TMP], &error),
              bad, "q", NULL, NULL);
  call_free(&right);
  problem_free(&p);
}

/* A call encoded into the caller's commands: what it allocated for itself must live until they have run. */
static void test_commands_of_the_caller(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 194, 0);
  problem p = problem_new(4, 2, 128, 0, TREEATTN_F16);
  (void)problem_add_tree(&p, 40, 3, TREE_CHAIN, 4.0f, &r);
  call c;
  call_new(&c, &p, 0, &r);
  float *own = malloc(c.cpu[OUTPUT].bytes);
  CHECK_OK(run_tree(&c, &error));
  memcpy(own, c.cpu[OUTPUT].data, c.cpu[OUTPUT].bytes);
  memset(c.cpu[OUTPUT].data, 0xff, c.cpu[OUTPUT].bytes);
  device_commands commands = device_commands_begin(metal_device_of_tests());
  treeattn_metal_target target = {NULL, commands.command_buffer};
  for (int layer = 0; layer < 2; layer++) { /* twice, with the same tmp */
    CHECK_OK(treeattn_metal_tree_attention(metal_of_tests(), &target, &c.tree, &c.gpu[Q], &c.gpu[K], &c.gpu[V],
                                           &c.gpu[MASK], &c.gpu[OUTPUT], &c.gpu[TMP], &error));
  }
  char message[512];
  CHECK(device_commands_finish(&commands, message, sizeof message) != 0, "the commands failed: %s", message);
  CHECK_SAME_BITS("commands of the caller", c.cpu[OUTPUT].data, own, 12, 128);
  free(own);
  call_free(&c);
  problem_free(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_explicit_computed_and_cpu),
      cmocka_unit_test(test_scratch_beyond_tmp),
      cmocka_unit_test(test_parameters_are_refused),
      cmocka_unit_test(test_commands_of_the_caller),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  metal_close();
  return failed;
}
