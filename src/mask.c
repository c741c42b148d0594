/* SPDX-License-Identifier: Apache-2.0 */
/* Mask encodings to what a row sees. */
#include "mask.h"

static uint64_t bits_of_f32(const float *cells, int64_t count, ta_scan_cells_fn scan, ta_mask_facts *facts) {
  if (count == 64 && scan != NULL) {
    unsigned found[2] = {0, 0};
    const uint64_t word = scan(cells, found);
    facts->has_bias = facts->has_bias || found[0] != 0;
    facts->has_invalid = facts->has_invalid || found[1] != 0;
    return word;
  }
  uint64_t bits = 0;
  unsigned bias = 0;
  unsigned invalid = 0;
  for (int64_t c = 0; c < count; ++c) {
    const float cell = cells[c];
    const unsigned seen = cell > TREEATTN_MASK_HIDDEN;
    bits |= (uint64_t)seen << c;
    bias |= seen & (unsigned)(cell != 0.0f);
    invalid |= (unsigned)!(cell <= TA_LARGEST_LOGIT); /* catches NaN too */
  }
  facts->has_bias = facts->has_bias || bias != 0;
  facts->has_invalid = facts->has_invalid || invalid != 0;
  return bits;
}

static uint64_t bits_of_bool(const uint8_t *cells, int64_t count) {
  uint64_t bits = 0;
  for (int64_t c = 0; c < count; ++c) {
    bits |= (uint64_t)(cells[c] != 0) << c;
  }
  return bits;
}

/* Reads only the bytes that hold the columns asked for. */
static uint64_t bits_of_bits(const uint8_t *row, int64_t column, int64_t count) {
  uint64_t bits = 0;
  int64_t done = 0;
  while (done < count) {
    const int64_t bit = (column + done) % 8;
    const int64_t take = ta_min_i64(8 - bit, count - done);
    const uint64_t byte = (uint64_t)row[(column + done) / 8] >> bit & ((1u << take) - 1u);
    bits |= byte << done;
    done += take;
  }
  return bits;
}

uint64_t ta_mask_bits(treeattn_mask_kind kind, const void *row, int64_t column, int64_t count, ta_scan_cells_fn scan,
                      ta_mask_facts *facts) {
  if (count <= 0) {
    return 0;
  }
  switch (kind) {
    case TREEATTN_MASK_DENSE_F32: return bits_of_f32((const float *)row + column, count, scan, facts);
    case TREEATTN_MASK_DENSE_BOOL: return bits_of_bool((const uint8_t *)row + column, count);
    case TREEATTN_MASK_BITS: return bits_of_bits(row, column, count);
    case TREEATTN_MASK_CHAIN:
    case TREEATTN_MASK_PARENTS:
    case TREEATTN_MASK_INTERVALS: break;
  }
  return 0;
}

static void sift_down(const int32_t *intervals, int32_t *heap, int64_t root, int64_t count) {
  for (;;) {
    int64_t child = 2 * root + 1;
    if (child >= count) {
      return;
    }
    if (child + 1 < count && intervals[2 * (int64_t)heap[child + 1]] > intervals[2 * (int64_t)heap[child]]) {
      ++child;
    }
    if (intervals[2 * (int64_t)heap[child]] <= intervals[2 * (int64_t)heap[root]]) {
      return;
    }
    const int32_t swap = heap[root];
    heap[root] = heap[child];
    heap[child] = swap;
    root = child;
  }
}

/* Heap sort: in place and without the allocation that a library's sort may make. */
static void sort_by_begin(int64_t num_nodes, const int32_t *intervals, int32_t *order) {
  for (int64_t i = 0; i < num_nodes; ++i) {
    order[i] = (int32_t)i;
  }
  for (int64_t root = num_nodes / 2 - 1; root >= 0; --root) {
    sift_down(intervals, order, root, num_nodes);
  }
  for (int64_t last = num_nodes - 1; last > 0; --last) {
    const int32_t swap = order[0];
    order[0] = order[last];
    order[last] = swap;
    sift_down(intervals, order, 0, last);
  }
}

treeattn_status ta_mask_intervals_to_parents(int64_t num_nodes, const int32_t *intervals, int32_t *order,
                                             int32_t *parents, treeattn_error *error) {
  for (int64_t i = 0; i < num_nodes; ++i) {
    if (intervals[2 * i] >= intervals[2 * i + 1]) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_TREE, "intervals[%lld] is [%d, %d): the end must be above the begin",
                     (long long)i, (int)intervals[2 * i], (int)intervals[2 * i + 1]);
    }
  }
  sort_by_begin(num_nodes, intervals, order);
  int32_t open = -1; /* the innermost interval that may still hold the next one */
  for (int64_t n = 0; n < num_nodes; ++n) {
    const int32_t i = order[n];
    const int32_t begin = intervals[2 * (int64_t)i];
    if (n > 0 && intervals[2 * (int64_t)order[n - 1]] == begin) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_TREE, "intervals[%d] and intervals[%d] both begin at %d",
                     (int)order[n - 1], (int)i, (int)begin);
    }
    while (open >= 0 && intervals[2 * (int64_t)open + 1] <= begin) {
      open = parents[open];
    }
    if (open >= 0 && intervals[2 * (int64_t)i + 1] > intervals[2 * (int64_t)open + 1]) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_TREE,
                     "intervals[%d] ends at %d, outside intervals[%d], which ends at %d", (int)i,
                     (int)intervals[2 * (int64_t)i + 1], (int)open, (int)intervals[2 * (int64_t)open + 1]);
    }
    if (open > i) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_TREE,
                     "intervals[%d] lies inside intervals[%d]: an ancestor has the smaller index", (int)i, (int)open);
    }
    parents[i] = open;
    open = i;
  }
  return TREEATTN_OK;
}
