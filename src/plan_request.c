/* SPDX-License-Identifier: Apache-2.0 */
/* One request of a plan: checks its sizes and content and records what each of its rows sees. */
#include <string.h>

#include "cpu/kernels.h"
#include "mask.h"
#include "plan.h"
#include "tree.h"

typedef struct request_sizes {
  int64_t stride, columns; /* of the mask, in its own elements */
  size_t row_bytes;        /* of one mask row that is read */
} request_sizes;

static bool is_tree(treeattn_mask_kind kind) {
  return kind == TREEATTN_MASK_CHAIN || kind == TREEATTN_MASK_PARENTS || kind == TREEATTN_MASK_INTERVALS;
}

#define FAIL_ARGUMENT(...) ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

static treeattn_status check_lengths(int64_t index, const treeattn_request *in, ta_request *out,
                                     treeattn_error *error) {
  const long long b = index;
  if (in->num_nodes < 0 || in->num_nodes > INT32_MAX) {
    return FAIL_ARGUMENT("requests[%lld].num_nodes is %lld: must be 0 to %d", b, (long long)in->num_nodes, INT32_MAX);
  }
  if (in->prefix_len < TREEATTN_AUTO || in->prefix_len > INT32_MAX) {
    return FAIL_ARGUMENT("requests[%lld].prefix_len is %lld: must be 0 to %d, or TREEATTN_AUTO", b,
                         (long long)in->prefix_len, INT32_MAX);
  }
  if (in->kv_seq_len < TREEATTN_AUTO || in->kv_seq_len > INT32_MAX) {
    return FAIL_ARGUMENT("requests[%lld].kv_seq_len is %lld: must be 0 to %d, or TREEATTN_AUTO", b,
                         (long long)in->kv_seq_len, INT32_MAX);
  }
  if (in->prefix_len == TREEATTN_AUTO && in->kv_seq_len == TREEATTN_AUTO) {
    return FAIL_ARGUMENT("requests[%lld].prefix_len and kv_seq_len are both TREEATTN_AUTO: one must be given", b);
  }
  const int64_t nodes = in->num_nodes;
  int64_t prefix = in->prefix_len;
  int64_t kv = in->kv_seq_len == TREEATTN_AUTO ? prefix + nodes : in->kv_seq_len;
  if (is_tree(in->mask_kind)) {
    if (prefix == TREEATTN_AUTO) {
      prefix = kv - nodes;
    }
    if (prefix < 0 || kv < prefix + nodes) {
      return FAIL_ARGUMENT("requests[%lld].kv_seq_len is %lld: must be at least prefix_len (%lld) + num_nodes (%lld)",
                           b, (long long)kv, (long long)(prefix < 0 ? 0 : prefix), (long long)nodes);
    }
  } else {
    const int64_t implied = kv - ta_min_i64(nodes, kv);
    if (prefix != TREEATTN_AUTO && prefix != implied) {
      return FAIL_ARGUMENT(
          "requests[%lld].prefix_len is %lld: with a dense, bool or bit mask the rows are the last num_nodes (%lld) of "
          "kv_seq_len (%lld) slots, which makes it %lld",
          b, (long long)prefix, (long long)nodes, (long long)kv, (long long)implied);
    }
    prefix = implied;
  }
  if (prefix + nodes > INT32_MAX || kv > INT32_MAX) {
    return FAIL_ARGUMENT("requests[%lld].prefix_len (%lld) + num_nodes (%lld) must be at most %d", b, (long long)prefix,
                         (long long)nodes, INT32_MAX);
  }
  out->num_nodes = nodes;
  out->prefix_len = prefix;
  out->kv_seq_len = kv;
  out->num_tail = kv - prefix < nodes ? kv - prefix : nodes;
  return TREEATTN_OK;
}

static treeattn_status check_mask_buffer(int64_t index, const treeattn_request *in, const ta_request *out,
                                         request_sizes *sizes, treeattn_error *error) {
  const long long b = index;
  size_t need = 0;
  bool fits = true;
  memset(sizes, 0, sizeof *sizes);
  switch (in->mask_kind) {
    case TREEATTN_MASK_CHAIN:
      if (in->mask != NULL) {
        return FAIL_ARGUMENT("requests[%lld].mask is not NULL: TREEATTN_MASK_CHAIN takes none", b);
      }
      return TREEATTN_OK;
    case TREEATTN_MASK_PARENTS: need = (size_t)out->num_nodes * sizeof(int32_t); break;
    case TREEATTN_MASK_INTERVALS: need = (size_t)out->num_nodes * 2 * sizeof(int32_t); break;
    case TREEATTN_MASK_DENSE_F32:
    case TREEATTN_MASK_DENSE_BOOL:
    case TREEATTN_MASK_BITS: {
      if (in->mask_columns < 0 || in->mask_columns > out->kv_seq_len) {
        return FAIL_ARGUMENT("requests[%lld].mask_columns is %lld: must be 0 to kv_seq_len (%lld)", b,
                             (long long)in->mask_columns, (long long)out->kv_seq_len);
      }
      const bool bits = in->mask_kind == TREEATTN_MASK_BITS;
      sizes->columns = in->mask_columns == 0 ? out->kv_seq_len : in->mask_columns;
      const int64_t row_elements = bits ? (sizes->columns + 7) / 8 : sizes->columns;
      sizes->stride = in->mask_stride == 0 ? row_elements : in->mask_stride;
      if (sizes->stride < row_elements) {
        return FAIL_ARGUMENT("requests[%lld].mask_stride is %lld: must be at least %lld, what %lld columns need", b,
                             (long long)in->mask_stride, (long long)row_elements, (long long)sizes->columns);
      }
      const size_t element = in->mask_kind == TREEATTN_MASK_DENSE_F32 ? sizeof(float) : 1;
      if (out->num_nodes > 0) {
        fits = ta_mul_size((size_t)(out->num_nodes - 1), (size_t)sizes->stride, &need) &&
               ta_add_size(need, (size_t)row_elements, &need) && ta_mul_size(need, element, &need);
      }
      break;
    }
    default: return FAIL_ARGUMENT("requests[%lld].mask_kind is %d: not a treeattn_mask_kind", b, (int)in->mask_kind);
  }
  if (!fits) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW,
                   "requests[%lld].mask_stride is %lld: num_nodes (%lld) rows of it overflow", b,
                   (long long)in->mask_stride, (long long)out->num_nodes);
  }
  if (need > 0 && in->mask == NULL) {
    return FAIL_ARGUMENT("requests[%lld].mask is NULL: mask_kind %d needs %zu bytes", b, (int)in->mask_kind, need);
  }
  if (in->mask_bytes < need) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "requests[%lld].mask_bytes is %zu: the mask needs %zu", b,
                   in->mask_bytes, need);
  }
  return TREEATTN_OK;
}

static treeattn_status check_cache(const treeattn_plan_args *args, int64_t index, const treeattn_request *in,
                                   ta_request *out, treeattn_error *error) {
  const long long b = index;
  if (args->page_size == 0) {
    const int64_t sequences = args->num_sequences == 0 ? args->num_requests : args->num_sequences;
    if (in->cache_index < 0 || in->cache_index >= sequences) {
      return FAIL_ARGUMENT("requests[%lld].cache_index is %lld: must be 0 to num_sequences (%lld) - 1", b,
                           (long long)in->cache_index, (long long)sequences);
    }
    if (args->kv_capacity < out->kv_seq_len) {
      return FAIL_ARGUMENT("kv_capacity (%lld) must be >= kv_seq_len (%lld) of requests[%lld]",
                           (long long)args->kv_capacity, (long long)out->kv_seq_len, b);
    }
    out->cache_index = in->cache_index;
    return TREEATTN_OK;
  }
  const int64_t pages = out->kv_seq_len / args->page_size + (out->kv_seq_len % args->page_size != 0);
  if (in->page_table_len < pages) {
    return FAIL_ARGUMENT("requests[%lld].page_table_len is %lld: %lld slots in pages of %lld need %lld", b,
                         (long long)in->page_table_len, (long long)out->kv_seq_len, (long long)args->page_size,
                         (long long)pages);
  }
  if (pages > 0 && in->page_table == NULL) {
    return FAIL_ARGUMENT("requests[%lld].page_table is NULL: %lld pages are needed", b, (long long)pages);
  }
  for (int64_t n = 0; n < pages; ++n) {
    if (in->page_table[n] < 0 || in->page_table[n] >= args->num_pages) {
      return FAIL_ARGUMENT("requests[%lld].page_table[%lld] is %d: must be 0 to num_pages (%lld) - 1", b, (long long)n,
                           (int)in->page_table[n], (long long)args->num_pages);
    }
  }
  out->page_table = in->page_table;
  return TREEATTN_OK;
}

static treeattn_status copy_queries(int64_t index, const treeattn_request *in, const ta_request *out,
                                    int32_t *node_of_row, uint64_t *marks, treeattn_error *error) {
  const long long b = index;
  memset(marks, 0, (size_t)((out->num_nodes + 63) / 64) * sizeof *marks);
  for (int64_t r = 0; r < out->num_rows; ++r) {
    const int32_t node = in->query_nodes[r];
    if (node < 0 || node >= out->num_nodes) {
      return FAIL_ARGUMENT("requests[%lld].query_nodes[%lld] is %d: must be 0 to num_nodes (%lld) - 1", b, (long long)r,
                           (int)node, (long long)out->num_nodes);
    }
    if (marks[node / 64] >> (node % 64) & 1) {
      return FAIL_ARGUMENT("requests[%lld].query_nodes[%lld] is %d, which is there already", b, (long long)r,
                           (int)node);
    }
    marks[node / 64] |= (uint64_t)1 << (node % 64);
    node_of_row[r] = node;
  }
  return TREEATTN_OK;
}

typedef struct request_arrays {
  int32_t *node_of_row, *row_position, *first_visible, *prefix_first;
  int32_t *parent, *run_start, *depth, *order;
  uint64_t *prefix_bits, *tail_bits, *marks;
  int32_t *tail_position;
} request_arrays;

static void set_row(const treeattn_plan_args *args, const ta_request *out, const request_arrays *a, int64_t r,
                    int64_t position) {
  const int64_t first = args->window > 0 ? ta_max_i64(0, position - args->window + 1) : 0;
  a->row_position[r] = (int32_t)position;
  a->first_visible[r] = (int32_t)first;
  a->prefix_first[r] = (int32_t)ta_min_i64(first, out->prefix_len);
}

static treeattn_status fill_tree(const treeattn_plan_args *args, int64_t index, const treeattn_request *in,
                                 ta_request *out, const request_arrays *a, treeattn_error *error) {
  const int64_t nodes = out->num_nodes;
  treeattn_status status = TREEATTN_OK;
  if (in->mask_kind == TREEATTN_MASK_CHAIN) {
    for (int64_t i = 0; i < nodes; ++i) {
      a->parent[i] = (int32_t)(i - 1);
    }
  } else if (in->mask_kind == TREEATTN_MASK_PARENTS) {
    status = ta_tree_check_parents(nodes, in->mask, "parents", error);
    if (status == TREEATTN_OK && nodes > 0) {
      memcpy(a->parent, in->mask, (size_t)nodes * sizeof(int32_t));
    }
  } else {
    status = ta_mask_intervals_to_parents(nodes, in->mask, a->order, a->parent, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  for (int64_t i = 0; i < nodes; ++i) {
    const int32_t parent = a->parent[i];
    a->depth[i] = parent < 0 ? 0 : a->depth[parent] + 1;
    a->run_start[i] = parent >= 0 && parent == i - 1 ? a->run_start[i - 1] : (int32_t)i;
    if (in->positions != NULL && in->positions[i] != out->prefix_len + a->depth[i]) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_TREE,
                     "requests[%lld].positions[%lld] is %d: a tree's node has prefix_len (%lld) + depth (%d)",
                     (long long)index, (long long)i, (int)in->positions[i], (long long)out->prefix_len,
                     (int)a->depth[i]);
    }
  }
  int64_t lowest = INT64_MAX;
  int64_t highest = -1;
  for (int64_t r = 0; r < out->num_rows; ++r) {
    const int64_t node = a->node_of_row == NULL ? r : a->node_of_row[r];
    set_row(args, out, a, r, out->prefix_len + a->depth[node]);
    lowest = ta_min_i64(lowest, a->first_visible[r]);
    highest = ta_max_i64(highest, a->row_position[r]);
  }
  if (out->num_rows > 0) {
    out->leaf_begin = lowest / TA_LEAF;
    out->leaf_end = highest / TA_LEAF + 1;
  }
  out->parent = a->parent;
  out->run_start = a->run_start;
  return TREEATTN_OK;
}

/* Bits of slots [slot, slot + count) of a mask row whose columns begin at slot first_slot; slots before them are
 * seen. */
static uint64_t slot_bits(treeattn_mask_kind kind, const void *row, int64_t first_slot, int64_t slot, int64_t count,
                          ta_scan_cells_fn scan, ta_mask_facts *facts) {
  const int64_t open = ta_min_i64(ta_max_i64(first_slot - slot, 0), count);
  uint64_t bits = open == 64 ? ~(uint64_t)0 : ((uint64_t)1 << open) - 1;
  if (open < count) {
    bits |= ta_mask_bits(kind, row, slot + open - first_slot, count - open, scan, facts) << open;
  }
  return bits;
}

/* In sums of neighbours: a loop over ones would take longer than reading the mask. */
static int64_t count_ones(uint64_t bits) {
  const uint64_t pairs = bits - (bits >> 1 & UINT64_C(0x5555555555555555));
  const uint64_t fours = (pairs & UINT64_C(0x3333333333333333)) + (pairs >> 2 & UINT64_C(0x3333333333333333));
  const uint64_t bytes = (fours + (fours >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
  return (int64_t)(bytes * UINT64_C(0x0101010101010101) >> 56);
}

/* Where a dense mask is invalid: found again, column by column, once it is known to be. */
static treeattn_status fail_mask(int64_t index, const float *row, int64_t node, int64_t columns,
                                 treeattn_error *error) {
  int64_t c = 0;
  while (c + 1 < columns && row[c] <= TA_LARGEST_LOGIT) {
    ++c;
  }
  return ta_fail(error, TREEATTN_ERROR_INVALID_MASK,
                 "requests[%lld].mask row %lld, column %lld is %g: must be at most 2^127, or -infinity",
                 (long long)index, (long long)node, (long long)c, (double)row[c]);
}

/* The tail positions of one row must differ from each other, or the order of its keys would not be defined. */
static treeattn_status check_row_positions(int64_t index, int64_t node, const ta_request *out, const uint64_t *bits,
                                           const int32_t *tail_position, uint64_t *marks, treeattn_error *error) {
  memset(marks, 0, (size_t)((out->num_nodes + 63) / 64) * sizeof *marks);
  for (int64_t j = 0; j < out->num_tail; ++j) {
    if (bits[j / 64] >> (j % 64) & 1) {
      const int64_t offset = tail_position[j] - out->prefix_len;
      if (marks[offset / 64] >> (offset % 64) & 1) {
        return ta_fail(error, TREEATTN_ERROR_INVALID_TREE,
                       "requests[%lld].positions[%lld] is %d: row %lld sees that position twice", (long long)index,
                       (long long)j, (int)tail_position[j], (long long)node);
      }
      marks[offset / 64] |= (uint64_t)1 << (offset % 64);
    }
  }
  return TREEATTN_OK;
}

static treeattn_status fill_positions(int64_t index, const treeattn_request *in, const ta_request *out,
                                      const request_arrays *a, treeattn_error *error) {
  if (out->num_tail != out->num_nodes) {
    return FAIL_ARGUMENT(
        "requests[%lld].positions is not NULL: num_nodes (%lld) rows over kv_seq_len (%lld) slots have no slots of "
        "their own",
        (long long)index, (long long)out->num_nodes, (long long)out->kv_seq_len);
  }
  for (int64_t j = 0; j < out->num_nodes; ++j) {
    if (in->positions[j] < out->prefix_len || in->positions[j] >= out->prefix_len + out->num_nodes) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_TREE,
                     "requests[%lld].positions[%lld] is %d: must be prefix_len (%lld) to %lld", (long long)index,
                     (long long)j, (int)in->positions[j], (long long)out->prefix_len,
                     (long long)(out->prefix_len + out->num_nodes - 1));
    }
    a->tail_position[j] = in->positions[j];
  }
  return TREEATTN_OK;
}

/* Reads the prefix part of a row into bits. Returns where it starts to see (the prefix length if nowhere), and in
 * *plain whether it sees everything from there on. */
static int64_t read_prefix(const treeattn_request *in, const void *row, int64_t first_slot, const ta_request *out,
                           uint64_t *bits, ta_scan_cells_fn scan, ta_mask_facts *facts, bool *plain) {
  const int64_t before = ta_min_i64((first_slot + 63) / 64, out->prefix_words); /* words with slots before the mask */
  const int64_t whole = ta_max_i64(out->prefix_len / 64 - before, 0);
  ta_mask_words(in->mask_kind, row, 64 * before - first_slot, whole, bits + before, scan, facts);
  int64_t first = out->prefix_len;
  int64_t seen = 0;
  for (int64_t word = 0; word < out->prefix_words; ++word) {
    const int64_t slot = 64 * word;
    if (word < before || word >= before + whole) {
      bits[word] = slot_bits(in->mask_kind, row, first_slot, slot, ta_min_i64(64, out->prefix_len - slot), scan, facts);
    }
    if (bits[word] != 0 && first == out->prefix_len) {
      first = slot + count_ones((bits[word] & (~bits[word] + 1)) - 1);
    }
    seen += bits[word] == ~(uint64_t)0 ? 64 : count_ones(bits[word]);
  }
  *plain = seen == out->prefix_len - first;
  return first;
}

static treeattn_status fill_mask(const treeattn_plan_args *args, int64_t index, const treeattn_request *in,
                                 const request_sizes *sizes, ta_request *out, const request_arrays *a,
                                 treeattn_error *error) {
  const size_t element = in->mask_kind == TREEATTN_MASK_DENSE_F32 ? sizeof(float) : 1;
  const int64_t first_slot = out->kv_seq_len - sizes->columns;
  const ta_kernels *kernels = ta_kernels_for(args->isa == TREEATTN_ISA_AUTO ? treeattn_isa_detect() : args->isa);
  const ta_scan_cells_fn scan = kernels == NULL ? NULL : kernels->scan_cells;
  ta_mask_facts facts = {false, false};
  bool all_plain = true;
  int64_t lowest = out->prefix_len;
  int64_t highest = out->prefix_len - 1;
  if (in->positions != NULL) {
    const treeattn_status status = fill_positions(index, in, out, a, error);
    if (status != TREEATTN_OK) {
      return status;
    }
    out->tail_position = a->tail_position;
  }
  for (int64_t r = 0; r < out->num_rows; ++r) {
    const int64_t node = a->node_of_row == NULL ? r : a->node_of_row[r];
    const unsigned char *row = (const unsigned char *)in->mask + (size_t)node * (size_t)sizes->stride * element;
    uint64_t *tail = a->tail_bits + r * out->tail_words;
    int64_t position = out->prefix_len;
    int64_t seen = 0;
    for (int64_t word = 0; word < out->tail_words; ++word) {
      tail[word] = slot_bits(in->mask_kind, row, first_slot, out->prefix_len + 64 * word,
                             ta_min_i64(64, out->num_tail - 64 * word), scan, &facts);
      seen += count_ones(tail[word]);
    }
    position += ta_max_i64(seen, 1) - 1;
    if (in->positions != NULL) {
      const treeattn_status status = check_row_positions(index, node, out, tail, a->tail_position, a->marks, error);
      if (status != TREEATTN_OK) {
        return status;
      }
      position = a->tail_position[node];
      for (int64_t j = 0; j < out->num_tail; ++j) {
        if (tail[j / 64] >> (j % 64) & 1) {
          highest = ta_max_i64(highest, a->tail_position[j]);
        }
      }
    }
    highest = ta_max_i64(highest, seen > 0 ? position : -1);
    set_row(args, out, a, r, position);
    bool plain = true;
    const int64_t first =
        read_prefix(in, row, first_slot, out, a->prefix_bits + r * out->prefix_words, scan, &facts, &plain);
    a->prefix_first[r] = (int32_t)ta_min_i64(out->prefix_len, ta_max_i64(first, a->prefix_first[r]));
    lowest = ta_min_i64(lowest, a->prefix_first[r]);
    all_plain = all_plain && plain;
    if (facts.has_invalid) {
      return fail_mask(index, (const float *)(const void *)row, node, sizes->columns, error);
    }
  }
  out->leaf_begin = lowest / TA_LEAF;
  out->leaf_end = ta_max_i64(highest / TA_LEAF + 1, out->leaf_begin);
  out->tail_bits = a->tail_bits;
  out->prefix_bits = all_plain ? NULL : a->prefix_bits;
  if (facts.has_bias) {
    out->bias = in->mask;
    out->bias_stride = sizes->stride;
    out->bias_first_slot = first_slot;
  }
  return TREEATTN_OK;
}

treeattn_status ta_plan_request(const treeattn_plan_args *args, int64_t index, const treeattn_request *in,
                                ta_arena *arena, ta_request *out, treeattn_error *error) {
  request_sizes sizes;
  memset(out, 0, sizeof *out);
  treeattn_status status = check_lengths(index, in, out, error);
  if (status == TREEATTN_OK) {
    status = check_mask_buffer(index, in, out, &sizes, error);
  }
  if (status == TREEATTN_OK) {
    status = check_cache(args, index, in, out, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  if (in->query_nodes != NULL && (in->num_queries < 0 || in->num_queries > out->num_nodes)) {
    return FAIL_ARGUMENT("requests[%lld].num_queries is %lld: must be 0 to num_nodes (%lld)", (long long)index,
                         (long long)in->num_queries, (long long)out->num_nodes);
  }
  const bool tree = is_tree(in->mask_kind);
  const int64_t nodes = out->num_nodes;
  out->num_rows = in->query_nodes == NULL ? nodes : in->num_queries;
  const int64_t rows = out->num_rows;
  const int64_t mark_words = (nodes + 63) / 64;
  int64_t prefix_cells = 0;
  int64_t tail_cells = 0;
  if (!tree) {
    out->prefix_words = (out->prefix_len + 63) / 64;
    out->tail_words = (out->num_tail + 63) / 64;
    if (!ta_mul_i64(rows, out->prefix_words, &prefix_cells) || !ta_mul_i64(rows, out->tail_words, &tail_cells)) {
      arena->overflow = true;
    }
  }
  request_arrays a;
  memset(&a, 0, sizeof a);
  a.node_of_row = in->query_nodes == NULL ? NULL : ta_arena_take(arena, rows, sizeof(int32_t));
  a.marks = ta_arena_take(arena, mark_words, sizeof(uint64_t));
  a.row_position = ta_arena_take(arena, rows, sizeof(int32_t));
  a.first_visible = ta_arena_take(arena, rows, sizeof(int32_t));
  a.prefix_first = ta_arena_take(arena, rows, sizeof(int32_t));
  if (tree) {
    a.parent = ta_arena_take(arena, nodes, sizeof(int32_t));
    a.run_start = ta_arena_take(arena, nodes, sizeof(int32_t));
    a.depth = ta_arena_take(arena, nodes, sizeof(int32_t));
    a.order = in->mask_kind == TREEATTN_MASK_INTERVALS ? ta_arena_take(arena, nodes, sizeof(int32_t)) : NULL;
  } else {
    a.prefix_bits = ta_arena_take(arena, prefix_cells, sizeof(uint64_t));
    a.tail_bits = ta_arena_take(arena, tail_cells, sizeof(uint64_t));
    a.tail_position = in->positions == NULL ? NULL : ta_arena_take(arena, nodes, sizeof(int32_t));
  }
  if (arena->overflow) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW,
                   "requests[%lld]: a plan for num_nodes (%lld) and kv_seq_len (%lld) does not fit in "
                   "memory",
                   (long long)index, (long long)nodes, (long long)out->kv_seq_len);
  }
  if (arena->base == NULL) {
    return TREEATTN_OK;
  }
  if (in->query_nodes != NULL) {
    status = copy_queries(index, in, out, a.node_of_row, a.marks, error);
    if (status != TREEATTN_OK) {
      return status;
    }
  }
  out->node_of_row = a.node_of_row;
  out->row_position = a.row_position;
  out->first_visible = a.first_visible;
  out->prefix_first = a.prefix_first;
  return tree ? fill_tree(args, index, in, out, &a, error) : fill_mask(args, index, in, &sizes, out, &a, error);
}
