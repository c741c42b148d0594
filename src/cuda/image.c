/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the device part of a plan: one walk that counts when there is no memory and fills when there is. */
#include "image.h"

#include <string.h>

#include "host.h"

#define FAIL_ARGUMENT(...) ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

/* The image as it grows. Arrays are filled from these cursors; with base NULL only the cursors move. */
typedef struct image_writer {
  unsigned char *base;
  ta_image_request *requests;
  ta_image_row *rows;
  int32_t *slots;
  int32_t *pages;
  uint64_t *bits;
  float *bias;
  int64_t num_slots, num_pages, num_bits, num_bias;
} image_writer;

static bool leaf_is_seen_by_row(const ta_request *request, int64_t row, int64_t leaf) {
  const int64_t begin = leaf * TA_LEAF;
  const int64_t end = ta_min_i64(begin + TA_LEAF, request->prefix_len);
  if (request->prefix_first[row] > begin) {
    return false;
  }
  if (request->prefix_bits != NULL) {
    const uint64_t *bits = request->prefix_bits + row * request->prefix_words;
    for (int64_t p = begin; p < end; p += 64) {
      const int64_t count = ta_min_i64(64, end - p);
      const uint64_t ones = count == 64 ? ~(uint64_t)0 : ((uint64_t)1 << count) - 1;
      if ((bits[p / 64] & ones) != ones) {
        return false;
      }
    }
  }
  if (request->bias != NULL) {
    const int64_t node = request->node_of_row == NULL ? row : request->node_of_row[row];
    for (int64_t p = ta_max_i64(begin, request->bias_first_slot); p < end; ++p) {
      if (request->bias[node * request->bias_stride + p - request->bias_first_slot] != 0.0f) {
        return false;
      }
    }
  }
  return true;
}

/* The longest stretch of leaves that all rows see whole, in positions; its end is rounded down to `tile`. */
static void find_shared(const ta_request *request, int64_t tile, ta_image_request *out) {
  int64_t best_begin = 0;
  int64_t best_end = 0;
  int64_t begin = 0;
  int64_t num_leaves = request->num_rows == 0 ? 0 : (request->prefix_len + TA_LEAF - 1) / TA_LEAF;
  if (request->prefix_bits == NULL && request->bias == NULL) {
    /* Only a window can hide: everything from the last row's beginning on is seen. */
    int64_t first = 0;
    for (int64_t row = 0; row < request->num_rows; ++row) {
      first = ta_max_i64(first, request->prefix_first[row]);
    }
    best_begin = ta_min_i64((first + TA_LEAF - 1) / TA_LEAF, num_leaves);
    best_end = num_leaves;
    num_leaves = -1;
  }
  for (int64_t leaf = 0; leaf <= num_leaves; ++leaf) {
    bool seen = leaf < num_leaves;
    for (int64_t row = 0; seen && row < request->num_rows; ++row) {
      seen = leaf_is_seen_by_row(request, row, leaf);
    }
    if (!seen) {
      if (leaf - begin > best_end - best_begin) {
        best_begin = begin;
        best_end = leaf;
      }
      begin = leaf + 1;
    }
  }
  const int64_t limit = request->prefix_len / tile * tile;
  out->shared_begin = (int32_t)(best_begin * TA_LEAF);
  out->shared_end = (int32_t)ta_max_i64(ta_min_i64(best_end * TA_LEAF, limit), out->shared_begin);
}

/* The cut of a request for units of unit_leaves leaves; false on overflow. */
static bool cut_request(const treeattn_plan *plan, const ta_request *request, int64_t block_rows, int64_t unit_leaves,
                        ta_image_request *out) {
  const int64_t first = out->shared_begin / TA_LEAF;
  const int64_t closed = out->shared_end / TA_LEAF;
  const bool open = out->shared_end % TA_LEAF != 0;
  const int64_t first_chunk = first / unit_leaves;
  const int64_t rows = request->num_rows * plan->group;
  out->num_chunks = closed > first ? (int32_t)((closed - 1) / unit_leaves - first_chunk + 1) : 0;
  const bool incomplete = plan->mode == TREEATTN_MODE_FAST && unit_leaves > TA_FAST_GROUP_LEAVES && closed > first &&
                          closed % TA_FAST_GROUP_LEAVES != 0;
  out->num_slots = out->num_chunks + (incomplete ? 1 : 0) + (open ? 1 : 0);
  out->num_unit_chunks = out->num_chunks;
  if (open && (out->num_chunks == 0 || closed % unit_leaves == 0)) {
    ++out->num_unit_chunks;
  }
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  out->num_row_blocks = (int32_t)blocks;
  return blocks <= INT32_MAX;
}

/* Slots by position of what the row sees behind the prefix. Returns how many positions that covers. */
static int32_t write_tail(const ta_request *request, int64_t row, int32_t *slots) {
  const int64_t prefix = request->prefix_len;
  int64_t length = 0;
  if (request->parent != NULL) {
    int64_t node = request->node_of_row == NULL ? row : request->node_of_row[row];
    int64_t position = request->row_position[row];
    length = position - prefix + 1;
    for (; slots != NULL && node >= 0; node = request->parent[node], --position) {
      slots[position - prefix] = position >= request->first_visible[row] ? (int32_t)(prefix + node) : -1;
    }
    return (int32_t)length;
  }
  const uint64_t *bits = request->tail_bits + row * request->tail_words;
  for (int pass = 0; pass < 2; ++pass) {
    int64_t next = 0;
    for (int64_t j = 0; j < request->num_tail; ++j) {
      if (bits[j / 64] >> (j % 64) & 1) {
        const int64_t offset = request->tail_position == NULL ? next++ : request->tail_position[j] - prefix;
        if (pass == 0) {
          length = ta_max_i64(length, offset + 1);
        } else {
          slots[offset] = prefix + offset >= request->first_visible[row] ? (int32_t)(prefix + j) : -1;
        }
      }
    }
    if (pass == 0) {
      if (slots == NULL) {
        break;
      }
      memset(slots, 0xff, (size_t)length * sizeof *slots);
    }
  }
  return (int32_t)length;
}

static void write_row(const ta_request *request, int64_t index, int64_t row, image_writer *w) {
  ta_image_row out;
  memset(&out, 0, sizeof out);
  out.request = (int32_t)index;
  out.position = request->row_position[row];
  out.prefix_first = request->prefix_first[row];
  out.slots = w->num_slots;
  out.tail_len = write_tail(request, row, w->base == NULL ? NULL : w->slots + w->num_slots);
  w->num_slots += out.tail_len;
  const int64_t last = out.tail_len > 0 ? request->prefix_len + out.tail_len - 1 : request->prefix_len - 1;
  out.leaf_begin = ta_max_i64(request->first_visible[row], 0) / TA_LEAF < out.prefix_first / TA_LEAF
                       ? (int32_t)(request->first_visible[row] / TA_LEAF)
                       : (int32_t)(out.prefix_first / TA_LEAF);
  out.leaf_end = last < 0 ? 0 : (int32_t)(last / TA_LEAF + 1);
  out.bits = -1;
  if (request->prefix_bits != NULL) {
    out.bits = w->num_bits;
    if (w->base != NULL) {
      memcpy(w->bits + w->num_bits, request->prefix_bits + row * request->prefix_words,
             (size_t)request->prefix_words * sizeof *w->bits);
    }
    w->num_bits += request->prefix_words;
  }
  out.bias_first_slot = INT32_MAX;
  if (request->bias != NULL) {
    const int64_t node = request->node_of_row == NULL ? row : request->node_of_row[row];
    const int64_t count = request->kv_seq_len - request->bias_first_slot;
    out.bias_first_slot = (int32_t)request->bias_first_slot;
    out.bias = w->num_bias - request->bias_first_slot;
    if (w->base != NULL && count > 0) {
      memcpy(w->bias + w->num_bias, request->bias + node * request->bias_stride, (size_t)count * sizeof(float));
    }
    w->num_bias += count;
  }
  if (w->base != NULL) {
    w->rows[request->first_row + row] = out;
  }
}

static void write_request(const treeattn_plan *plan, int64_t index, const ta_image_request *cut, image_writer *w) {
  const ta_request *request = &plan->requests[index];
  ta_image_request out = *cut;
  out.first_row = request->first_row;
  out.num_rows = (int32_t)request->num_rows;
  out.prefix_len = (int32_t)request->prefix_len;
  out.cache_index = request->cache_index;
  out.pages = -1;
  if (plan->paged) {
    const int64_t pages = (request->kv_seq_len + plan->page_size - 1) / plan->page_size;
    out.pages = w->num_pages;
    if (w->base != NULL && pages > 0) {
      memcpy(w->pages + w->num_pages, request->page_table, (size_t)pages * sizeof(int32_t));
    }
    w->num_pages += pages;
  }
  if (w->base != NULL) {
    w->requests[index] = out;
  }
  for (int64_t row = 0; row < request->num_rows; ++row) {
    write_row(request, index, row, w);
  }
}

/* Rounds of work of the multiprocessors, in leaves: what the cut is chosen by. */
static int64_t cost_of_cut(int64_t num_units, int64_t unit_leaves, int64_t num_multiprocessors) {
  return (num_units + num_multiprocessors - 1) / num_multiprocessors * unit_leaves;
}

/* Chooses how many leaves a unit folds: the longest that costs at most a sixteenth more than the best. Long units write
 * fewer partial results. */
static bool choose_units(const treeattn_plan *plan, const ta_cuda_settings *settings, ta_image_request *scratch_request,
                         int32_t *unit_leaves) {
  static const int32_t fast_choices[] = {16, 4, 1};
  static const int32_t exact_choices[] = {16, 1};
  const bool fast = plan->mode == TREEATTN_MODE_FAST;
  const int32_t *choices = fast ? fast_choices : exact_choices;
  const int count = fast ? 3 : 2;
  /* Values of more than 128 channels leave no registers for a second level of folding. */
  const int skip = fast && plan->head_dim_v > 128 ? 1 : 0;
  int64_t cost[3];
  int64_t best = INT64_MAX;
  for (int n = skip; n < count; ++n) {
    int64_t units = 0;
    bool aligned = true;
    for (int64_t b = 0; b < plan->num_requests; ++b) {
      find_shared(&plan->requests[b], settings->tile, scratch_request);
      if (!cut_request(plan, &plan->requests[b], settings->block_rows, choices[n], scratch_request)) {
        return false;
      }
      units += (int64_t)scratch_request->num_unit_chunks * scratch_request->num_row_blocks * plan->num_kv_heads;
      aligned = aligned && scratch_request->shared_begin % (choices[n] * TA_LEAF) == 0;
    }
    cost[n] = aligned ? cost_of_cut(units, choices[n], settings->num_multiprocessors) : INT64_MAX;
    best = ta_min_i64(best, cost[n]);
  }
  for (int n = skip; n < count; ++n) {
    if (cost[n] != INT64_MAX && cost[n] <= best + best / 16) {
      *unit_leaves = choices[n];
      return true;
    }
  }
  return false;
}

static uint64_t align16(uint64_t bytes) {
  return (bytes + 15) / 16 * 16;
}

treeattn_status ta_cuda_lay_out_image(const treeattn_plan *plan, const ta_cuda_settings *settings, void *image,
                                      ta_image_header *header, treeattn_error *error) {
  image_writer w;
  memset(&w, 0, sizeof w);
  memset(header, 0, sizeof *header);
  ta_image_request cut;
  memset(&cut, 0, sizeof cut);
  header->magic = TA_IMAGE_MAGIC;
  header->num_requests = (int32_t)plan->num_requests;
  header->num_rows = plan->num_rows;
  header->block_rows = settings->block_rows;
  header->num_heads = (int32_t)plan->num_heads;
  header->num_kv_heads = (int32_t)plan->num_kv_heads;
  header->head_dim = (int32_t)plan->head_dim;
  header->head_dim_v = (int32_t)plan->head_dim_v;
  header->kv_dtype = (int32_t)plan->kv_dtype;
  header->fast = plan->mode == TREEATTN_MODE_FAST;
  if (!choose_units(plan, settings, &cut, &header->unit_leaves)) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "the plan has too many rows for one launch");
  }
  /* Two walks: the first finds where the arrays end. */
  uint64_t scratch_floats = 0;
  for (int pass = 0; pass < (image == NULL ? 1 : 2); ++pass) {
    if (pass == 1) {
      w.base = image;
      w.requests = (ta_image_request *)(void *)(w.base + header->requests);
      w.rows = (ta_image_row *)(void *)(w.base + header->rows);
      w.slots = (int32_t *)(void *)(w.base + header->slots);
      w.pages = (int32_t *)(void *)(w.base + header->pages);
      w.bits = (uint64_t *)(void *)(w.base + header->bits);
      w.bias = (float *)(void *)(w.base + header->bias);
      w.num_slots = w.num_pages = w.num_bits = w.num_bias = 0;
    }
    header->num_units = 0;
    scratch_floats = 0;
    for (int64_t b = 0; b < plan->num_requests; ++b) {
      const ta_request *request = &plan->requests[b];
      memset(&cut, 0, sizeof cut);
      find_shared(request, settings->tile, &cut);
      (void)cut_request(plan, request, settings->block_rows, header->unit_leaves, &cut);
      cut.first_unit = header->num_units;
      cut.partial_base = (int64_t)scratch_floats;
      header->num_units += (int64_t)cut.num_unit_chunks * cut.num_row_blocks * plan->num_kv_heads;
      scratch_floats +=
          (uint64_t)(request->num_rows * plan->num_heads) * (uint64_t)cut.num_slots * (uint64_t)(plan->head_dim_v + 2);
      write_request(plan, b, &cut, &w);
    }
    header->requests = align16(sizeof *header);
    header->rows = align16(header->requests + (uint64_t)plan->num_requests * sizeof(ta_image_request));
    header->slots = align16(header->rows + (uint64_t)plan->num_rows * sizeof(ta_image_row));
    header->pages = align16(header->slots + (uint64_t)w.num_slots * sizeof(int32_t));
    header->bits = align16(header->pages + (uint64_t)w.num_pages * sizeof(int32_t));
    header->bias = align16(header->bits + (uint64_t)w.num_bits * sizeof(uint64_t));
    header->image_bytes = align16(header->bias + (uint64_t)w.num_bias * sizeof(float));
    header->scratch_bytes = (scratch_floats * sizeof(float) + 255) / 256 * 256;
    if (scratch_floats > SIZE_MAX / 8 || header->image_bytes > SIZE_MAX / 2) {
      return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "the plan's partial results do not fit in memory");
    }
  }
  if (image != NULL) {
    memcpy(image, header, sizeof *header);
  }
  return TREEATTN_OK;
}
