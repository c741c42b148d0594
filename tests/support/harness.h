/* SPDX-License-Identifier: Apache-2.0 */
/* A problem laid out in guarded buffers one of many ways, run, and brought back to [T][H][DV]. */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include "guard.h"
#include "problem.h"
#include "threads.h"

typedef struct layout {
  int page_size;   /* 0: contiguous */
  int extra_slots; /* capacity (or pages' worth of slots) beyond the longest request, and kv_seq_len stays exact */
  bool shuffle;    /* sequences of the cache, or pages, in random order with unused ones between */
  int stride_pad;  /* elements added to every stride, in steps that keep alignment odd on purpose */
  float poison;    /* what every element of the cache and of Q that is not data holds */
  treeattn_mask_kind encoding; /* CHAIN: PARENTS where the tree is no chain */
  int mask_pad;                /* elements (bytes for bits) of stride beyond the columns, poisoned */
  bool square_mask;            /* mask_columns = N */
  bool written_window; /* dense kinds: the window stands in the mask, positions are passed, and args.window is 0 */
  bool pass_positions;
  bool guards_at_begin;
  bool no_lse;
  treeattn_isa isa;
  int num_workers;
  treeattn_executor executor;
  const int32_t *const *query_nodes; /* [num_requests] or NULL */
  const int64_t *num_queries;
  uint64_t seed; /* of everything random in the layout */
} layout;

typedef struct harness {
  const problem *source;
  layout how;
  treeattn_plan_args args;
  treeattn_request *requests;
  treeattn_plan *plan;
  treeattn_plan_info info;
  treeattn_run_args run;
  guarded q, k, v, out, lse, scratch, sinks;
  guarded *masks; /* [num_requests] */
  int32_t **positions, **page_tables;
  int64_t rows;       /* T */
  int64_t *first_row; /* [num_requests] */
} harness;

#define LAYOUT_INIT \
  { .encoding = TREEATTN_MASK_PARENTS, .num_workers = 1 }

/* Lays out and plans. */
void harness_build(harness *h, const problem *p, const layout *how);
/* Runs with read-only inputs into outputs freshly filled with NaN; afterwards checks every guard and every pad. */
void harness_run(harness *h);
/* The results, packed: out [T][H][DV], lse [T][H]. */
void harness_read(const harness *h, float *out, float *lse);
void harness_free(harness *h);

/* Address of a slot's row. is_v picks V. */
void *harness_slot(harness *h, int request, int g, int slot, bool is_v);
/* Overwrites a slot of K and V, all KV heads, with a value; harness_restore_slot brings the data back. */
void harness_poison_slot(harness *h, int request, int slot, float value);
void harness_restore_slot(harness *h, int request, int slot);
/* Address of a query row. row counts query rows of the whole batch. */
float *harness_q_row(harness *h, int head, int64_t row);

/* All at once: build, run, read, free. lse may be NULL. */
void harness_once(const problem *p, const layout *how, float *out, float *lse);

/* A layout with everything that must not matter chosen at random; `team` and `order` back its executor and must live as long. */
layout layout_random(rng *r, thread_team *team, rng *order);

/* Every instruction set that this machine runs, the scalar reference first. Returns how many. */
int available_isas(treeattn_isa isas[8]);

/* A mask of `kind` for visibility `sees` [N][sees_columns], of which the last `columns` are written. */
guarded mask_encode(treeattn_mask_kind kind, const uint8_t *sees, int num_nodes, int sees_columns, int columns,
                    int64_t stride, bool at_begin);

#endif
