/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a path's moves in which no row is overwritten before it has been read. */
#include <stdio.h>

#include "commit_plan.h"

treeattn_status ta_commit_check_path(const int32_t *path, int64_t path_len, int64_t num_nodes, int32_t *reader,
                                     int64_t r, treeattn_error *error) {
  for (int64_t node = 0; node < num_nodes; node++) {
    reader[node] = -1;
  }
  for (int64_t i = 0; i < path_len; i++) {
    const int32_t node = path[i];
    char owner[40] = ""; /* "requests[", at most 20 digits, "]." */
    if (node < 0 || node >= num_nodes || reader[node] >= 0) {
      if (r >= 0) {
        (void)snprintf(owner, sizeof owner, "requests[%lld].", (long long)r);
      }
      if (node < 0 || node >= num_nodes) {
        return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                       "%spath[%lld] is %ld: a node is at least 0 and less than num_nodes (%lld)", owner, (long long)i,
                       (long)node, (long long)num_nodes);
      }
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%spath[%lld] is %ld: path[%ld] is that node already",
                     owner, (long long)i, (long)node, (long)reader[node]);
    }
    reader[node] = (int32_t)i;
  }
  return TREEATTN_OK;
}

static void locate(const treeattn_commit_plan *plan, const treeattn_commit_request *request, int64_t node,
                   int64_t *block, int64_t *row) {
  const int64_t slot = request->prefix_len + node;
  if (plan->paged) {
    *block = request->page_table[slot / plan->rows_per_block];
    *row = slot % plan->rows_per_block;
  } else {
    *block = request->cache_index;
    *row = slot;
  }
}

/*
 * Runs grow at either end. This is sound because emitted moves never read a row that an earlier one wrote: made one
 * by one or all at once, the result is the same.
 */
static bool extend_last(treeattn_commit_plan *plan, const treeattn_commit_move *move) {
  if (plan->num_moves == 0) {
    return false;
  }
  treeattn_commit_move *last = &plan->moves[plan->num_moves - 1];
  if (last->src_block != move->src_block || last->dst_block != move->dst_block) {
    return false;
  }
  if (move->src_row == last->src_row + last->num_rows && move->dst_row == last->dst_row + last->num_rows) {
    last->num_rows++;
    return true;
  }
  if (move->src_row + 1 == last->src_row && move->dst_row + 1 == last->dst_row) {
    last->src_row--;
    last->dst_row--;
    last->num_rows++;
    return true;
  }
  return false;
}

/* Node `src` to slot P+dst. Either may be -1, the temporary row. */
static void emit(treeattn_commit_plan *plan, const treeattn_commit_request *request, int64_t src, int64_t dst,
                 bool in_cycle) {
  treeattn_commit_move move = {TREEATTN_COMMIT_TEMPORARY, 0, TREEATTN_COMMIT_TEMPORARY, 0, 1};
  if (src >= 0) {
    locate(plan, request, src, &move.src_block, &move.src_row);
  }
  if (dst >= 0) {
    locate(plan, request, dst, &move.dst_block, &move.dst_row);
    plan->num_rows++;
  }
  if (in_cycle || !extend_last(plan, &move)) {
    plan->moves[plan->num_moves++] = move;
  }
}

void ta_commit_order(treeattn_commit_plan *plan, const treeattn_commit_request *request, const ta_commit_work *work) {
  const int32_t *path = request->path;
  const int64_t path_len = request->path_len;
  for (int64_t i = 0; i < path_len; i++) {
    work->done[i] = path[i] == i;
  }

  /* A slot may be written once the move that reads it is made. Ascending order does for increasing paths; where a slot
   * had to wait, the move that reads it is followed by the move that writes it, and so on down the chain. */
  for (int64_t i = 0; i < path_len; i++) {
    if (work->done[i] || (work->reader[i] >= 0 && !work->done[work->reader[i]])) {
      continue;
    }
    int64_t dst = i;
    do {
      emit(plan, request, path[dst], dst, false);
      work->done[dst] = 1;
      dst = path[dst];
    } while (dst < i);
  }

  /* What still waits is read by something that waits too: cycles. */
  for (int64_t i = 0; i < path_len; i++) {
    if (work->done[i]) {
      continue;
    }
    emit(plan, request, i, -1, true);
    int64_t dst = i;
    while (path[dst] != i) {
      emit(plan, request, path[dst], dst, true);
      work->done[dst] = 1;
      dst = path[dst];
    }
    emit(plan, request, -1, dst, true);
    work->done[dst] = 1;
    plan->num_cycles++;
  }
}
