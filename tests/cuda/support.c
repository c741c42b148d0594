/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory with guard bands, and a harness's problem run on the GPU. */
#include "support.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#define CUDA_OK(call)                                                                                \
  do {                                                                                               \
    const cudaError_t code = (call);                                                                 \
    CHECK(code == cudaSuccess, "%s: CUDA error %d: %s", #call, (int)code, cudaGetErrorString(code)); \
  } while (0)

enum { BAND = 4096 };

/* ---- device memory ---------------------------------------------------------------------------------------- */

bool td_available(void) {
  static int answer = -1;
  if (answer < 0) {
    int32_t count = 0;
    treeattn_error error = {TREEATTN_OK, ""};
    treeattn_cuda_device device = TREEATTN_CUDA_DEVICE_INIT;
    answer = 0;
    if (treeattn_cuda_device_count(&count, &error) != TREEATTN_OK ||
        (count > 0 && treeattn_cuda_get_device(0, &device, &error) != TREEATTN_OK)) {
      print_message("no usable GPU: %s\n", error.message);
    } else if (count == 0 || device.usable == 0) {
      print_message("no usable GPU: %s\n", count == 0 ? "no CUDA device" : device.reason);
    } else {
      answer = 1;
    }
  }
  return answer == 1;
}

static size_t band_bytes(void) {
  const char *tight = getenv("TREEATTN_TEST_TIGHT");
  return tight != NULL && tight[0] == '1' ? 0 : BAND;
}

device_buffer td_alloc(size_t bytes) {
  device_buffer buffer;
  void *base = NULL;
  const size_t band = band_bytes();
  memset(&buffer, 0, sizeof buffer);
  buffer.bytes = bytes;
  buffer.base_bytes = bytes + 2 * band + (bytes + 2 * band == 0 ? 1 : 0);
  CUDA_OK(cudaMalloc(&base, buffer.base_bytes));
  CUDA_OK(cudaMemset(base, 0xff, buffer.base_bytes));
  buffer.base = base;
  buffer.data = buffer.base + band;
  return buffer;
}

device_buffer td_alloc_copy(const void *host, size_t bytes) {
  device_buffer buffer = td_alloc(bytes);
  td_upload(buffer.data, host, bytes);
  return buffer;
}

void td_free(device_buffer *buffer) {
  if (buffer->base != NULL) {
    CUDA_OK(cudaFree(buffer->base));
  }
  memset(buffer, 0, sizeof *buffer);
}

void td_fill(const device_buffer *buffer, int byte) {
  if (buffer->bytes > 0) {
    CUDA_OK(cudaMemset(buffer->data, byte, buffer->bytes));
  }
}

void td_upload(void *device, const void *host, size_t bytes) {
  if (bytes > 0) {
    CUDA_OK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
  }
}

void td_download(void *host, const void *device, size_t bytes) {
  if (bytes > 0) {
    CUDA_OK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
  }
}

void td_sync(void) {
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaDeviceSynchronize());
}

bool td_intact(const device_buffer *buffer) {
  const size_t band = buffer->base == NULL ? 0 : (size_t)(buffer->data - buffer->base);
  unsigned char bytes[2][BAND];
  if (band == 0) {
    return true;
  }
  td_download(bytes[0], buffer->base, band);
  td_download(bytes[1], buffer->data + buffer->bytes, band);
  for (size_t n = 0; n < band; n++) {
    if (bytes[0][n] != 0xff || bytes[1][n] != 0xff) {
      return false;
    }
  }
  return true;
}

/* ---- a problem there --------------------------------------------------------------------------------------- */

static void *host_alloc(size_t bytes) {
  void *memory = malloc(bytes + 1);
  CHECK(memory != NULL, "out of memory for %zu bytes", bytes);
  return memory;
}

static treeattn_dtype dtype_or_f32(treeattn_dtype dtype) {
  return (int)dtype == 0 ? TREEATTN_F32 : dtype;
}

/* Q in its type and strides; what is no row stays NaN. */
static void upload_q(gpu_case *g) {
  const treeattn_plan_args *a = &g->args;
  const treeattn_dtype dtype = dtype_or_f32(g->how.q_dtype);
  unsigned char *q = host_alloc(g->info.q_bytes);
  memset(q, 0xff, g->info.q_bytes);
  for (int head = 0; head < a->num_heads; head++) {
    for (int64_t row = 0; row < g->h->rows; row++) {
      const float *from = harness_q_row(g->h, head, row);
      for (int64_t d = 0; d < a->head_dim; d++) {
        element_store(dtype, q, head * a->q_stride_head + row * a->q_stride_row + d, from[d]);
      }
    }
  }
  td_upload(g->q.data, q, g->info.q_bytes);
  free(q);
}

void gpu_refresh(gpu_case *g) {
  upload_q(g);
  td_upload(g->k.data, g->h->k.data, g->k.bytes);
  if (!g->how.shared_kv) {
    td_upload(g->v.data, g->h->v.data, g->v.bytes);
  }
}

static void set_strides(gpu_case *g) {
  treeattn_plan_args *a = &g->args;
  a->q_stride_row = a->head_dim + g->how.q_pad;
  a->q_stride_head = a->q_stride_row * (g->h->rows > 0 ? g->h->rows : 1) + g->how.q_pad;
  a->out_stride_head = a->head_dim_v + g->how.out_pad;
  a->out_stride_row = a->out_stride_head * a->num_heads + g->how.out_pad;
  a->lse_stride_head = 1 + g->how.lse_pad;
  a->lse_stride_row = a->lse_stride_head * a->num_heads + g->how.lse_pad;
  if (g->how.shared_kv) {
    const int64_t slots = a->page_size != 0 ? a->page_size : a->kv_capacity;
    a->k_stride_slot = a->k_stride_slot == 0 ? a->head_dim : a->k_stride_slot;
    a->k_stride_head = a->k_stride_head == 0 ? a->k_stride_slot * slots : a->k_stride_head;
    a->k_stride_sequence = a->k_stride_sequence == 0 ? a->k_stride_head * a->num_kv_heads : a->k_stride_sequence;
    a->v_stride_slot = a->k_stride_slot;
    a->v_stride_head = a->k_stride_head;
    a->v_stride_sequence = a->k_stride_sequence;
  }
}

static void fill_run(gpu_case *g) {
  g->run = (treeattn_cuda_run_args)TREEATTN_CUDA_RUN_ARGS_INIT;
  g->run.image = g->image.data;
  g->run.image_bytes = g->image.bytes;
  g->run.q = g->q.data;
  g->run.q_bytes = g->q.bytes;
  g->run.k = g->k.data;
  g->run.k_bytes = g->k.bytes;
  g->run.v = g->how.shared_kv ? g->k.data : g->v.data;
  g->run.v_bytes = g->how.shared_kv ? g->k.bytes : g->v.bytes;
  g->run.sinks = g->sinks.bytes == 0 ? NULL : (const float *)(const void *)g->sinks.data;
  g->run.sinks_bytes = g->sinks.bytes;
  g->run.out = g->out.data;
  g->run.out_bytes = g->out.bytes;
  g->run.lse = g->h->how.no_lse ? NULL : (float *)(void *)g->lse.data;
  g->run.lse_bytes = g->lse.bytes;
  g->run.scratch = g->scratch.data;
  g->run.scratch_bytes = g->scratch.bytes;
  g->run.status = (int32_t *)(void *)g->status.data;
}

void gpu_build(gpu_case *g, harness *h, const gpu_options *how) {
  memset(g, 0, sizeof *g);
  g->h = h;
  g->how = *how;
  g->args = h->args;
  g->args.backend = TREEATTN_BACKEND_CUDA;
  g->args.mode = how->mode;
  g->args.q_dtype = how->q_dtype;
  g->args.out_dtype = how->out_dtype;
  g->args.isa = TREEATTN_ISA_AUTO;
  set_strides(g);
  CHECK_OK(treeattn_plan_create(&g->args, &g->plan, &error));
  g->info = plan_info(g->plan);
  g->options = (treeattn_cuda_options)TREEATTN_CUDA_OPTIONS_INIT;
  g->options.num_multiprocessors = how->num_multiprocessors;
  g->options.block_rows = how->block_rows;
  g->needs = (treeattn_cuda_needs)TREEATTN_CUDA_NEEDS_INIT;
  CHECK_OK(treeattn_cuda_get_needs(g->plan, &g->options, &g->needs, &error));
  g->image_host = aligned_alloc(16, (g->needs.image_bytes + 31) / 16 * 16);
  CHECK(g->image_host != NULL, "out of memory for %zu bytes", g->needs.image_bytes);
  CHECK_OK(treeattn_cuda_write_image(g->plan, &g->options, g->image_host, g->needs.image_bytes, &error));
  g->image = td_alloc_copy(g->image_host, g->needs.image_bytes);
  g->q = td_alloc(g->info.q_bytes);
  CHECK(g->info.k_bytes <= h->k.bytes, "k_bytes is %zu on the GPU and %zu on the CPU", g->info.k_bytes, h->k.bytes);
  g->k = td_alloc(h->k.bytes);
  g->v = td_alloc(how->shared_kv ? 0 : h->v.bytes);
  gpu_refresh(g);
  if (h->source->sinks != NULL) {
    g->sinks = td_alloc_copy(h->source->sinks, (size_t)h->source->num_heads * sizeof(float));
  }
  g->out = td_alloc(g->info.out_bytes);
  g->lse = td_alloc(h->how.no_lse ? 0 : g->info.lse_bytes);
  g->scratch = td_alloc(g->needs.scratch_bytes);
  g->status = td_alloc(sizeof(int32_t));
  fill_run(g);
}

/* Any byte between the rows of an output that is not 0xff any more. */
static void check_pads(const gpu_case *g, const char *name, const device_buffer *buffer, int64_t width,
                       int64_t row_stride, int64_t head_stride, size_t element) {
  unsigned char *copy = host_alloc(buffer->bytes);
  td_download(copy, buffer->data, buffer->bytes);
  for (int64_t row = 0; row < g->h->rows; row++) {
    for (int64_t head = 0; head < g->args.num_heads; head++) {
      memset(copy + (size_t)(row * row_stride + head * head_stride) * element, 0xff, (size_t)width * element);
    }
  }
  for (size_t n = 0; n < buffer->bytes; n++) {
    CHECK(copy[n] == 0xff, "byte %zu of %s, which is no part of a row, was written", n, name);
  }
  free(copy);
}

void gpu_run(gpu_case *g) {
  const device_buffer *buffers[] = {&g->image, &g->q,   &g->k,       &g->v,     &g->sinks,
                                    &g->out,   &g->lse, &g->scratch, &g->status};
  const char *const names[] = {"image", "q", "k", "v", "sinks", "out", "lse", "scratch", "status"};
  int32_t status = -1;
  td_fill(&g->out, 0xff);
  td_fill(&g->lse, 0xff);
  td_fill(&g->scratch, 0xff);
  td_fill(&g->status, 0xff);
  CHECK_OK(treeattn_cuda_attend(g->plan, &g->options, &g->run, &error));
  td_sync();
  td_download(&status, g->status.data, sizeof status);
  CHECK(status == 0, "the status word is %d after a run", (int)status);
  for (size_t n = 0; n < sizeof buffers / sizeof buffers[0]; n++) {
    CHECK(td_intact(buffers[n]), "bytes around %s were written", names[n]);
  }
  const treeattn_plan_args *a = &g->args;
  check_pads(g, "out", &g->out, a->head_dim_v, a->out_stride_row, a->out_stride_head,
             element_bytes(dtype_or_f32(g->how.out_dtype)));
  if (!g->h->how.no_lse) {
    check_pads(g, "lse", &g->lse, 1, a->lse_stride_row, a->lse_stride_head, sizeof(float));
  }
}

void gpu_read(const gpu_case *g, float *out, float *lse) {
  const treeattn_plan_args *a = &g->args;
  const treeattn_dtype dtype = dtype_or_f32(g->how.out_dtype);
  unsigned char *copy = host_alloc(g->out.bytes);
  float *lse_copy = host_alloc(g->lse.bytes);
  td_download(copy, g->out.data, g->out.bytes);
  td_download(lse_copy, g->lse.data, g->lse.bytes);
  for (int64_t row = 0; row < g->h->rows; row++) {
    for (int64_t head = 0; head < a->num_heads; head++) {
      const int64_t to = row * a->num_heads + head;
      for (int64_t d = 0; d < a->head_dim_v; d++) {
        out[to * a->head_dim_v + d] =
            element_load(dtype, copy, row * a->out_stride_row + head * a->out_stride_head + d);
      }
      if (lse != NULL && !g->h->how.no_lse) {
        lse[to] = lse_copy[row * a->lse_stride_row + head * a->lse_stride_head];
      }
    }
  }
  free(copy);
  free(lse_copy);
}

void gpu_free(gpu_case *g) {
  device_buffer *buffers[] = {&g->image, &g->q, &g->k, &g->v, &g->sinks, &g->out, &g->lse, &g->scratch, &g->status};
  for (size_t n = 0; n < sizeof buffers / sizeof buffers[0]; n++) {
    td_free(buffers[n]);
  }
  free(g->image_host);
  treeattn_plan_destroy(g->plan);
  memset(g, 0, sizeof *g);
}

void gpu_once(harness *h, const gpu_options *how, float *out, float *lse) {
  gpu_case g;
  gpu_build(&g, h, how);
  gpu_run(&g);
  gpu_read(&g, out, lse);
  gpu_free(&g);
}

layout gpu_layout_random(rng *r) {
  static const int paddings[] = {0, 0, 8, 24};
  thread_team team;
  rng order;
  layout how = layout_random(r, &team, &order);
  how.stride_pad = PICK(r, paddings);
  how.guards_at_begin = false;
  how.executor = (treeattn_executor){NULL, NULL};
  how.num_workers = 1;
  return how;
}

void gpu_options_random(gpu_options *how, rng *r) {
  static const int32_t multiprocessors[] = {0, 0, 1, 5, 132, 2048};
  static const int32_t rows[] = {0, 0, 64, 128};
  how->num_multiprocessors = PICK(r, multiprocessors);
  how->block_rows = PICK(r, rows);
  how->q_pad = rng_chance(r, 2) ? 0 : rng_range(r, 1, 9);
  how->out_pad = rng_chance(r, 2) ? 0 : rng_range(r, 1, 9);
  how->lse_pad = rng_chance(r, 2) ? 0 : rng_range(r, 1, 3);
}

float round_to(treeattn_dtype dtype, float value) {
  switch (dtype) {
    case TREEATTN_F16: return half_to_float(float_to_half(value));
    case TREEATTN_BF16: return bfloat_to_float(float_to_bfloat(value));
    default: return value;
  }
}

void problem_round_queries(problem *p, treeattn_dtype dtype) {
  for (int n = 0; n < p->num_requests; n++) {
    const int64_t count = (int64_t)p->num_heads * p->requests[n].num_nodes * p->head_dim;
    for (int64_t i = 0; i < count; i++) {
      p->requests[n].q[i] = round_to(dtype, p->requests[n].q[i]);
    }
  }
}

void problem_share_kv(problem *p) {
  const size_t k_row = (size_t)p->head_dim * element_bytes(p->kv_dtype);
  const size_t v_row = (size_t)p->head_dim_v * element_bytes(p->kv_dtype);
  for (int n = 0; n < p->num_requests; n++) {
    const size_t rows = (size_t)p->num_kv_heads * (size_t)p->requests[n].num_slots;
    for (size_t row = 0; row < rows; row++) {
      memcpy((unsigned char *)p->requests[n].v + row * v_row, (const unsigned char *)p->requests[n].k + row * k_row,
             v_row);
    }
  }
}

/* [G][from_slots][dim] to [G][length][dim], slots in the order of `slots`. */
static void gather(const problem *p, const request_data *from, const void *cache, void *to, int dim,
                   const int32_t *slots, int length) {
  const size_t row = (size_t)dim * element_bytes(p->kv_dtype);
  for (int g = 0; g < p->num_kv_heads; g++) {
    for (int n = 0; n < length; n++) {
      memcpy((unsigned char *)to + ((size_t)g * (size_t)length + (size_t)n) * row,
             (const unsigned char *)cache + ((size_t)g * (size_t)from->num_slots + (size_t)slots[n]) * row, row);
    }
  }
}

problem path_problem(const problem *p, int request, int node) {
  const request_data *from = &p->requests[request];
  const int length = from->prefix_len + from->depths[node] + 1;
  const int32_t root = -1;
  rng r = {1};
  problem one = problem_new(p->num_heads, p->num_kv_heads, p->head_dim, p->head_dim_v, p->kv_dtype);
  one.scale = p->scale;
  one.softcap = p->softcap;
  one.window = p->window;
  if (p->sinks != NULL) {
    one.sinks = host_alloc((size_t)p->num_heads * sizeof *one.sinks);
    memcpy(one.sinks, p->sinks, (size_t)p->num_heads * sizeof *one.sinks);
  }
  request_data *to = problem_add(&one, length - 1, 1, &root, 1.0f, &r);
  int32_t *slots = host_alloc((size_t)length * sizeof *slots);
  for (int n = 0; n < from->prefix_len; n++) {
    slots[n] = n;
  }
  for (int j = node, n = length - 1; j >= 0; j = from->parents[j], n--) {
    slots[n] = from->prefix_len + j;
  }
  gather(p, from, from->k, to->k, p->head_dim, slots, length);
  gather(p, from, from->v, to->v, p->head_dim_v, slots, length);
  for (int head = 0; head < p->num_heads; head++) {
    memcpy(to->q + (size_t)head * (size_t)p->head_dim,
           from->q + ((size_t)head * (size_t)from->num_nodes + (size_t)node) * (size_t)p->head_dim,
           (size_t)p->head_dim * sizeof *to->q);
  }
  free(slots);
  return one;
}

void gpu_path_decode(const problem *p, int request, int node, const gpu_options *how, float *out, float *lse) {
  problem one = path_problem(p, request, node);
  const layout plain = LAYOUT_INIT;
  gpu_options options = *how;
  options.num_multiprocessors = 0;
  options.block_rows = 0;
  harness h;
  harness_build(&h, &one, &plain);
  gpu_once(&h, &options, out, lse);
  harness_free(&h);
  problem_free(&one);
}

void harness_set_mask(harness *h, int n, treeattn_mask_kind kind, const uint8_t *sees, const float *bias) {
  const request_data *data = &h->source->requests[n];
  treeattn_request *request = &h->requests[n];
  const int slots = data->num_slots;
  const int64_t stride = kind == TREEATTN_MASK_BITS ? (slots + 7) / 8 : slots;
  guarded_free(&h->masks[n]);
  h->masks[n] = mask_encode(kind, sees, data->num_nodes, slots, slots, stride, false);
  for (int64_t cell = 0; bias != NULL && kind == TREEATTN_MASK_DENSE_F32 && cell < (int64_t)data->num_nodes * slots;
       cell++) {
    if (sees[cell] != 0) {
      memcpy(h->masks[n].data + (size_t)cell * sizeof *bias, &bias[cell], sizeof *bias);
    }
  }
  request->mask_kind = kind;
  request->mask = h->masks[n].data;
  request->mask_bytes = h->masks[n].bytes;
  request->mask_stride = 0;
  request->mask_columns = 0;
  request->positions = NULL;
  request->kv_seq_len = slots;
  treeattn_plan_destroy(h->plan);
  CHECK_OK(treeattn_plan_create(&h->args, &h->plan, &error));
  h->info = plan_info(h->plan);
  guarded_free(&h->scratch);
  h->scratch = guarded_new(h->info.scratch_bytes, false);
  h->run.scratch = h->scratch.data;
  h->run.scratch_bytes = h->scratch.bytes;
}
