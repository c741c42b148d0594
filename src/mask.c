/* SPDX-License-Identifier: Apache-2.0 */
/* Mask encodings to what a row sees. */
#include "mask.h"

#include <string.h>

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

/* Eight bytes as a number whose lowest byte is the first. */
static uint64_t load_eight(const uint8_t *bytes) {
  uint64_t word = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  memcpy(&word, bytes, sizeof word);
#else
  for (int n = 0; n < 8; ++n) {
    word |= (uint64_t)bytes[n] << (8 * n);
  }
#endif
  return word;
}

static uint64_t bits_of_bool(const uint8_t *cells, int64_t count) {
  uint64_t bits = 0;
  int64_t c = 0;
  for (; c + 8 <= count; c += 8) {
    /* The top bit of each byte that is not zero, then the eight of them side by side. */
    const uint64_t word = load_eight(cells + c);
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
    const uint64_t nonzero = (((word & low) + low) | word) & ~low;
    bits |= ((nonzero >> 7) * UINT64_C(0x0102040810204080) >> 56) << c;
  }
  for (; c < count; ++c) {
    bits |= (uint64_t)(cells[c] != 0) << c;
  }
  return bits;
}

/* Reads only the bytes that hold the columns asked for. */
static uint64_t bits_of_bits(const uint8_t *row, int64_t column, int64_t count) {
  if (column % 8 == 0 && count == 64) {
    return load_eight(row + column / 8);
  }
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

void ta_mask_words(treeattn_mask_kind kind, const void *row, int64_t column, int64_t num_words, uint64_t *words,
                   ta_scan_cells_fn scan, ta_mask_facts *facts) {
  if (kind == TREEATTN_MASK_DENSE_F32 && scan != NULL) { /* facts are collected once: this is most of a dense plan */
    const float *cells = (const float *)row + column;
    unsigned found[2] = {0, 0};
    for (int64_t n = 0; n < num_words; ++n) {
      words[n] = scan(cells + 64 * n, found);
    }
    facts->has_bias = facts->has_bias || found[0] != 0;
    facts->has_invalid = facts->has_invalid || found[1] != 0;
  } else if (kind == TREEATTN_MASK_DENSE_BOOL) {
    for (int64_t n = 0; n < num_words; ++n) {
      words[n] = bits_of_bool((const uint8_t *)row + column + 64 * n, 64);
    }
  } else {
    for (int64_t n = 0; n < num_words; ++n) {
      words[n] = ta_mask_bits(kind, row, column + 64 * n, 64, scan, facts);
    }
  }
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
