/* SPDX-License-Identifier: Apache-2.0 */
/* An installation must be complete: this builds against it as C and as C++, links, and gets a right answer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <treeattn/treeattn.h>

enum { NODES = 3, PREFIX = 2, SLOTS = PREFIX + NODES, DIM = 8 };

int main(void) {
  if (strcmp(treeattn_version(), TREEATTN_VERSION_STRING) != 0) {
    fprintf(stderr, "the library is %s, the headers are %s\n", treeattn_version(), TREEATTN_VERSION_STRING);
    return 1;
  }

  /* A root with two children. All keys are 0, so each row is the mean of the values that it sees. */
  const int32_t parents[NODES] = {-1, 0, 0};
  const float expected[NODES] = {(1 + 2 + 4) / 3.0f, (1 + 2 + 4 + 8) / 4.0f, (1 + 2 + 4 + 16) / 4.0f};
  float q[NODES * DIM] = {0}, k[SLOTS * DIM] = {0}, v[SLOTS * DIM], out[NODES * DIM];
  for (int slot = 0; slot < SLOTS; slot++) {
    for (int d = 0; d < DIM; d++) {
      v[slot * DIM + d] = (float)(1 << slot);
    }
  }

  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = NODES;
  request.prefix_len = PREFIX;
  request.mask_kind = TREEATTN_MASK_PARENTS;
  request.mask = parents;
  request.mask_bytes = sizeof parents;

  treeattn_plan_args args = TREEATTN_PLAN_ARGS_INIT;
  args.num_requests = 1;
  args.requests = &request;
  args.request_bytes = sizeof request;
  args.num_heads = 1;
  args.num_kv_heads = 1;
  args.head_dim = DIM;
  args.kv_dtype = TREEATTN_F32;
  args.scale = 1.0f;
  args.kv_capacity = SLOTS;

  treeattn_error error;
  treeattn_plan *plan = NULL;
  treeattn_plan_info info = TREEATTN_PLAN_INFO_INIT;
  if (treeattn_plan_create(&args, &plan, &error) != TREEATTN_OK ||
      treeattn_plan_get_info(plan, &info, &error) != TREEATTN_OK) {
    fprintf(stderr, "plan: %s\n", error.message);
    return 1;
  }
  void *scratch = malloc(info.scratch_bytes + 1);

  treeattn_run_args run = TREEATTN_RUN_ARGS_INIT;
  run.q = q;
  run.q_bytes = sizeof q;
  run.k = k;
  run.k_bytes = sizeof k;
  run.v = v;
  run.v_bytes = sizeof v;
  run.out = out;
  run.out_bytes = sizeof out;
  run.scratch = scratch;
  run.scratch_bytes = info.scratch_bytes;
  const treeattn_status status = treeattn_attend(plan, &run, &error);
  if (status != TREEATTN_OK) {
    fprintf(stderr, "attend: %s\n", error.message);
    return 1;
  }
  free(scratch);
  treeattn_plan_destroy(plan);

  for (int i = 0; i < NODES; i++) {
    for (int d = 0; d < DIM; d++) {
      const float difference = out[i * DIM + d] - expected[i];
      if (!(difference > -1e-6f && difference < 1e-6f)) {
        fprintf(stderr, "out[%d][%d] is %.9g, not %.9g\n", i, d, (double)out[i * DIM + d], (double)expected[i]);
        return 1;
      }
    }
  }
  printf("treeattn %s\n", treeattn_version());
  return 0;
}
