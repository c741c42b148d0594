/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: an allocation that fails ends in a crash, a leak or a half-made object. Each allocation of each function fails once. */
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

#include "support/problem.h"

/* The build puts these between the library and the C library. */
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

static int countdown = -1; /* how many more succeed; negative: all */
static int num_calls;

void *__wrap_malloc(size_t size) {
  if (countdown >= 0) {
    num_calls++;
    if (countdown-- == 0) {
      countdown = -1;
      return NULL;
    }
  }
  return __real_malloc(size);
}

typedef struct subject {
  problem p;
  treeattn_plan_args args;
  treeattn_request request;
  treeattn_tensor q, k, v, mask, output, tmp;
} subject;

static treeattn_status try_plan(subject *s, treeattn_error *error) {
  treeattn_plan *plan = (treeattn_plan *)(void *)s;
  treeattn_status status = treeattn_plan_create(&s->args, &plan, error);
  if (status != TREEATTN_OK && plan != NULL) {
    return TREEATTN_ERROR_BACKEND; /* a half-made plan */
  }
  treeattn_plan_destroy(plan);
  return status;
}

static treeattn_status try_pool(subject *s, treeattn_error *error) {
  (void)s;
  treeattn_pool *pool = NULL;
  treeattn_status status = treeattn_pool_create(2, &pool, error);
  treeattn_pool_destroy(pool);
  return status;
}

static treeattn_status try_tree_attention(subject *s, treeattn_error *error) {
  const treeattn_tree_attention_params params = {1, 1, 128, 700, 700, 0.1f, 1, 700};
  return treeattn_tree_attention(&params, &s->q, &s->k, &s->v, &s->mask, &s->output, &s->tmp, NULL, error);
}

static treeattn_status try_flash_attn_vec(subject *s, treeattn_error *error) {
  const treeattn_flash_attn_vec_params params = {1, 1, 128, 700, 700, 0.1f, 1, 0, 0.0f};
  return treeattn_flash_attn_vec(&params, &s->q, &s->k, &s->v, &s->output, &s->tmp, NULL, error);
}

static treeattn_tensor tensor(size_t count) {
  treeattn_tensor t = {calloc(count, sizeof(float)), count * sizeof(float), TREEATTN_F32};
  return t;
}

static void fail_each(const char *name, treeattn_status (*attempt)(subject *, treeattn_error *), subject *s,
                      treeattn_tensor *output) {
  treeattn_error error = {TREEATTN_OK, ""};
  treeattn_status status = attempt(s, &error);
  if (status == TREEATTN_ERROR_UNSUPPORTED) {
    print_message("%s: not in this build (%s)\n", name, error.message);
    return;
  }
  CHECK(status == TREEATTN_OK, "%s fails without a failing allocation: %s", name, error.message);
  int failed = 0;
  for (int n = 0; n < 1000; n++) {
    if (output != NULL) {
      memset(output->data, 0xab, output->bytes);
    }
    num_calls = 0;
    countdown = n;
    status = attempt(s, &error);
    bool reached = countdown < 0;
    countdown = -1;
    if (!reached) { /* fewer allocations than n */
      CHECK(status == TREEATTN_OK, "%s: %s", name, error.message);
      break;
    }
    failed++;
    CHECK(status == TREEATTN_ERROR_OUT_OF_MEMORY, "%s, allocation %d failed: status \"%s\": %s", name, n,
          treeattn_status_name(status), error.message);
    CHECK(error.status == status && error.message[0] != '\0', "%s, allocation %d failed: no message", name, n);
    for (size_t b = 0; output != NULL && b < output->bytes; b++) {
      CHECK(((unsigned char *)output->data)[b] == 0xab, "%s, allocation %d failed: output was written", name, n);
    }
  }
  print_message("%s: %d allocations failed, one after another\n", name, failed);
  CHECK(failed > 0, "%s allocated nothing, so that nothing was tested", name);
}

static void test_each_allocation_fails_once(void **state) {
  (void)state;
  subject s;
  memset(&s, 0, sizeof s);
  s.p = problem_new(2, 1, 64, 0, TREEATTN_F32);
  s.args = problem_args(&s.p);
  s.request = (treeattn_request)TREEATTN_REQUEST_INIT;
  s.request.num_nodes = 9;
  s.request.prefix_len = 100;
  s.args.requests = &s.request;
  s.args.num_requests = 1;
  s.args.kv_capacity = 200;
  /* One row: its tmp buffer is too small for a plan and scratch, so that these operators allocate. */
  s.q = tensor(128);
  s.k = tensor(700 * 128);
  s.v = tensor(700 * 128);
  s.mask = tensor(700);
  s.output = tensor(128);
  s.tmp = tensor(32 * 130);
  fail_each("treeattn_plan_create", try_plan, &s, NULL);
  fail_each("treeattn_pool_create", try_pool, &s, NULL);
  fail_each("treeattn_tree_attention", try_tree_attention, &s, &s.output);
  fail_each("treeattn_flash_attn_vec", try_flash_attn_vec, &s, &s.output);
  free(s.q.data);
  free(s.k.data);
  free(s.v.data);
  free(s.mask.data);
  free(s.output.data);
  free(s.tmp.data);
}

/* A run allocates nothing: every allocation would fail. */
static void test_runs_allocate_nothing(void **state) {
  (void)state;
  problem p = problem_new(2, 1, 64, 0, TREEATTN_F32);
  treeattn_plan_args args = problem_args(&p);
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = 9;
  request.prefix_len = 1100;
  args.requests = &request;
  args.num_requests = 1;
  args.kv_capacity = 1200;
  args.num_workers = 3;
  treeattn_plan *plan = NULL;
  CHECK_OK(treeattn_plan_create(&args, &plan, &error));
  const treeattn_plan_info info = plan_info(plan);
  treeattn_run_args run;
  memset(&run, 0, sizeof run);
  run.struct_size = sizeof run;
  run.q_bytes = info.q_bytes;
  run.k_bytes = info.k_bytes;
  run.v_bytes = info.v_bytes;
  run.out_bytes = info.out_bytes;
  run.scratch_bytes = info.scratch_bytes;
  void *q = calloc(1, run.q_bytes), *k = calloc(1, run.k_bytes), *v = calloc(1, run.v_bytes);
  run.q = q;
  run.k = k;
  run.v = v;
  run.out = calloc(1, run.out_bytes);
  run.scratch = calloc(1, run.scratch_bytes);
  treeattn_error failure = {TREEATTN_OK, ""};
  num_calls = 0;
  countdown = 1000000;
  treeattn_status status = treeattn_attend(plan, &run, &failure);
  countdown = -1;
  CHECK(status == TREEATTN_OK && num_calls == 0, "a run made %d allocations: %s", num_calls, failure.message);
  size_t bytes = 0;
  CHECK_OK(treeattn_plan_bytes(&args, &bytes, &error));
  void *memory = malloc(bytes);
  treeattn_plan *other = NULL;
  num_calls = 0;
  countdown = 1000000;
  status = treeattn_plan_init(&args, memory, bytes, &other, &failure);
  countdown = -1;
  CHECK(status == TREEATTN_OK && num_calls == 0, "plan_init made %d allocations: %s", num_calls, failure.message);
  treeattn_plan_destroy(plan);
  free(memory);
  free(q);
  free(k);
  free(v);
  free(run.out);
  free(run.scratch);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_each_allocation_fails_once),
      cmocka_unit_test(test_runs_allocate_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
