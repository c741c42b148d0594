/* SPDX-License-Identifier: Apache-2.0 */
/* The workloads A to F of `treeattn bench` as plans, without data. */
#ifndef TESTS_SHAPES_H
#define TESTS_SHAPES_H

#include <treeattn/attention.h>

typedef struct workload_shape {
  const char *name;
  int64_t num_heads, num_kv_heads, head_dim, num_nodes, kv_len;
} workload_shape;

enum { NUM_WORKLOAD_SHAPES = 6 };
extern const workload_shape workload_shapes[NUM_WORKLOAD_SHAPES];

/* A plan of one request with a binary tree in the last slots of a 16-bit cache. page_size 0: contiguous. */
treeattn_plan *shape_plan(const workload_shape *shape, treeattn_isa isa, int64_t num_workers, int64_t page_size);

#endif
