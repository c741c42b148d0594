/* SPDX-License-Identifier: Apache-2.0 */
/* The keys that one row sees within one leaf. */
#include <string.h>

#include "plan.h"

/* Bits [begin, end) of a leaf, both within [0, TA_LEAF]. */
static void set_range(uint64_t seen[TA_LEAF_WORDS], int64_t begin, int64_t end) {
  for (int64_t word = begin / 64; begin < end; ++word) {
    const int64_t stop = ta_min_i64(end, 64 * (word + 1));
    const int64_t count = stop - begin;
    const uint64_t ones = count == 64 ? ~(uint64_t)0 : ((uint64_t)1 << count) - 1;
    seen[word] |= ones << (begin % 64);
    begin = stop;
  }
}

static void prefix_visible(const ta_request *request, int64_t row, int64_t base, uint64_t seen[TA_LEAF_WORDS]) {
  const int64_t end = ta_min_i64(base + TA_LEAF, request->prefix_len);
  const int64_t begin = ta_max_i64(base, request->prefix_first[row]);
  if (begin >= end) {
    return;
  }
  set_range(seen, begin - base, end - base);
  if (request->prefix_bits != NULL) {
    const uint64_t *bits = request->prefix_bits + row * request->prefix_words;
    for (int64_t word = (begin - base) / 64; word < TA_LEAF_WORDS && base + 64 * word < end; ++word) {
      seen[word] &= bits[base / 64 + word];
    }
  }
}

/* Walks from the node to its root, a run of consecutive nodes at a time. */
static void tree_visible(const ta_request *request, int64_t row, int64_t base, uint64_t seen[TA_LEAF_WORDS],
                         int32_t slots[TA_LEAF]) {
  const int64_t lowest = ta_max_i64(base, request->first_visible[row]);
  int64_t last = request->node_of_row == NULL ? row : request->node_of_row[row];
  int64_t last_position = request->row_position[row];
  while (last >= 0 && last_position >= lowest) {
    const int64_t start = request->run_start[last];
    const int64_t start_position = last_position - (last - start);
    const int64_t begin = ta_max_i64(start_position, lowest);
    const int64_t end = ta_min_i64(last_position + 1, base + TA_LEAF);
    if (begin < end) {
      set_range(seen, begin - base, end - base);
      const int64_t slot_of_position = request->prefix_len + start - start_position;
      for (int64_t p = begin; p < end; ++p) {
        slots[p - base] = (int32_t)(slot_of_position + p);
      }
    }
    last = request->parent[start];
    last_position = start_position - 1;
  }
}

static void mask_visible(const ta_request *request, int64_t row, int64_t base, uint64_t seen[TA_LEAF_WORDS],
                         int32_t slots[TA_LEAF]) {
  const uint64_t *bits = request->tail_bits + row * request->tail_words;
  const int64_t lowest = ta_max_i64(base, request->first_visible[row]);
  int64_t p = request->prefix_len;
  for (int64_t word = 0; word < request->tail_words; ++word) {
    for (uint64_t rest = bits[word]; rest != 0; rest &= rest - 1) {
      int64_t bit = 0;
      for (uint64_t low = rest & (~rest + 1); low > 1; low >>= 1) {
        ++bit;
      }
      const int64_t j = 64 * word + bit;
      const int64_t key_position = request->tail_position == NULL ? p++ : request->tail_position[j];
      if (key_position >= lowest && key_position < base + TA_LEAF) {
        const int64_t offset = key_position - base;
        seen[offset / 64] |= (uint64_t)1 << (offset % 64);
        slots[offset] = (int32_t)(request->prefix_len + j);
      }
    }
  }
}

void ta_row_visible(const ta_request *request, int64_t row, int64_t leaf, uint64_t seen[TA_LEAF_WORDS],
                    int32_t slots[TA_LEAF]) {
  const int64_t base = leaf * TA_LEAF;
  memset(seen, 0, TA_LEAF_WORDS * sizeof *seen);
  prefix_visible(request, row, base, seen);
  if (base + TA_LEAF > request->prefix_len) {
    if (request->parent != NULL) {
      tree_visible(request, row, base, seen, slots);
    } else {
      mask_visible(request, row, base, seen, slots);
    }
  }
}
