/* SPDX-License-Identifier: Apache-2.0 */
/* A plan and a run through the public interface: a whole tree in one call, or one query after its path. */
#include "demo_attend.h"

#include <string.h>

#include "cli.h"

bool demo_attention_create(const problem *layer, const treeattn_request *request, int64_t num_workers,
                           demo_attention *a) {
  memset(a, 0, sizeof *a);
  treeattn_plan_args args = TREEATTN_PLAN_ARGS_INIT;
  args.num_requests = 1;
  args.requests = request;
  args.request_bytes = sizeof *request;
  args.num_heads = layer->num_heads;
  args.num_kv_heads = layer->num_kv_heads;
  args.head_dim = layer->head_dim;
  args.head_dim_v = layer->head_dim_v;
  args.kv_dtype = layer->kv_dtype;
  args.scale = layer->scale;
  args.kv_capacity = layer->kv_capacity;
  args.num_workers = num_workers;
  treeattn_error error;
  a->info.struct_size = sizeof a->info;
  if (treeattn_plan_create(&args, &a->plan, &error) != TREEATTN_OK ||
      treeattn_plan_get_info(a->plan, &a->info, &error) != TREEATTN_OK) {
    cli_library_error(NULL, &error);
    demo_attention_destroy(a);
    return false;
  }
  a->scratch = cli_malloc(a->info.scratch_bytes);
  if (a->scratch == NULL) {
    cli_out_of_memory();
    demo_attention_destroy(a);
    return false;
  }
  return true;
}

void demo_attention_destroy(demo_attention *a) {
  treeattn_plan_destroy(a->plan);
  cli_free(a->scratch);
  memset(a, 0, sizeof *a);
}

bool demo_attention_run(const demo_attention *a, const float *q, const void *k, const void *v,
                        const treeattn_executor *executor, float *out) {
  treeattn_run_args run = TREEATTN_RUN_ARGS_INIT;
  run.q = q;
  run.q_bytes = a->info.q_bytes;
  run.k = k;
  run.k_bytes = a->info.k_bytes;
  run.v = v;
  run.v_bytes = a->info.v_bytes;
  run.out = out;
  run.out_bytes = a->info.out_bytes;
  run.scratch = a->scratch;
  run.scratch_bytes = a->info.scratch_bytes;
  run.executor = *executor;
  treeattn_error error;
  if (treeattn_attend(a->plan, &run, &error) != TREEATTN_OK) {
    cli_library_error(NULL, &error);
    return false;
  }
  return true;
}

treeattn_request demo_tree_request(const problem *layer) {
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = layer->num_nodes;
  request.prefix_len = layer->prefix_len;
  request.mask_kind = TREEATTN_MASK_PARENTS;
  request.mask = layer->parents;
  request.mask_bytes = (size_t)layer->num_nodes * sizeof *layer->parents;
  return request;
}

treeattn_request demo_next_token_request(int64_t tokens_before) {
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = 1;
  request.prefix_len = tokens_before;
  return request;
}
