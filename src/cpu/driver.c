/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocked CPU back end: one block of rows against a chunk of leaves, over a kernel table. Every load of K and V is shared by
 * the rows of the block. Within a leaf, positions fall into three kinds:
 *
 *   SHARED   every row of the block sees the same slot there       a matrix product without a mask
 *   MIXED    the rows that see something there see the same slot   scores as above, values node by node
 *   OWN      different nodes see different slots                   node by node
 *
 * Weights lie by position, so that each row's chain runs over ascending positions whatever the kinds are.
 */
#include <string.h>

#include "backend.h"

typedef enum segment_kind { SEGMENT_NONE, SEGMENT_SHARED, SEGMENT_MIXED, SEGMENT_OWN } segment_kind;

typedef struct segment {
  int64_t begin, end; /* offsets within the leaf */
  segment_kind kind;
} segment;

typedef struct block_memory {
  float *qt, *scores, *node_scores, *converted;
  float *leaf_out, *group_out, *total_out;
  float *leaf_max, *leaf_sum;
  ta_state *group, *total;
  uint64_t *seen; /* [nodes][TA_LEAF_WORDS] */
  segment *segments;
  int32_t *common, *slots; /* [TA_LEAF]: the slot that all rows share, and one row's */
} block_memory;

/* Sizes that follow from the plan. */
typedef struct block_shape {
  int64_t rows_padded, ld, ldk, ldo, panels, keys_per_chunk, max_nodes;
} block_shape;

typedef struct block {
  const treeattn_plan *plan;
  const treeattn_run_args *run;
  const ta_kernels *kernels;
  const ta_task *task;
  block_shape shape;
  block_memory memory;
  float cap;
  int64_t nodes, heads, rows, rows_padded; /* of this block */
  int64_t base;                            /* first position of the leaf */
  int64_t num_segments;
} block;

static int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

static block_shape shape_of(const treeattn_plan *plan) {
  const ta_kernels *kernels = plan->kernels;
  block_shape shape;
  shape.rows_padded = round_up(plan->max_block_rows, kernels->row_vector);
  /* One vector more, so that a node's rows can be read from any column; an odd number of cache lines, so that the rows of a
   * matrix do not share their sets. */
  shape.ld = round_up(shape.rows_padded + kernels->row_vector, 16);
  shape.ld += shape.ld / 16 % 2 == 0 ? 16 : 0;
  shape.ldk = plan->head_dim + 16;
  shape.panels = (plan->head_dim_v + kernels->panel_width - 1) / kernels->panel_width;
  shape.ldo = shape.panels * kernels->panel_width;
  const int64_t widest = ta_max_i64(plan->head_dim, plan->head_dim_v);
  /* Few rows wait for memory: short chunks keep the converted keys in the first-level cache while the next ones arrive. */
  const int64_t floats = shape.rows_padded <= 16 ? 1536 : 16384;
  shape.keys_per_chunk = ta_min_i64(ta_max_i64(floats / widest, 12), 256);
  shape.max_nodes = ta_max_i64(plan->max_block_rows / ta_min_i64(plan->group, ta_max_i64(plan->max_block_rows, 1)), 1);
  return shape;
}

static void take_memory(const block_shape *shape, const treeattn_plan *plan, ta_arena *arena, block_memory *memory) {
  const int64_t keys = shape->keys_per_chunk;
  memory->qt = ta_arena_take(arena, plan->head_dim * shape->ld, sizeof(float));
  memory->scores = ta_arena_take(arena, TA_LEAF * shape->ld, sizeof(float));
  memory->node_scores = ta_arena_take(arena, keys * shape->ld, sizeof(float));
  memory->converted = ta_arena_take(arena, keys * ta_max_i64(shape->ldk, shape->ldo), sizeof(float));
  memory->leaf_out = ta_arena_take(arena, shape->rows_padded * shape->ldo, sizeof(float));
  memory->group_out = ta_arena_take(arena, shape->rows_padded * shape->ldo, sizeof(float));
  memory->total_out = ta_arena_take(arena, shape->rows_padded * shape->ldo, sizeof(float));
  memory->leaf_max = ta_arena_take(arena, shape->rows_padded, sizeof(float));
  memory->leaf_sum = ta_arena_take(arena, shape->rows_padded, sizeof(float));
  memory->group = ta_arena_take(arena, shape->rows_padded, sizeof(ta_state));
  memory->total = ta_arena_take(arena, shape->rows_padded, sizeof(ta_state));
  memory->seen = ta_arena_take(arena, shape->max_nodes * TA_LEAF_WORDS, sizeof(uint64_t));
  memory->segments = ta_arena_take(arena, TA_LEAF, sizeof(segment));
  memory->common = ta_arena_take(arena, TA_LEAF, sizeof(int32_t));
  memory->slots = ta_arena_take(arena, TA_LEAF, sizeof(int32_t));
}

size_t ta_driver_worker_bytes(const treeattn_plan *plan) {
  const block_shape shape = shape_of(plan);
  ta_arena arena = {NULL, 0, false};
  block_memory memory;
  take_memory(&shape, plan, &arena, &memory);
  /* The combine stage needs two out vectors, which the first of the arrays above always holds. */
  return (size_t)round_up((int64_t)ta_max_i64((int64_t)arena.used, 2 * plan->head_dim_v * (int64_t)sizeof(float)), TA_ARENA_ALIGNMENT);
}

static bool bit_of(const uint64_t *bits, int64_t n) {
  return (bits[n / 64] >> (n % 64) & 1) != 0;
}

/* ---- queries ---- */

static void pack_queries(const block *b) {
  const treeattn_plan *plan = b->plan;
  const ta_query_scale scale = ta_plan_query_scale(plan);
  const int64_t ld = b->shape.ld;
  float *qt = b->memory.qt;
  memset(qt, 0, (size_t)(plan->head_dim * ld) * sizeof(float));
  for (int64_t n = 0; n < b->nodes; ++n) {
    for (int64_t h = 0; h < b->heads; ++h) {
      const float *q = ta_query_row(plan, b->run, b->task->request, b->task->row_begin + n, b->task->head_begin + h);
      float *column = qt + n * b->heads + h;
      for (int64_t d = 0; d < plan->head_dim; ++d) {
        column[d * ld] = fmaf(q[d], scale.hi, q[d] * scale.lo);
      }
    }
  }
}

/* ---- which positions are shared ---- */

/* Per position of the leaf: how many nodes see it and whether they disagree about its slot. */
typedef struct census {
  uint64_t all[TA_LEAF_WORDS], any[TA_LEAF_WORDS], conflict[TA_LEAF_WORDS];
  int32_t count[TA_LEAF];
} census;

static void take_census(block *b, int64_t leaf, census *c) {
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
      } else if (bit_of(seen, o)) {
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

static segment_kind kind_of(const block *b, const census *c, int64_t o) {
  if (!bit_of(c->any, o)) {
    return SEGMENT_NONE;
  }
  if (bit_of(c->conflict, o)) {
    return SEGMENT_OWN;
  }
  if (bit_of(c->all, o)) {
    return SEGMENT_SHARED;
  }
  /* A position that few nodes of the block reach costs less node by node than for all rows. */
  const bool prefix = b->base + o < b->task->request->prefix_len;
  return prefix || 2 * c->count[o] >= b->nodes ? SEGMENT_MIXED : SEGMENT_OWN;
}

static void add_segment(block *b, int64_t begin, int64_t end, segment_kind kind) {
  segment *segments = b->memory.segments;
  if (kind == SEGMENT_NONE || begin == end) {
    return;
  }
  if (b->num_segments > 0) {
    segment *last = &segments[b->num_segments - 1];
    const bool adjacent = last->end == begin;
    /* A short stretch that all rows share is not worth leaving a mixed one for. */
    const bool absorbed = adjacent && last->kind == SEGMENT_MIXED && kind == SEGMENT_SHARED && end - begin < 8;
    if (adjacent && (last->kind == kind || absorbed)) {
      last->end = end;
      return;
    }
  }
  segments[b->num_segments++] = (segment){begin, end, kind};
}

/* All rows see the whole leaf, and it lies within the prefix. */
static bool plain_leaf(const block *b) {
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

static void find_segments(block *b, int64_t leaf) {
  b->num_segments = 0;
  if (plain_leaf(b)) {
    memset(b->memory.seen, 0xff, (size_t)(b->nodes * TA_LEAF_WORDS) * sizeof(uint64_t));
    add_segment(b, 0, TA_LEAF, SEGMENT_SHARED);
    return;
  }
  census c;
  take_census(b, leaf, &c);
  int64_t begin = 0;
  segment_kind kind = kind_of(b, &c, 0);
  for (int64_t o = 1; o < TA_LEAF; ++o) {
    const segment_kind next = kind_of(b, &c, o);
    if (next != kind) {
      add_segment(b, begin, o, kind);
      begin = o;
      kind = next;
    }
  }
  add_segment(b, begin, TA_LEAF, kind);
}

static int64_t common_slot(const block *b, int64_t o) {
  const int64_t p = b->base + o;
  return p < b->task->request->prefix_len ? p : b->memory.common[o];
}

/* ---- the cache ---- */

static void load_key(const block *b, int64_t slot, float *target) {
  const treeattn_plan *plan = b->plan;
  b->kernels->convert(plan->kv_dtype,
                      ta_cache_row(plan, b->task->request, b->run->k, slot, b->task->g, plan->k_stride_page, plan->k_stride_head,
                                   plan->k_stride_slot),
                      plan->head_dim, target);
}

static void load_value(const block *b, int64_t slot, int64_t key) {
  const treeattn_plan *plan = b->plan;
  b->kernels->convert_panels(plan->kv_dtype,
                             ta_cache_row(plan, b->task->request, b->run->v, slot, b->task->g, plan->v_stride_page,
                                          plan->v_stride_head, plan->v_stride_slot),
                             plan->head_dim_v, b->memory.converted + key * b->kernels->panel_width,
                             b->shape.keys_per_chunk * b->kernels->panel_width);
}

/* Asks for the rows of `keys` shared slots from offset o on, which the next chunk converts, while this one is computed. */
static void prefetch_common(const block *b, const void *base, int64_t stride_page, int64_t stride_head, int64_t stride_slot,
                            int64_t dim, int64_t o, int64_t keys) {
#if defined(__GNUC__)
  const treeattn_plan *plan = b->plan;
  const int64_t row_bytes = dim * (plan->kv_dtype == TREEATTN_F32 ? 4 : 2);
  for (int64_t j = 0; j < keys; ++j) {
    const char *row =
        ta_cache_row(plan, b->task->request, base, common_slot(b, o + j), b->task->g, stride_page, stride_head, stride_slot);
    for (int64_t byte = 0; byte < row_bytes; byte += 64) {
      __builtin_prefetch(row + byte, 0, 3);
    }
  }
#else
  (void)b, (void)base, (void)stride_page, (void)stride_head, (void)stride_slot, (void)dim, (void)o, (void)keys;
#endif
}

static void prefetch_keys(const block *b, int64_t o, int64_t end) {
  const treeattn_plan *plan = b->plan;
  prefetch_common(b, b->run->k, plan->k_stride_page, plan->k_stride_head, plan->k_stride_slot, plan->head_dim, o,
                  ta_min_i64(b->shape.keys_per_chunk, end - o));
}

static void prefetch_values(const block *b, int64_t o, int64_t end) {
  const treeattn_plan *plan = b->plan;
  prefetch_common(b, b->run->v, plan->v_stride_page, plan->v_stride_head, plan->v_stride_slot, plan->head_dim_v, o,
                  ta_min_i64(b->shape.keys_per_chunk, end - o));
}

/* ---- scores ---- */

static void score_common(const block *b, const segment *s) {
  const int64_t ld = b->shape.ld;
  for (int64_t o = s->begin; o < s->end; o += b->shape.keys_per_chunk) {
    const int64_t keys = ta_min_i64(b->shape.keys_per_chunk, s->end - o);
    for (int64_t j = 0; j < keys; ++j) {
      load_key(b, common_slot(b, o + j), b->memory.converted + j * b->shape.ldk);
    }
    if (o + keys < s->end) {
      prefetch_keys(b, o + keys, s->end);
    } else {
      prefetch_values(b, s->begin, s->end);
    }
    float *scores = b->memory.scores + o * ld;
    b->kernels->scores(b->memory.qt, ld, b->rows_padded, b->memory.converted, b->shape.ldk, keys, b->plan->head_dim, scores, ld);
    if (b->cap > 0.0f) {
      b->kernels->softcap(scores, ld, b->rows_padded, keys, b->cap);
    }
  }
}

static void fill_node(const block *b, int64_t n, int64_t o, float value) {
  float *cell = b->memory.scores + o * b->shape.ld + n * b->heads;
  for (int64_t h = 0; h < b->heads; ++h) {
    cell[h] = value;
  }
}

static void hide_mixed(const block *b, const segment *s) {
  for (int64_t n = 0; n < b->nodes; ++n) {
    const uint64_t *seen = b->memory.seen + n * TA_LEAF_WORDS;
    for (int64_t o = s->begin; o < s->end; ++o) {
      if (!bit_of(seen, o)) {
        fill_node(b, n, o, -INFINITY);
      }
    }
  }
}

/* Scores `keys` converted keys, which stand at the given offsets, for the rows of one node. */
static void score_node_keys(const block *b, int64_t n, const int32_t *offsets, int64_t keys) {
  const int64_t ld = b->shape.ld;
  const int64_t rows = round_up(b->heads, b->kernels->row_vector);
  float *scores = b->memory.node_scores;
  b->kernels->scores(b->memory.qt + n * b->heads, ld, rows, b->memory.converted, b->shape.ldk, keys, b->plan->head_dim, scores, ld);
  if (b->cap > 0.0f) {
    b->kernels->softcap(scores, ld, rows, keys, b->cap);
  }
  for (int64_t j = 0; j < keys; ++j) {
    memcpy(b->memory.scores + offsets[j] * ld + n * b->heads, scores + j * ld, (size_t)b->heads * sizeof(float));
  }
}

/* Offsets within a segment that a node sees; up to keys_per_chunk from *next on, which is moved past them. */
static int64_t next_offsets(const block *b, const segment *s, const uint64_t *seen, int64_t *next, int32_t *offsets) {
  int64_t keys = 0;
  while (*next < s->end && keys < b->shape.keys_per_chunk) {
    if (bit_of(seen, *next)) {
      offsets[keys++] = (int32_t)*next;
    }
    ++*next;
  }
  return keys;
}

/* The slots of a node's keys, by offset: the row's own walk. */
static const int32_t *slots_of_node(const block *b, int64_t n) {
  uint64_t seen[TA_LEAF_WORDS];
  ta_row_visible(b->task->request, b->task->row_begin + n, b->base / TA_LEAF, seen, b->memory.slots);
  return b->memory.slots;
}

static void score_own(const block *b, const segment *s) {
  int32_t offsets[256];
  for (int64_t n = 0; n < b->nodes; ++n) {
    for (int64_t o = s->begin; o < s->end; ++o) {
      fill_node(b, n, o, -INFINITY);
    }
    const uint64_t *seen = b->memory.seen + n * TA_LEAF_WORDS;
    const int32_t *slots = slots_of_node(b, n);
    for (int64_t next = s->begin; next < s->end;) {
      const int64_t keys = next_offsets(b, s, seen, &next, offsets);
      for (int64_t j = 0; j < keys; ++j) {
        load_key(b, slots[offsets[j]], b->memory.converted + j * b->shape.ldk);
      }
      if (keys > 0) {
        score_node_keys(b, n, offsets, keys);
      }
    }
  }
}

static void add_bias(const block *b) {
  const ta_request *request = b->task->request;
  for (int64_t n = 0; n < b->nodes; ++n) {
    const int64_t row = b->task->row_begin + n;
    const int64_t node = request->node_of_row == NULL ? row : request->node_of_row[row];
    const float *bias = request->bias + node * request->bias_stride;
    const uint64_t *seen = b->memory.seen + n * TA_LEAF_WORDS;
    const int32_t *slots = b->base + TA_LEAF > request->prefix_len ? slots_of_node(b, n) : NULL;
    for (int64_t o = 0; o < TA_LEAF; ++o) {
      if (!bit_of(seen, o)) {
        continue;
      }
      const int64_t slot = b->base + o < request->prefix_len ? b->base + o : slots[o];
      if (slot < request->bias_first_slot || bias[slot - request->bias_first_slot] == 0.0f) {
        continue;
      }
      float *cell = b->memory.scores + o * b->shape.ld + n * b->heads;
      for (int64_t h = 0; h < b->heads; ++h) {
        cell[h] = fmaf(bias[slot - request->bias_first_slot], TA_LOG2E_F, cell[h]);
      }
    }
  }
}

static void score_leaf(block *b) {
  const segment *segments = b->memory.segments;
  for (int64_t n = 0; n < b->num_segments;) {
    if (segments[n].kind == SEGMENT_OWN) {
      score_own(b, &segments[n++]);
      continue;
    }
    /* Neighbours that differ only in how their values are taken are scored together. */
    segment joined = segments[n];
    const int64_t first = n++;
    while (n < b->num_segments && segments[n].kind != SEGMENT_OWN && segments[n].begin == joined.end) {
      joined.end = segments[n++].end;
    }
    score_common(b, &joined);
    for (int64_t m = first; m < n; ++m) {
      if (segments[m].kind == SEGMENT_MIXED) {
        hide_mixed(b, &segments[m]);
      }
    }
  }
  if (b->task->request->bias != NULL) {
    add_bias(b);
  }
  for (int64_t r = 0; r < b->rows_padded; ++r) {
    b->memory.leaf_max[r] = TA_STATE_MAX_OF_NONE;
  }
  for (int64_t n = 0; n < b->num_segments; ++n) {
    b->kernels->maximum(b->memory.scores + segments[n].begin * b->shape.ld, b->shape.ld, b->rows_padded,
                        segments[n].end - segments[n].begin, b->memory.leaf_max);
  }
}

/* ---- values ---- */

static void value_shared(const block *b, const segment *s) {
  const int64_t ld = b->shape.ld;
  const int64_t panel_stride = b->shape.keys_per_chunk * b->kernels->panel_width;
  for (int64_t o = s->begin; o < s->end; o += b->shape.keys_per_chunk) {
    const int64_t keys = ta_min_i64(b->shape.keys_per_chunk, s->end - o);
    for (int64_t j = 0; j < keys; ++j) {
      load_value(b, common_slot(b, o + j), j);
    }
    prefetch_values(b, o + keys, s->end);
    b->kernels->values(b->memory.scores + o * ld, ld, b->rows, b->memory.converted, panel_stride, b->shape.panels, keys,
                       b->memory.leaf_out, b->shape.ldo);
  }
}

/* Adds `keys` weights, ld apart, to the sums of one node's rows, and their values to its out vectors. */
static void value_node_keys(const block *b, int64_t n, const float *weights, int64_t first_key, int64_t keys) {
  const int64_t ld = b->shape.ld;
  float *sum = b->memory.leaf_sum + n * b->heads;
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t h = 0; h < b->heads; ++h) {
      sum[h] += weights[j * ld + h];
    }
  }
  b->kernels->values(weights, ld, b->heads, b->memory.converted + first_key * b->kernels->panel_width,
                     b->shape.keys_per_chunk * b->kernels->panel_width, b->shape.panels, keys,
                     b->memory.leaf_out + n * b->heads * b->shape.ldo, b->shape.ldo);
}

/* A hidden key's value is skipped, not multiplied by zero: it may hold anything. */
static void value_mixed(const block *b, const segment *s) {
  const int64_t ld = b->shape.ld;
  for (int64_t o = s->begin; o < s->end; o += b->shape.keys_per_chunk) {
    const int64_t keys = ta_min_i64(b->shape.keys_per_chunk, s->end - o);
    for (int64_t j = 0; j < keys; ++j) {
      load_value(b, common_slot(b, o + j), j);
    }
    for (int64_t n = 0; n < b->nodes; ++n) {
      const uint64_t *seen = b->memory.seen + n * TA_LEAF_WORDS;
      for (int64_t j = 0; j < keys;) {
        const int64_t first = j;
        while (j < keys && bit_of(seen, o + j)) {
          ++j;
        }
        if (j > first) {
          value_node_keys(b, n, b->memory.scores + (o + first) * ld + n * b->heads, first, j - first);
        } else {
          ++j;
        }
      }
    }
  }
}

static void value_own(const block *b, const segment *s) {
  int32_t offsets[256];
  const int64_t ld = b->shape.ld;
  for (int64_t n = 0; n < b->nodes; ++n) {
    const uint64_t *seen = b->memory.seen + n * TA_LEAF_WORDS;
    const int32_t *slots = slots_of_node(b, n);
    for (int64_t next = s->begin; next < s->end;) {
      const int64_t keys = next_offsets(b, s, seen, &next, offsets);
      for (int64_t j = 0; j < keys; ++j) {
        load_value(b, slots[offsets[j]], j);
        memcpy(b->memory.node_scores + j * ld, b->memory.scores + offsets[j] * ld + n * b->heads, (size_t)b->heads * sizeof(float));
      }
      if (keys > 0) {
        value_node_keys(b, n, b->memory.node_scores, 0, keys);
      }
    }
  }
}

static void value_leaf(const block *b) {
  memset(b->memory.leaf_sum, 0, (size_t)b->rows_padded * sizeof(float));
  memset(b->memory.leaf_out, 0, (size_t)(b->rows * b->shape.ldo) * sizeof(float));
  for (int64_t n = 0; n < b->num_segments; ++n) {
    const segment *s = &b->memory.segments[n];
    float *scores = b->memory.scores + s->begin * b->shape.ld;
    float *sum = s->kind == SEGMENT_SHARED ? b->memory.leaf_sum : NULL;
    b->kernels->weights(scores, b->shape.ld, b->rows_padded, s->end - s->begin, b->memory.leaf_max, sum);
    switch (s->kind) {
      case SEGMENT_SHARED: value_shared(b, s); break;
      case SEGMENT_MIXED: value_mixed(b, s); break;
      case SEGMENT_OWN: value_own(b, s); break;
      case SEGMENT_NONE: break;
    }
  }
}

/* ---- the block ---- */

static void close_group(const block *b) {
  for (int64_t r = 0; r < b->rows; ++r) {
    ta_join(b->kernels->merge, &b->memory.total[r], b->memory.total_out + r * b->shape.ldo, b->memory.group[r],
            b->memory.group_out + r * b->shape.ldo, b->plan->head_dim_v);
    b->memory.group[r] = ta_state_empty();
  }
}

static void store_rows(const block *b, float *partial) {
  const ta_request *request = b->task->request;
  for (int64_t r = 0; r < b->rows; ++r) {
    const int64_t row = b->task->row_begin + r / b->heads;
    const int64_t h = b->task->head_begin + r % b->heads;
    const ta_state state = b->memory.total[r];
    float *out = b->memory.total_out + r * b->shape.ldo;
    if (request->num_chunks == 1) {
      ta_finish_row(b->plan, b->run, request, row, h, state, out);
    } else {
      float *target = partial + ta_partial_index(b->plan, request, row, h, b->task->chunk);
      target[0] = state.max;
      target[1] = state.sum;
      memcpy(target + 2, out, (size_t)b->plan->head_dim_v * sizeof(float));
    }
  }
}

void ta_driver_attend(const treeattn_plan *plan, const treeattn_run_args *run, const ta_task *task, void *worker_memory,
                      float *partial) {
  block b;
  memset(&b, 0, sizeof b);
  b.plan = plan;
  b.run = run;
  b.kernels = plan->kernels;
  b.task = task;
  b.shape = shape_of(plan);
  b.cap = ta_plan_query_scale(plan).cap;
  b.nodes = task->row_end - task->row_begin;
  b.heads = task->head_end - task->head_begin;
  b.rows = b.nodes * b.heads;
  b.rows_padded = round_up(b.rows, plan->kernels->row_vector);
  ta_arena arena = {worker_memory, 0, false};
  take_memory(&b.shape, plan, &arena, &b.memory);

  pack_queries(&b);
  for (int64_t r = 0; r < b.rows; ++r) {
    b.memory.group[r] = ta_state_empty();
    b.memory.total[r] = ta_state_empty();
  }
  for (int64_t leaf = task->leaf_begin; leaf < task->leaf_end; ++leaf) {
    if (leaf % TA_GROUP_LEAVES == 0) {
      close_group(&b);
    }
    b.base = leaf * TA_LEAF;
    find_segments(&b, leaf);
    if (b.num_segments == 0) {
      continue;
    }
    score_leaf(&b);
    value_leaf(&b);
    for (int64_t r = 0; r < b.rows; ++r) {
      const ta_state state = {b.memory.leaf_max[r], b.memory.leaf_sum[r]};
      ta_join(plan->kernels->merge, &b.memory.group[r], b.memory.group_out + r * b.shape.ldo, state,
              b.memory.leaf_out + r * b.shape.ldo, plan->head_dim_v);
    }
  }
  close_group(&b);
  store_rows(&b, partial);
}
