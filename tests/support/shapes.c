/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of the measured workloads, see shapes.h. */
#include "shapes.h"

#include <stdlib.h>

#include "check.h"

const workload_shape workload_shapes[NUM_WORKLOAD_SHAPES] = {
    {"A", 40, 8, 128, 1, 8192},  {"B", 40, 8, 128, 64, 8192}, {"C", 40, 8, 128, 16, 32768},
    {"D", 16, 8, 256, 32, 4096}, {"E", 32, 8, 128, 64, 1024}, {"F", 4, 1, 256, 32, 2048},
};

treeattn_plan *shape_plan(const workload_shape *shape, treeattn_isa isa, int64_t num_workers, int64_t page_size) {
  int32_t parents[64];
  CHECK(shape->num_nodes <= 64, "%lld nodes", (long long)shape->num_nodes);
  for (int32_t i = 0; i < shape->num_nodes; i++) {
    parents[i] = i == 0 ? -1 : (i - 1) / 2;
  }
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = shape->num_nodes;
  request.prefix_len = shape->kv_len - shape->num_nodes;
  request.kv_seq_len = shape->kv_len;
  request.mask_kind = TREEATTN_MASK_PARENTS;
  request.mask = parents;
  request.mask_bytes = (size_t)shape->num_nodes * sizeof *parents;
  treeattn_plan_args args = TREEATTN_PLAN_ARGS_INIT;
  args.num_requests = 1;
  args.requests = &request;
  args.request_bytes = sizeof request;
  args.num_heads = shape->num_heads;
  args.num_kv_heads = shape->num_kv_heads;
  args.head_dim = shape->head_dim;
  args.kv_dtype = TREEATTN_F16;
  args.scale = 0.125f;
  args.kv_capacity = shape->kv_len;
  args.isa = isa;
  args.num_workers = num_workers;
  static int32_t pages[32768];
  if (page_size > 0) {
    const int64_t num_pages = (shape->kv_len + page_size - 1) / page_size;
    CHECK(num_pages <= 32768, "%lld pages", (long long)num_pages);
    for (int32_t n = 0; n < num_pages; n++) { /* runs read it: it outlives the plan, and all plans share it */
      pages[n] = (int32_t)num_pages - 1 - n;
    }
    args.page_size = page_size;
    args.num_pages = num_pages;
    request.page_table = pages;
    request.page_table_len = num_pages;
  }
  treeattn_plan *plan = NULL;
  CHECK_OK(treeattn_plan_create(&args, &plan, &error));
  return plan;
}
