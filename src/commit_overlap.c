/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses batches in which requests keep nodes in the same block: a move for one would destroy the other. */
#include "commit_plan.h"

/* By block, and those that move first. */
static bool before(const ta_commit_use *a, const ta_commit_use *b) {
  return a->block != b->block ? a->block < b->block : a->moves && !b->moves;
}

static void swap(ta_commit_use *a, ta_commit_use *b) {
  const ta_commit_use use = *a;
  *a = *b;
  *b = use;
}

static void sift_down(ta_commit_use *uses, int64_t root, int64_t num_uses) {
  for (;;) {
    int64_t child = 2 * root + 1;
    if (child >= num_uses) {
      return;
    }
    if (child + 1 < num_uses && before(&uses[child], &uses[child + 1])) {
      child++;
    }
    if (!before(&uses[root], &uses[child])) {
      return;
    }
    swap(&uses[root], &uses[child]);
    root = child;
  }
}

/* Heapsort: qsort may allocate, and its worst case is the C library's own affair. */
static void sort(ta_commit_use *uses, int64_t num_uses) {
  for (int64_t root = num_uses / 2 - 1; root >= 0; root--) {
    sift_down(uses, root, num_uses);
  }
  for (int64_t last = num_uses - 1; last > 0; last--) {
    swap(&uses[0], &uses[last]);
    sift_down(uses, 0, last);
  }
}

treeattn_status ta_commit_check_overlap(ta_commit_use *uses, int64_t num_uses, bool paged, treeattn_error *error) {
  sort(uses, num_uses);
  for (int64_t i = 1; i < num_uses; i++) {
    if (uses[i].block != uses[i - 1].block || !uses[i - 1].moves) {
      continue;
    }
    const long long block = (long long)uses[i].block;
    const long long first = (long long)ta_min_i64(uses[i].request, uses[i - 1].request);
    const long long second = (long long)ta_max_i64(uses[i].request, uses[i - 1].request);
    if (first == second) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                     "requests[%lld].page_table holds page %lld twice: its slots would share rows", first, block);
    }
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                   "%s %lld holds nodes of requests[%lld] and requests[%lld]: moves of one would destroy the other",
                   paged ? "page" : "cache_index", block, first, second);
  }
  return TREEATTN_OK;
}
