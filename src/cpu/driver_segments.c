/* SPDX-License-Identifier: Apache-2.0 */
/* Which positions of a leaf the rows of a block share. */
#include <string.h>

#include "driver.h"

/* Per position of the leaf: how many nodes see it and whether they disagree about its slot. */
typedef struct census {
  uint64_t all[TA_LEAF_WORDS], any[TA_LEAF_WORDS], conflict[TA_LEAF_WORDS];
  int32_t count[TA_LEAF];
} census;

static void take_census(ta_block *b, int64_t leaf, census *c) {
  const ta_request *request = b->task->request;
  const int64_t tail = ta_max_i64(0, ta_min_i64(TA_LEAF, request->prefix_len - b->base));
  memset(c, 0, sizeof *c);
  memset(c->all, 0xff, sizeof c->all);
  for (int64_t n = 0; n < b->nodes; ++n) {
    uint64_t *seen = b->memory.seen + n * TA_LEAF_WORDS;
    ta_row_visible(request, b->task->row_begin + n, leaf, seen, b->memory.slots);
    for (int64_t word = 0; word < TA_LEAF_WORDS; ++word) {
      c->all[word] &= seen[word];
      c->any[word] |= seen[word];
    }
    for (int64_t o = tail; o < TA_LEAF; ++o) {
      if (seen[o / 64] == 0) {
        o |= 63;
      } else if (ta_bit_of(seen, o)) {
        if (c->count[o] == 0) {
          b->memory.common[o] = b->memory.slots[o];
        } else if (b->memory.common[o] != b->memory.slots[o]) {
          c->conflict[o / 64] |= (uint64_t)1 << (o % 64);
        }
        ++c->count[o];
      }
    }
  }
}

static ta_segment_kind kind_of(const ta_block *b, const census *c, int64_t o) {
  if (!ta_bit_of(c->any, o)) {
    return TA_SEGMENT_NONE;
  }
  if (ta_bit_of(c->conflict, o)) {
    return TA_SEGMENT_OWN;
  }
  if (ta_bit_of(c->all, o)) {
    return TA_SEGMENT_SHARED;
  }
  /* A position that few nodes of the block reach costs less node by node than for all rows. */
  const bool prefix = b->base + o < b->task->request->prefix_len;
  return prefix || 2 * c->count[o] >= b->nodes ? TA_SEGMENT_MIXED : TA_SEGMENT_OWN;
}

static void add_segment(ta_block *b, int64_t begin, int64_t end, ta_segment_kind kind) {
  ta_segment *segments = b->memory.segments;
  if (kind == TA_SEGMENT_NONE || begin == end) {
    return;
  }
  if (b->num_segments > 0) {
    ta_segment *last = &segments[b->num_segments - 1];
    const bool adjacent = last->end == begin;
    /* A short stretch that all rows share is not worth leaving a mixed one for. */
    const bool absorbed = adjacent && last->kind == TA_SEGMENT_MIXED && kind == TA_SEGMENT_SHARED && end - begin < 8;
    if (adjacent && (last->kind == kind || absorbed)) {
      last->end = end;
      return;
    }
  }
  segments[b->num_segments++] = (ta_segment){begin, end, kind};
}

/* All rows see the whole leaf, and it lies within the prefix. */
static bool plain_leaf(const ta_block *b) {
  const ta_request *request = b->task->request;
  if (request->prefix_bits != NULL || b->base + TA_LEAF > request->prefix_len) {
    return false;
  }
  for (int64_t n = 0; n < b->nodes; ++n) {
    if (request->prefix_first[b->task->row_begin + n] > b->base) {
      return false;
    }
  }
  return true;
}

void ta_find_segments(ta_block *b, int64_t leaf) {
  b->num_segments = 0;
  if (plain_leaf(b)) {
    memset(b->memory.seen, 0xff, (size_t)(b->nodes * TA_LEAF_WORDS) * sizeof(uint64_t));
    add_segment(b, 0, TA_LEAF, TA_SEGMENT_SHARED);
    return;
  }
  census c;
  take_census(b, leaf, &c);
  int64_t begin = 0;
  ta_segment_kind kind = kind_of(b, &c, 0);
  for (int64_t o = 1; o < TA_LEAF; ++o) {
    const ta_segment_kind next = kind_of(b, &c, o);
    if (next != kind) {
      add_segment(b, begin, o, kind);
      begin = o;
      kind = next;
    }
  }
  add_segment(b, begin, TA_LEAF, kind);
}

const int32_t *ta_slots_of_node(const ta_block *b, int64_t n) {
  uint64_t seen[TA_LEAF_WORDS];
  ta_row_visible(b->task->request, b->task->row_begin + n, b->base / TA_LEAF, seen, b->memory.slots);
  return b->memory.slots;
}

int64_t ta_next_offsets(const ta_block *b, const ta_segment *s, const uint64_t *seen, int64_t *next, int32_t *offsets) {
  int64_t keys = 0;
  while (*next < s->end && keys < b->shape.keys_per_chunk) {
    if (ta_bit_of(seen, *next)) {
      offsets[keys++] = (int32_t)*next;
    }
    ++*next;
  }
  return keys;
}
