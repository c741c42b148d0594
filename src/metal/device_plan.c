/* SPDX-License-Identifier: Apache-2.0 */
/* Flattens a plan for the device: dry to find the size, then for good, as plans are made. */
#include "device_plan.h"

#include <string.h>

#include "../cpu/backend.h"

typedef struct flattening {
  const treeattn_plan *plan;
  ta_arena arena; /* base NULL: dry */
  ta_metal_plan *header;
  ta_metal_request *requests;
  ta_metal_tile *tiles;
  ta_metal_leaf *leaves;
  ta_metal_key *keys;
  int32_t *request_of_row;
  ta_metal_counts count; /* of what is listed so far */
  int64_t partial_floats;
} flattening;

/* What the nodes of a tile see in a leaf. A tile has at most TA_METAL_ROWS nodes. */
typedef struct tile_view {
  int64_t first_node, num_nodes; /* query rows of the request */
  uint32_t rows_of_node[TA_METAL_ROWS];
  uint64_t seen[TA_METAL_ROWS][TA_LEAF_WORDS];
  int32_t slots[TA_METAL_ROWS][TA_LEAF];
} tile_view;

static treeattn_status fail_large(const char *what, int64_t value, treeattn_error *error) {
  return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "%s is %lld: the Metal back end takes at most %d", what,
                 (long long)value, INT32_MAX);
}

static void view_nodes(const treeattn_plan *plan, const ta_metal_tile *tile, tile_view *view) {
  memset(view, 0, sizeof *view);
  view->first_node = tile->first / plan->group;
  for (int32_t r = 0; r < tile->num_rows; ++r) {
    const int64_t n = (tile->first + r) / plan->group - view->first_node;
    view->rows_of_node[n] |= 1u << r;
    view->num_nodes = n + 1;
  }
}

/* true if every row sees all positions of the leaf and all of them are prefix. */
static bool view_leaf(const ta_request *request, int64_t leaf, tile_view *view) {
  bool plain = (leaf + 1) * TA_LEAF <= request->prefix_len;
  for (int64_t n = 0; n < view->num_nodes; ++n) {
    ta_row_visible(request, view->first_node + n, leaf, view->seen[n], view->slots[n]);
    for (int64_t word = 0; word < TA_LEAF_WORDS; ++word) {
      plain = plain && view->seen[n][word] == ~(uint64_t)0;
    }
  }
  return plain;
}

/* The keys at one position: one for each slot that nodes differ in. */
static void list_position(flattening *f, const ta_request *request, int64_t leaf, int64_t o, const tile_view *view) {
  const int64_t p = leaf * TA_LEAF + o;
  const int64_t first = f->count.num_keys;
  ta_metal_key found[TA_METAL_ROWS];
  int64_t count = 0;
  for (int64_t n = 0; n < view->num_nodes; ++n) {
    if ((view->seen[n][o / 64] >> (o % 64) & 1) == 0) {
      continue;
    }
    const int32_t slot = p < request->prefix_len ? (int32_t)p : view->slots[n][o];
    int64_t at = 0;
    while (at < count && found[at].slot != slot) {
      ++at;
    }
    if (at == count) {
      found[count].slot = slot;
      found[count++].place = (uint32_t)o;
    }
    found[at].place |= view->rows_of_node[n] << 16;
  }
  for (int64_t n = 0; n < count && f->keys != NULL; ++n) {
    f->keys[first + n] = found[n];
  }
  f->count.num_keys += count;
}

static void list_leaf(flattening *f, const ta_request *request, int64_t leaf, const tile_view *view) {
  ta_metal_leaf record;
  memset(&record, 0, sizeof record);
  record.keys = f->count.num_keys;
  for (int64_t o = 0; o < TA_LEAF; ++o) {
    if (o % TA_BLOCK == 0) {
      record.block_first[o / TA_BLOCK] = (int32_t)(f->count.num_keys - record.keys);
    }
    list_position(f, request, leaf, o, view);
  }
  record.block_first[TA_LEAF_WORDS] = (int32_t)(f->count.num_keys - record.keys);
  if (f->leaves != NULL) {
    f->leaves[f->count.num_leaves] = record;
  }
  ++f->count.num_leaves;
}

/* The first run of plain leaves needs no record; in a decoding step it is the whole prefix but its last leaf. */
static void add_tile(flattening *f, int64_t index, int64_t first, int64_t pairs) {
  const ta_request *request = &f->plan->requests[index];
  ta_metal_tile tile;
  memset(&tile, 0, sizeof tile);
  tile.first = (int32_t)first;
  tile.leaves = f->count.num_leaves;
  tile.request = (int32_t)index;
  tile.num_rows = (int32_t)ta_min_i64(pairs - first, TA_METAL_ROWS);
  tile.plain_begin = tile.plain_end = (int32_t)request->leaf_end;
  tile_view view;
  view_nodes(f->plan, &tile, &view);
  for (int64_t leaf = request->leaf_begin; leaf < request->leaf_end; ++leaf) {
    if (!view_leaf(request, leaf, &view)) {
      list_leaf(f, request, leaf, &view);
    } else if (tile.plain_begin == request->leaf_end) {
      tile.plain_begin = (int32_t)leaf;
      tile.plain_end = (int32_t)leaf + 1;
    } else if (tile.plain_end == leaf) {
      tile.plain_end = (int32_t)leaf + 1;
    } else {
      list_leaf(f, request, leaf, &view);
    }
  }
  if (f->tiles != NULL) {
    f->tiles[f->count.num_tiles] = tile;
  }
  ++f->count.num_tiles;
}

/* A group of leaves is the work of one threadgroup where that makes enough of them, otherwise a leaf is. */
static void cut_chunks(const treeattn_plan *plan, const ta_request *request, int64_t tiles, ta_metal_request *out) {
  const int64_t leaves = ta_max_i64(request->leaf_end - request->leaf_begin, 0);
  const int64_t groups = (leaves + TA_GROUP_LEAVES - 1) / TA_GROUP_LEAVES;
  out->chunk_leaves = tiles * plan->num_kv_heads * groups >= plan->num_workers ? TA_GROUP_LEAVES : 1;
  out->leaf_begin = (int32_t)request->leaf_begin;
  out->leaf_end = (int32_t)request->leaf_end;
  out->num_chunks =
      leaves == 0
          ? 0
          : (int32_t)((request->leaf_end - 1) / out->chunk_leaves - request->leaf_begin / out->chunk_leaves + 1);
}

/* Offset from the header of what was just taken. */
static int64_t offset_of(const flattening *f, int64_t count, size_t element) {
  return (int64_t)(f->arena.used - (size_t)count * element);
}

static void copy_pages(flattening *f, const ta_request *request, ta_metal_request *out) {
  const int64_t size = f->plan->page_size;
  const int64_t pages = request->kv_seq_len / size + (request->kv_seq_len % size != 0);
  void *copy = ta_arena_take(&f->arena, pages, sizeof(int32_t));
  out->page_table = offset_of(f, pages, sizeof(int32_t));
  if (copy != NULL && pages > 0) {
    memcpy(copy, request->page_table, (size_t)pages * sizeof(int32_t));
  }
}

static void copy_bias(flattening *f, const ta_request *request, ta_metal_request *out) {
  const int64_t columns = request->kv_seq_len - request->bias_first_slot;
  int64_t cells = 0;
  if (!ta_mul_i64(request->num_rows, columns, &cells)) {
    f->arena.overflow = true;
    return;
  }
  float *copy = ta_arena_take(&f->arena, cells, sizeof(float));
  out->bias = offset_of(f, cells, sizeof(float));
  out->bias_columns = columns;
  out->bias_first_slot = (int32_t)request->bias_first_slot;
  for (int64_t r = 0; r < request->num_rows && copy != NULL; ++r) {
    const int64_t node = request->node_of_row == NULL ? r : request->node_of_row[r];
    memcpy(copy + r * columns, request->bias + node * request->bias_stride, (size_t)columns * sizeof(float));
  }
}

static treeattn_status add_request(flattening *f, int64_t index, treeattn_error *error) {
  const treeattn_plan *plan = f->plan;
  const ta_request *request = &plan->requests[index];
  ta_metal_request out;
  memset(&out, 0, sizeof out);
  int64_t pairs = 0;
  int64_t floats = 0;
  if (!ta_mul_i64(request->num_rows, plan->group, &pairs) || pairs > INT32_MAX) {
    return fail_large("query rows of a request times heads of a group", pairs, error);
  }
  cut_chunks(plan, request, (pairs + TA_METAL_ROWS - 1) / TA_METAL_ROWS, &out);
  out.cache_index = request->cache_index;
  out.first_row = (int32_t)request->first_row;
  out.partial = f->partial_floats;
  if (!ta_mul_i64(request->num_rows, plan->num_heads, &floats) || !ta_mul_i64(floats, out.num_chunks, &floats) ||
      !ta_mul_i64(floats, ta_partial_floats(plan), &floats) ||
      !ta_add_i64(f->partial_floats, floats, &f->partial_floats)) {
    return ta_plan_fail_overflow("partial results (query rows, num_heads, leaves, head_dim_v)", error);
  }
  if (plan->paged) {
    copy_pages(f, request, &out);
  }
  if (request->bias != NULL) {
    copy_bias(f, request, &out);
  }
  for (int64_t r = 0; r < request->num_rows && f->request_of_row != NULL; ++r) {
    f->request_of_row[request->first_row + r] = (int32_t)index;
  }
  for (int64_t first = 0; first < pairs && out.num_chunks > 0; first += TA_METAL_ROWS) {
    add_tile(f, index, first, pairs);
  }
  f->header->num_chunks = (int32_t)ta_max_i64(f->header->num_chunks, out.num_chunks);
  if (f->requests != NULL) {
    f->requests[index] = out;
  }
  return TREEATTN_OK;
}

static void take_requests(flattening *f) {
  const treeattn_plan *plan = f->plan;
  (void)ta_arena_take(&f->arena, 1, sizeof(ta_metal_plan));
  f->requests = ta_arena_take(&f->arena, plan->num_requests, sizeof(ta_metal_request));
  f->header->requests = offset_of(f, plan->num_requests, sizeof(ta_metal_request));
  f->request_of_row = ta_arena_take(&f->arena, plan->num_rows, sizeof(int32_t));
  f->header->request_of_row = offset_of(f, plan->num_rows, sizeof(int32_t));
}

/* The arrays whose lengths a dry run has found. */
static void take_lists(flattening *f, const ta_metal_counts *counts) {
  f->tiles = ta_arena_take(&f->arena, counts->num_tiles, sizeof(ta_metal_tile));
  f->header->tiles = offset_of(f, counts->num_tiles, sizeof(ta_metal_tile));
  f->leaves = ta_arena_take(&f->arena, counts->num_leaves, sizeof(ta_metal_leaf));
  f->header->leaves = offset_of(f, counts->num_leaves, sizeof(ta_metal_leaf));
  f->keys = ta_arena_take(&f->arena, counts->num_keys, sizeof(ta_metal_key));
  f->header->keys = offset_of(f, counts->num_keys, sizeof(ta_metal_key));
}

/* Dry, counts is NULL: the lists have their lengths afterwards, and are taken then. Everything is aligned alike, so that the
 * order does not change the size. */
static treeattn_status flatten(flattening *f, const ta_metal_counts *counts, treeattn_error *error) {
  const treeattn_plan *plan = f->plan;
  ta_metal_plan *header = f->header;
  memset(header, 0, sizeof *header);
  take_requests(f);
  if (counts != NULL) {
    take_lists(f, counts);
  }
  for (int64_t b = 0; b < plan->num_requests; ++b) {
    const treeattn_status status = add_request(f, b, error);
    if (status != TREEATTN_OK) {
      return status;
    }
  }
  if (counts == NULL) {
    take_lists(f, &f->count);
  }
  (void)ta_arena_take(&f->arena, 0, 1); /* rounds up */
  int64_t scratch = 0;
  if (f->arena.overflow || f->arena.used > PTRDIFF_MAX ||
      !ta_mul_i64(f->partial_floats, (int64_t)sizeof(float), &scratch)) {
    return ta_plan_fail_overflow("device part of the plan", error);
  }
  if (f->count.num_tiles > INT32_MAX) {
    return fail_large("tiles", f->count.num_tiles, error);
  }
  header->bytes = (int64_t)f->arena.used;
  header->scratch_bytes = scratch;
  header->q_bytes = (int64_t)plan->q_bytes;
  header->k_bytes = (int64_t)plan->k_bytes;
  header->v_bytes = (int64_t)plan->v_bytes;
  header->out_bytes = (int64_t)plan->out_bytes;
  header->num_rows = (int32_t)plan->num_rows;
  header->num_tiles = (int32_t)f->count.num_tiles;
  header->num_kv_heads = (int32_t)plan->num_kv_heads;
  header->num_heads = (int32_t)plan->num_heads;
  header->magic = TA_METAL_MAGIC;
  return TREEATTN_OK;
}

treeattn_status ta_metal_measure(const treeattn_plan *plan, ta_metal_counts *counts, ta_metal_plan *header,
                                 treeattn_error *error) {
  flattening dry;
  memset(&dry, 0, sizeof dry);
  dry.plan = plan;
  dry.header = header;
  if (plan->num_rows > INT32_MAX) {
    return fail_large("query rows of the batch", plan->num_rows, error);
  }
  const treeattn_status status = flatten(&dry, NULL, error);
  *counts = dry.count;
  return status;
}

treeattn_status ta_metal_flatten(const treeattn_plan *plan, const ta_metal_counts *counts, void *memory,
                                 treeattn_error *error) {
  ta_metal_plan header;
  flattening real;
  memset(&real, 0, sizeof real);
  real.plan = plan;
  real.header = &header;
  real.arena.base = memory;
  const treeattn_status status = flatten(&real, counts, error);
  if (status == TREEATTN_OK) {
    memcpy(memory, &header, sizeof header);
  }
  return status;
}

ta_metal_params ta_metal_params_of(const treeattn_plan *plan, bool has_sinks, bool has_lse) {
  const ta_query_scale scale = ta_plan_query_scale(plan);
  ta_metal_params params;
  memset(&params, 0, sizeof params);
  params.q_stride_head = plan->q_stride_head;
  params.q_stride_row = plan->q_stride_row;
  params.out_stride_row = plan->out_stride_row;
  params.out_stride_head = plan->out_stride_head;
  params.lse_stride_row = plan->lse_stride_row;
  params.lse_stride_head = plan->lse_stride_head;
  params.k_stride_page = plan->k_stride_page;
  params.k_stride_head = plan->k_stride_head;
  params.k_stride_slot = plan->k_stride_slot;
  params.v_stride_page = plan->v_stride_page;
  params.v_stride_head = plan->v_stride_head;
  params.v_stride_slot = plan->v_stride_slot;
  params.num_heads = (int32_t)plan->num_heads;
  params.group = (int32_t)plan->group;
  /* Slots are below 2^31, so that a longer page is a page of that length. */
  params.page_size = plan->paged ? (int32_t)ta_min_i64(plan->page_size, INT32_MAX) : 0;
  params.has_sinks = has_sinks;
  params.has_lse = has_lse;
  params.scale_hi = scale.hi;
  params.scale_lo = scale.lo;
  params.cap = scale.cap;
  params.one = 1.0f;
  params.zero = 0.0f;
  return params;
}
