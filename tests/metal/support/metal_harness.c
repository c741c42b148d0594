/* SPDX-License-Identifier: Apache-2.0 */
/* A laid-out problem of the CPU's tests, run by the Metal back end. */
#include "support/check.h"

#include "metal_harness.h"

#include <string.h>

#ifndef __APPLE__
#include "standin/bridge.h"
#endif

static void *the_device;
static treeattn_metal *the_metal;

void *metal_device_of_tests(void) {
  if (the_device == NULL) {
    the_device = device_new();
    CHECK(the_device != NULL, "there is no Metal device");
  }
  return the_device;
}

treeattn_metal *metal_of_tests(void) {
  if (the_metal == NULL) {
    CHECK_OK(treeattn_metal_create(metal_device_of_tests(), &the_metal, &error));
  }
  return the_metal;
}

void metal_close(void) {
  treeattn_metal_destroy(the_metal);
  device_release(the_device);
  the_metal = NULL;
  the_device = NULL;
#ifndef __APPLE__
  CHECK(standin_objects() == 0, "%ld objects were not released", standin_objects());
#endif
}

static treeattn_metal_buffer new_buffer(size_t bytes, size_t step, rng *r) {
  treeattn_metal_buffer at = {NULL, step * (size_t)rng_below(r, 5)};
  at.buffer = device_buffer(metal_device_of_tests(), at.offset + bytes + (bytes == 0 ? 16 : 0));
  return at;
}

static treeattn_metal_buffer copy_of(const guarded *from, size_t step, rng *r) {
  treeattn_metal_buffer at = new_buffer(from->bytes, step, r);
  memcpy(device_contents(at.buffer) + at.offset, from->data, from->bytes);
  return at;
}

void metal_buffers_new(metal_buffers *m, harness *h, rng *r) {
  size_t element = element_bytes(h->args.kv_dtype);
  memset(m, 0, sizeof *m);
  m->info.struct_size = sizeof m->info;
  CHECK_OK(treeattn_metal_plan_get_info(h->plan, &m->info, &error));
  m->run.struct_size = sizeof m->run;
  m->run.q = copy_of(&h->q, 4, r);
  m->run.k = copy_of(&h->k, element, r);
  m->run.v = copy_of(&h->v, element, r);
  m->out_bytes = h->out.bytes;
  m->run.out = new_buffer(m->out_bytes, 4, r);
  if (!h->how.no_lse) {
    m->lse_bytes = h->lse.bytes;
    m->run.lse = new_buffer(m->lse_bytes, 4, r);
  }
  m->run.scratch = new_buffer(m->info.scratch_bytes, 4, r);
  m->run.plan = new_buffer(m->info.plan_bytes, 16, r);
  m->run.sinks = h->source->sinks;
  m->run.sinks_bytes = h->source->sinks == NULL ? 0 : (size_t)h->source->num_heads * sizeof(float);
  CHECK_OK(treeattn_metal_plan_write(h->plan, device_contents(m->run.plan.buffer) + m->run.plan.offset,
                                     m->info.plan_bytes, &error));
}

static int64_t or_default(int64_t stride, int64_t packed) {
  return stride == 0 ? packed : stride;
}

/* Takes the rows out; where they are taken from, 0xff is put back, and then nothing else may be left. */
static void take_rows(const char *name, treeattn_metal_buffer at, size_t bytes, int64_t rows, int64_t heads,
                      int64_t width, int64_t row_stride, int64_t head_stride, float *packed) {
  size_t total = at.offset + bytes;
  unsigned char *copy = malloc(total + 1);
  CHECK(copy != NULL, "out of memory for %zu bytes", total);
  memcpy(copy, device_contents(at.buffer), total);
  for (int64_t row = 0; row < rows; row++) {
    for (int64_t head = 0; head < heads; head++) {
      unsigned char *from = copy + at.offset + (size_t)(row * row_stride + head * head_stride) * sizeof(float);
      memcpy(packed + (row * heads + head) * width, from, (size_t)width * sizeof(float));
      memset(from, 0xff, (size_t)width * sizeof(float));
    }
  }
  for (size_t n = 0; n < total; n++) {
    CHECK(copy[n] == 0xff, "byte %zu of %s, which is no part of a row, was written", n, name);
  }
  free(copy);
}

void metal_buffers_read(const metal_buffers *m, const harness *h, float *out, float *lse) {
  const treeattn_plan_args *a = &h->args;
  int64_t out_head = or_default(a->out_stride_head, a->head_dim_v);
  take_rows("out", m->run.out, m->out_bytes, h->rows, a->num_heads, a->head_dim_v,
            or_default(a->out_stride_row, a->num_heads * out_head), out_head, out);
  if (lse != NULL && m->run.lse.buffer != NULL) {
    int64_t lse_head = or_default(a->lse_stride_head, 1);
    take_rows("lse", m->run.lse, m->lse_bytes, h->rows, a->num_heads, 1,
              or_default(a->lse_stride_row, a->num_heads * lse_head), lse_head, lse);
  }
}

void metal_buffers_clear(const metal_buffers *m) {
  memset(device_contents(m->run.out.buffer) + m->run.out.offset, 0xff, m->out_bytes);
  memset(device_contents(m->run.scratch.buffer) + m->run.scratch.offset, 0xff, m->info.scratch_bytes);
  if (m->run.lse.buffer != NULL) {
    memset(device_contents(m->run.lse.buffer) + m->run.lse.offset, 0xff, m->lse_bytes);
  }
}

void metal_buffers_free(metal_buffers *m) {
  void *buffers[] = {m->run.q.buffer,   m->run.k.buffer,    m->run.v.buffer,      m->run.out.buffer,
                     m->run.lse.buffer, m->run.plan.buffer, m->run.scratch.buffer};
  for (size_t n = 0; n < sizeof buffers / sizeof buffers[0]; n++) {
    device_release(buffers[n]);
  }
  memset(m, 0, sizeof *m);
}

void metal_once(const problem *p, const layout *how, float *out, float *lse, rng *r) {
  harness h;
  metal_buffers m;
  harness_build(&h, p, how);
  metal_buffers_new(&m, &h, r);
#ifndef __APPLE__
  standin_shuffle(rng_next(r));
#endif
  CHECK_OK(treeattn_metal_attend(metal_of_tests(), h.plan, &m.run, &error));
  metal_buffers_read(&m, &h, out, lse);
  metal_buffers_free(&m);
  harness_free(&h);
}
