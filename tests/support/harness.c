/* SPDX-License-Identifier: Apache-2.0 */
/* A problem laid out in guarded buffers one of many ways. */
#include "harness.h"

#include <math.h>
#include <string.h>

#include "check.h"
#include "halves.h"

static bool is_mask(treeattn_mask_kind kind) {
  return kind == TREEATTN_MASK_DENSE_F32 || kind == TREEATTN_MASK_DENSE_BOOL || kind == TREEATTN_MASK_BITS;
}

guarded mask_encode(treeattn_mask_kind kind, const uint8_t *sees, int num_nodes, int sees_columns, int columns,
                    int64_t stride, bool at_begin) {
  size_t element = kind == TREEATTN_MASK_DENSE_F32 ? sizeof(float) : 1;
  size_t row = kind == TREEATTN_MASK_BITS ? ((size_t)columns + 7) / 8 : (size_t)columns;
  size_t count = num_nodes == 0 ? 0 : (size_t)(num_nodes - 1) * (size_t)stride + row;
  guarded mask = guarded_new(count * element, at_begin); /* 0xff: NaN, true, all bits */
  for (int i = 0; i < num_nodes; i++) {
    const uint8_t *from = sees + (size_t)i * (size_t)sees_columns + (size_t)(sees_columns - columns);
    unsigned char *to = mask.data + (size_t)i * (size_t)stride * element;
    for (int c = 0; c < columns; c++) {
      if (kind == TREEATTN_MASK_DENSE_F32) {
        float value = from[c] != 0 ? 0.0f : TREEATTN_MASK_HIDDEN;
        memcpy(to + (size_t)c * sizeof value, &value, sizeof value);
      } else if (kind == TREEATTN_MASK_DENSE_BOOL) {
        to[c] = from[c] != 0 ? (uint8_t)(1 + c % 255) : 0;
      } else if (from[c] == 0) {
        to[c / 8] = (uint8_t)(to[c / 8] & ~(1u << (c % 8)));
      }
    }
  }
  return mask;
}

static void fill_poison(treeattn_dtype dtype, guarded *buffer, float poison) {
  int64_t count = (int64_t)(buffer->bytes / element_bytes(dtype));
  for (int64_t n = 0; n < count; n++) {
    element_store(dtype, buffer->data, n, poison);
  }
}

static void choose_strides(harness *h, int64_t longest) {
  treeattn_plan_args *args = &h->args;
  int64_t pad = h->how.stride_pad;
  int64_t slots = h->how.page_size != 0 ? h->how.page_size : longest + h->how.extra_slots;
  args->page_size = h->how.page_size;
  args->kv_capacity = h->how.page_size != 0 ? 0 : slots;
  if (pad == 0) {
    return;
  }
  args->q_stride_row = args->head_dim + pad;
  args->q_stride_head = args->q_stride_row * (h->rows > 0 ? h->rows : 1) + 2 * pad;
  args->out_stride_head = args->head_dim_v + pad;
  args->out_stride_row = args->out_stride_head * args->num_heads + pad;
  args->lse_stride_head = 1 + pad;
  args->lse_stride_row = args->lse_stride_head * args->num_heads + pad;
  args->k_stride_slot = args->head_dim + pad;
  args->k_stride_head = args->k_stride_slot * slots + pad;
  args->k_stride_sequence = args->k_stride_head * args->num_kv_heads + 3 * pad;
  args->v_stride_slot = args->head_dim_v + 2 * pad;
  args->v_stride_head = args->v_stride_slot * slots + pad;
  args->v_stride_sequence = args->v_stride_head * args->num_kv_heads + pad;
}

static void assign_storage(harness *h, rng *r) {
  const problem *p = h->source;
  if (h->how.page_size == 0) {
    int32_t spare = h->how.shuffle ? 2 : 0;
    int32_t *order = calloc((size_t)(p->num_requests + spare) + 1, sizeof *order);
    for (int32_t n = 0; n < p->num_requests + spare; n++) {
      order[n] = n;
    }
    if (h->how.shuffle) {
      rng_shuffle(r, order, p->num_requests + spare);
    }
    for (int n = 0; n < p->num_requests; n++) {
      h->requests[n].cache_index = order[n];
    }
    h->args.num_sequences = p->num_requests + spare;
    free(order);
    return;
  }
  int32_t total = h->how.shuffle ? 3 : 0;
  for (int n = 0; n < p->num_requests; n++) {
    total += (p->requests[n].num_slots + h->how.extra_slots + h->how.page_size - 1) / h->how.page_size;
  }
  int32_t *order = calloc((size_t)total + 1, sizeof *order);
  for (int32_t n = 0; n < total; n++) {
    order[n] = n;
  }
  if (h->how.shuffle) {
    rng_shuffle(r, order, total);
  }
  int32_t next = 0;
  for (int n = 0; n < p->num_requests; n++) {
    int32_t length = (p->requests[n].num_slots + h->how.extra_slots + h->how.page_size - 1) / h->how.page_size;
    h->page_tables[n] = calloc((size_t)length + 1, sizeof(int32_t));
    memcpy(h->page_tables[n], order + next, (size_t)length * sizeof(int32_t));
    next += length;
    h->requests[n].page_table = h->page_tables[n];
    h->requests[n].page_table_len = length;
  }
  h->args.num_pages = total;
  free(order);
}

static void encode_tree(harness *h, int n) {
  const request_data *data = &h->source->requests[n];
  treeattn_request *request = &h->requests[n];
  const layout *how = &h->how;
  treeattn_mask_kind kind = how->encoding;
  bool chain = true;
  for (int i = 0; i < data->num_nodes; i++) {
    chain = chain && data->parents[i] == i - 1;
  }
  kind = kind == TREEATTN_MASK_CHAIN && !chain ? TREEATTN_MASK_PARENTS : kind;
  request->mask_kind = kind;
  if (kind == TREEATTN_MASK_PARENTS) {
    h->masks[n] = guarded_new((size_t)data->num_nodes * sizeof(int32_t), how->guards_at_begin);
    if (data->num_nodes > 0) {
      memcpy(h->masks[n].data, data->parents, h->masks[n].bytes);
    }
  } else if (kind == TREEATTN_MASK_INTERVALS) {
    h->masks[n] = guarded_new((size_t)data->num_nodes * 2 * sizeof(int32_t), how->guards_at_begin);
    tree_intervals(data->parents, data->num_nodes, (int32_t *)(void *)h->masks[n].data);
  } else if (is_mask(kind)) {
    uint8_t *sees = calloc((size_t)data->num_nodes * (size_t)data->num_slots + 1, 1);
    tree_visibility(data->parents, data->num_nodes, data->prefix_len, how->written_window ? h->source->window : 0,
                    sees);
    bool square = how->square_mask && data->num_nodes > 0; /* mask_columns 0 would mean all of them */
    int columns = square ? data->num_nodes : data->num_slots;
    int64_t packed = kind == TREEATTN_MASK_BITS ? (columns + 7) / 8 : columns;
    request->mask_columns = square ? columns : 0;
    request->mask_stride = how->mask_pad == 0 ? 0 : packed + how->mask_pad;
    h->masks[n] = mask_encode(kind, sees, data->num_nodes, data->num_slots, columns, packed + how->mask_pad,
                              how->guards_at_begin);
    free(sees);
  }
  request->mask = kind == TREEATTN_MASK_CHAIN ? NULL : h->masks[n].data;
  request->mask_bytes = h->masks[n].bytes;
  if (how->pass_positions || how->written_window) {
    h->positions[n] = calloc((size_t)data->num_nodes + 1, sizeof(int32_t));
    for (int i = 0; i < data->num_nodes; i++) {
      h->positions[n][i] = data->prefix_len + data->depths[i];
    }
    request->positions = h->positions[n];
  }
}

static void describe_request(harness *h, int n) {
  const request_data *data = &h->source->requests[n];
  treeattn_request *request = &h->requests[n];
  *request = (treeattn_request)TREEATTN_REQUEST_INIT;
  request->num_nodes = data->num_nodes;
  request->prefix_len = data->prefix_len;
  request->kv_seq_len = is_mask(h->how.encoding) ? data->num_slots : TREEATTN_AUTO;
  encode_tree(h, n);
  h->first_row[n] = h->rows;
  if (h->how.query_nodes != NULL && h->how.query_nodes[n] != NULL) {
    request->query_nodes = h->how.query_nodes[n];
    request->num_queries = h->how.num_queries[n];
    h->rows += request->num_queries;
  } else {
    h->rows += data->num_nodes;
  }
}

void *harness_slot(harness *h, int request, int g, int slot, bool is_v) {
  const treeattn_plan_args *a = &h->args;
  int64_t dim = is_v ? a->head_dim_v : a->head_dim;
  int64_t slots = a->page_size != 0 ? a->page_size : a->kv_capacity;
  int64_t slot_stride = is_v ? a->v_stride_slot : a->k_stride_slot;
  int64_t head_stride = is_v ? a->v_stride_head : a->k_stride_head;
  int64_t sequence_stride = is_v ? a->v_stride_sequence : a->k_stride_sequence;
  slot_stride = slot_stride == 0 ? dim : slot_stride;
  head_stride = head_stride == 0 ? slot_stride * slots : head_stride;
  sequence_stride = sequence_stride == 0 ? head_stride * a->num_kv_heads : sequence_stride;
  int64_t block = a->page_size != 0 ? h->page_tables[request][slot / a->page_size] : h->requests[request].cache_index;
  int64_t within = a->page_size != 0 ? slot % a->page_size : slot;
  int64_t offset = block * sequence_stride + g * head_stride + within * slot_stride;
  return (is_v ? h->v.data : h->k.data) + (size_t)offset * element_bytes(a->kv_dtype);
}

float *harness_q_row(harness *h, int head, int64_t row) {
  int64_t row_stride = h->args.q_stride_row == 0 ? h->args.head_dim : h->args.q_stride_row;
  int64_t head_stride = h->args.q_stride_head == 0 ? h->rows * row_stride : h->args.q_stride_head;
  return (float *)(void *)h->q.data + head * head_stride + row * row_stride;
}

void harness_poison_slot(harness *h, int request, int slot, float value) {
  for (int g = 0; g < h->source->num_kv_heads; g++) {
    for (int d = 0; d < h->source->head_dim; d++) {
      element_store(h->args.kv_dtype, harness_slot(h, request, g, slot, false), d, value);
    }
    for (int d = 0; d < h->source->head_dim_v; d++) {
      element_store(h->args.kv_dtype, harness_slot(h, request, g, slot, true), d, value);
    }
  }
}

void harness_restore_slot(harness *h, int request, int slot) {
  const request_data *data = &h->source->requests[request];
  size_t k_bytes = (size_t)h->source->head_dim * element_bytes(h->args.kv_dtype);
  size_t v_bytes = (size_t)h->source->head_dim_v * element_bytes(h->args.kv_dtype);
  for (int g = 0; g < h->source->num_kv_heads; g++) {
    size_t row = (size_t)g * (size_t)data->num_slots + (size_t)slot;
    memcpy(harness_slot(h, request, g, slot, false), (const unsigned char *)data->k + row * k_bytes, k_bytes);
    memcpy(harness_slot(h, request, g, slot, true), (const unsigned char *)data->v + row * v_bytes, v_bytes);
  }
}

static void copy_queries(harness *h, int n) {
  const problem *p = h->source;
  const request_data *data = &p->requests[n];
  int64_t count = h->requests[n].query_nodes != NULL ? h->requests[n].num_queries : data->num_nodes;
  for (int head = 0; head < p->num_heads; head++) {
    for (int64_t row = 0; row < count; row++) {
      int64_t node = h->requests[n].query_nodes != NULL ? h->requests[n].query_nodes[row] : row;
      memcpy(harness_q_row(h, head, h->first_row[n] + row),
             data->q + (head * (int64_t)data->num_nodes + node) * p->head_dim, (size_t)p->head_dim * sizeof(float));
    }
  }
}

void harness_build(harness *h, const problem *p, const layout *how) {
  rng r = {how->seed};
  memset(h, 0, sizeof *h);
  h->source = p;
  h->how = *how;
  h->how.written_window = how->written_window && is_mask(how->encoding); /* trees cannot say it */
  h->args = problem_args(p);
  h->requests = calloc((size_t)p->num_requests + 1, sizeof *h->requests);
  h->masks = calloc((size_t)p->num_requests + 1, sizeof *h->masks);
  h->positions = calloc((size_t)p->num_requests + 1, sizeof *h->positions);
  h->page_tables = calloc((size_t)p->num_requests + 1, sizeof *h->page_tables);
  h->first_row = calloc((size_t)p->num_requests + 1, sizeof *h->first_row);
  int64_t longest = 0;
  for (int n = 0; n < p->num_requests; n++) {
    describe_request(h, n);
    longest = p->requests[n].num_slots > longest ? p->requests[n].num_slots : longest;
  }
  choose_strides(h, longest);
  assign_storage(h, &r);
  h->args.requests = h->requests;
  h->args.num_requests = p->num_requests;
  h->args.isa = how->isa;
  h->args.num_workers = how->num_workers;
  h->args.window = h->how.written_window ? 0 : p->window;
  CHECK_OK(treeattn_plan_create(&h->args, &h->plan, &error));
  h->info = plan_info(h->plan);
  CHECK(h->info.num_query_rows == h->rows, "num_query_rows is %lld instead of %lld", (long long)h->info.num_query_rows,
        (long long)h->rows);
  h->q = guarded_new(h->info.q_bytes, how->guards_at_begin);
  h->k = guarded_new(h->info.k_bytes, how->guards_at_begin);
  h->v = guarded_new(h->info.v_bytes, how->guards_at_begin);
  h->out = guarded_new(h->info.out_bytes, how->guards_at_begin);
  h->lse = guarded_new(how->no_lse ? 0 : h->info.lse_bytes, how->guards_at_begin);
  h->scratch = guarded_new(h->info.scratch_bytes, how->guards_at_begin);
  h->sinks = guarded_new(p->sinks == NULL ? 0 : (size_t)p->num_heads * sizeof(float), how->guards_at_begin);
  fill_poison(TREEATTN_F32, &h->q, how->poison);
  fill_poison(p->kv_dtype, &h->k, how->poison);
  fill_poison(p->kv_dtype, &h->v, how->poison);
  for (int n = 0; n < p->num_requests; n++) {
    copy_queries(h, n);
    for (int slot = 0; slot < p->requests[n].num_slots; slot++) {
      harness_restore_slot(h, n, slot);
    }
  }
  if (p->sinks != NULL) {
    memcpy(h->sinks.data, p->sinks, h->sinks.bytes);
  }
  h->run = (treeattn_run_args){.struct_size = sizeof h->run, .executor = how->executor};
  h->run.q = h->q.data;
  h->run.q_bytes = h->q.bytes;
  h->run.k = h->k.data;
  h->run.k_bytes = h->k.bytes;
  h->run.v = h->v.data;
  h->run.v_bytes = h->v.bytes;
  h->run.sinks = p->sinks == NULL ? NULL : (const float *)(void *)h->sinks.data;
  h->run.sinks_bytes = h->sinks.bytes;
  h->run.out = h->out.data;
  h->run.out_bytes = h->out.bytes;
  h->run.lse = how->no_lse ? NULL : (float *)(void *)h->lse.data;
  h->run.lse_bytes = h->lse.bytes;
  h->run.scratch = h->scratch.data;
  h->run.scratch_bytes = h->scratch.bytes;
}

static int64_t or_default(int64_t stride, int64_t packed) {
  return stride == 0 ? packed : stride;
}

/* Copies the rows out of a strided output; with `check_pads` also finds any byte between them that is not 0xff any more. */
static void read_rows(const guarded *buffer, int64_t rows, int64_t heads, int64_t width, int64_t row_stride,
                      int64_t head_stride, float *packed) {
  const float *from = (const float *)(const void *)buffer->data;
  for (int64_t row = 0; row < rows; row++) {
    for (int64_t head = 0; head < heads; head++) {
      memcpy(packed + (row * heads + head) * width, from + row * row_stride + head * head_stride,
             (size_t)width * sizeof(float));
    }
  }
}

static void check_pads(const char *name, const guarded *buffer, int64_t rows, int64_t heads, int64_t width,
                       int64_t row_stride, int64_t head_stride) {
  unsigned char *copy = malloc(buffer->bytes + 1);
  CHECK(copy != NULL, "out of memory for %zu bytes", buffer->bytes);
  memcpy(copy, buffer->data, buffer->bytes);
  for (int64_t row = 0; row < rows; row++) {
    for (int64_t head = 0; head < heads; head++) {
      memset(copy + (size_t)(row * row_stride + head * head_stride) * sizeof(float), 0xff,
             (size_t)width * sizeof(float));
    }
  }
  for (size_t n = 0; n < buffer->bytes; n++) {
    CHECK(copy[n] == 0xff, "byte %zu of %s, which is no part of a row, was written", n, name);
  }
  free(copy);
}

static void protect_inputs(harness *h, bool read_only) {
  const guarded *inputs[] = {&h->q, &h->k, &h->v, &h->sinks};
  for (size_t n = 0; n < sizeof inputs / sizeof inputs[0]; n++) {
    guarded_protect(inputs[n], read_only);
  }
  for (int n = 0; n < h->source->num_requests; n++) {
    if (h->masks[n].mapping != NULL) {
      guarded_protect(&h->masks[n], read_only);
    }
  }
}

void harness_run(harness *h) {
  const treeattn_plan_args *a = &h->args;
  const guarded *buffers[] = {&h->q, &h->k, &h->v, &h->out, &h->lse, &h->scratch, &h->sinks};
  const char *const names[] = {"q", "k", "v", "out", "lse", "scratch", "sinks"};
  memset(h->out.data, 0xff, h->out.bytes);
  memset(h->lse.data, 0xff, h->lse.bytes);
  protect_inputs(h, true);
  CHECK_OK(treeattn_attend(h->plan, &h->run, &error));
  protect_inputs(h, false);
  for (size_t n = 0; n < sizeof buffers / sizeof buffers[0]; n++) {
    CHECK(guarded_intact(buffers[n]), "bytes around %s were written", names[n]);
  }
  int64_t out_head = or_default(a->out_stride_head, a->head_dim_v);
  check_pads("out", &h->out, h->rows, a->num_heads, a->head_dim_v,
             or_default(a->out_stride_row, a->num_heads * out_head), out_head);
  if (!h->how.no_lse) {
    int64_t lse_head = or_default(a->lse_stride_head, 1);
    check_pads("lse", &h->lse, h->rows, a->num_heads, 1, or_default(a->lse_stride_row, a->num_heads * lse_head),
               lse_head);
  }
}

void harness_read(const harness *h, float *out, float *lse) {
  const treeattn_plan_args *a = &h->args;
  int64_t out_head = or_default(a->out_stride_head, a->head_dim_v);
  read_rows(&h->out, h->rows, a->num_heads, a->head_dim_v, or_default(a->out_stride_row, a->num_heads * out_head),
            out_head, out);
  if (lse != NULL && !h->how.no_lse) {
    int64_t lse_head = or_default(a->lse_stride_head, 1);
    read_rows(&h->lse, h->rows, a->num_heads, 1, or_default(a->lse_stride_row, a->num_heads * lse_head), lse_head, lse);
  }
}

void harness_free(harness *h) {
  treeattn_plan_destroy(h->plan);
  guarded *buffers[] = {&h->q, &h->k, &h->v, &h->out, &h->lse, &h->scratch, &h->sinks};
  for (size_t n = 0; n < sizeof buffers / sizeof buffers[0]; n++) {
    guarded_free(buffers[n]);
  }
  for (int n = 0; h->source != NULL && n < h->source->num_requests; n++) {
    guarded_free(&h->masks[n]);
    free(h->positions[n]);
    free(h->page_tables[n]);
  }
  free(h->requests);
  free(h->masks);
  free(h->positions);
  free(h->page_tables);
  free(h->first_row);
  memset(h, 0, sizeof *h);
}

void harness_once(const problem *p, const layout *how, float *out, float *lse) {
  harness h;
  harness_build(&h, p, how);
  harness_run(&h);
  harness_read(&h, out, lse);
  harness_free(&h);
}
