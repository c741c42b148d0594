/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and frees the problems that bench and check work on. */
#include "problem.h"

#include <math.h>
#include <string.h>

#include "cli.h"
#include "io.h"
#include "seed_kernels.h"

uint64_t problem_random(uint64_t *state) {
  uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

int64_t problem_random_below(uint64_t *state, int64_t n) {
  return (int64_t)(problem_random(state) % (uint64_t)n);
}

size_t problem_kv_bytes(const problem *p) {
  return (size_t)(p->num_kv_heads * (p->prefix_len + p->num_nodes) * (p->head_dim + p->head_dim_v)) *
         treeattn_dtype_bytes(p->kv_dtype);
}

float problem_load_element(treeattn_dtype dtype, const void *cache, int64_t index) {
  if (dtype == TREEATTN_F32) {
    return ((const float *)cache)[index];
  }
  const uint16_t bits = ((const uint16_t *)cache)[index];
  if (dtype == TREEATTN_F16) {
    return seed_half_to_float(bits);
  }
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

void problem_store_element(treeattn_dtype dtype, void *cache, int64_t index, float value) {
  if (dtype == TREEATTN_F32) {
    ((float *)cache)[index] = value;
  } else if (dtype == TREEATTN_F16) {
    ((uint16_t *)cache)[index] = seed_float_to_half(value);
  } else {
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    if (!isnan(value)) { /* to nearest even; a NaN keeps its upper half, which must not become an infinity */
      wide += 0x7fffu + (wide >> 16 & 1u);
    } else {
      wide |= 0x400000u;
    }
    ((uint16_t *)cache)[index] = (uint16_t)(wide >> 16);
  }
}

/* ---- random ----------------------------------------------------------------------------------------------- */

enum { NORMALS = 1 << 16 };

/* Drawing from a table of normal numbers keeps a hundred megabytes of cache a matter of tenths of a second. */
static void fill_normals(float *normals, uint64_t *state) {
  for (int n = 0; n < NORMALS; n += 2) {
    const double radius = sqrt(-2.0 * log(((double)(problem_random(state) >> 11) + 0.5) * 0x1p-53));
    const double angle = 6.283185307179586 * (double)(problem_random(state) >> 11) * 0x1p-53;
    normals[n] = (float)(radius * cos(angle));
    normals[n + 1] = (float)(radius * sin(angle));
  }
}

static void fill_cache(treeattn_dtype dtype, void *cache, int64_t count, const float *normals, uint64_t *state) {
  uint16_t table[NORMALS];
  if (dtype != TREEATTN_F32) {
    for (int n = 0; n < NORMALS; n++) {
      problem_store_element(dtype, table, n, normals[n]);
    }
  }
  uint64_t bits = 0;
  for (int64_t n = 0; n < count; n++) {
    bits = n % 4 == 0 ? problem_random(state) : bits >> 16;
    if (dtype == TREEATTN_F32) {
      ((float *)cache)[n] = normals[bits & 0xffff];
    } else {
      ((uint16_t *)cache)[n] = table[bits & 0xffff];
    }
  }
}

static void fill_depths(problem *p) {
  for (int64_t i = 0; i < p->num_nodes; i++) {
    p->depths[i] = p->parents[i] < 0 ? 0 : p->depths[p->parents[i]] + 1;
  }
}

static bool allocate(problem *p) {
  const size_t element = treeattn_dtype_bytes(p->kv_dtype);
  const size_t slots = (size_t)p->num_kv_heads * (size_t)p->kv_capacity;
  p->parents = cli_malloc_array((size_t)p->num_nodes, sizeof *p->parents);
  p->depths = cli_malloc_array((size_t)p->num_nodes, sizeof *p->depths);
  p->q = cli_malloc_array((size_t)p->num_heads * (size_t)p->num_nodes, (size_t)p->head_dim * sizeof *p->q);
  p->k = cli_malloc_array(slots, (size_t)p->head_dim * element);
  p->v = cli_malloc_array(slots, (size_t)p->head_dim_v * element);
  return p->parents != NULL && p->depths != NULL && p->q != NULL && p->k != NULL && p->v != NULL;
}

bool problem_create_random(const problem *sizes, float q_amplitude, uint64_t seed, problem *p) {
  const int32_t *parents = sizes->parents;
  *p = *sizes;
  p->sinks = NULL;
  float *normals = cli_malloc_array(NORMALS, sizeof *normals);
  if (!allocate(p) || normals == NULL) {
    cli_free(normals);
    problem_free(p);
    return false;
  }
  uint64_t state = seed;
  fill_normals(normals, &state);
  for (int64_t i = 0; i < p->num_nodes; i++) {
    p->parents[i] = parents != NULL ? parents[i] : i == 0 ? -1 : (int32_t)problem_random_below(&state, i);
  }
  fill_depths(p);
  for (int64_t n = 0; n < p->num_heads * p->num_nodes * p->head_dim; n++) {
    p->q[n] = q_amplitude * normals[problem_random(&state) & 0xffff];
  }
  fill_cache(p->kv_dtype, p->k, p->num_kv_heads * p->kv_capacity * p->head_dim, normals, &state);
  fill_cache(p->kv_dtype, p->v, p->num_kv_heads * p->kv_capacity * p->head_dim_v, normals, &state);
  cli_free(normals);
  return true;
}

/* ---- from a file ------------------------------------------------------------------------------------------ */

static void tensor_name(char *name, size_t bytes, int64_t layer, const char *tensor) {
  if (layer < 0) {
    (void)snprintf(name, bytes, "%s", tensor);
  } else {
    (void)snprintf(name, bytes, "layer%lld.%s", (long long)layer, tensor);
  }
}

static bool load_tensors(io_file *file, int64_t layer, problem *p) {
  char name[64];
  const io_tensor *tensor = NULL;
  const io_tensor *k = NULL;
  const io_tensor *v = NULL;
  const float *q = NULL;
  const float *sinks = NULL;
  const int32_t *parents = NULL;
  const int64_t any[3] = {IO_FREE, IO_FREE, IO_FREE};
  tensor_name(name, sizeof name, layer, "q");
  if (!io_get_f32(file, name, 3, any, &tensor, &q)) {
    return false;
  }
  p->num_heads = tensor->shape[0];
  p->num_nodes = tensor->shape[1];
  p->head_dim = tensor->shape[2];
  tensor_name(name, sizeof name, layer, "k");
  if (!io_get(file, name, IO_KV, 3, (const int64_t[]){IO_FREE, IO_FREE, p->head_dim}, &k)) {
    return false;
  }
  p->num_kv_heads = k->shape[0];
  p->kv_capacity = k->shape[1];
  tensor_name(name, sizeof name, layer, "v");
  if (!io_get(file, name, (unsigned)k->dtype, 3, (const int64_t[]){p->num_kv_heads, p->kv_capacity, IO_FREE}, &v)) {
    return false;
  }
  p->head_dim_v = v->shape[2];
  if (!io_get_i32_optional(file, "parents", 1, (const int64_t[]){p->num_nodes}, NULL, &parents)) {
    return false;
  }
  tensor_name(name, sizeof name, layer, "sinks");
  if (!io_get_f32_optional(file, name, 1, (const int64_t[]){p->num_heads}, NULL, &sinks)) {
    return false;
  }
  if (p->num_heads < 1 || p->num_kv_heads < 1 || p->num_heads % p->num_kv_heads != 0 || p->num_nodes < 1 ||
      p->head_dim < 1 || p->head_dim_v < 1 || p->kv_capacity < p->num_nodes) {
    cli_error("%s: q has %lld heads of %lld nodes, k %lld heads of %lld slots: not a step of tree attention",
              io_path(file), (long long)p->num_heads, (long long)p->num_nodes, (long long)p->num_kv_heads,
              (long long)p->kv_capacity);
    return false;
  }
  for (int64_t i = 0; i < p->num_nodes && parents != NULL; i++) {
    if (parents[i] < -1 || parents[i] >= i) {
      cli_error("%s: parents[%lld] is %d: a parent must come before its child", io_path(file), (long long)i,
                parents[i]);
      return false;
    }
  }
  p->prefix_len = p->kv_capacity - p->num_nodes;
  p->kv_dtype = io_dtype_to_treeattn(k->dtype);
  p->scale = (float)(1.0 / sqrt((double)p->head_dim));
  p->sinks = sinks == NULL ? NULL : cli_malloc_array((size_t)p->num_heads, sizeof *p->sinks);
  if (!allocate(p) || (sinks != NULL && p->sinks == NULL)) {
    cli_out_of_memory();
    return false;
  }
  memcpy(p->q, q, (size_t)(p->num_heads * p->num_nodes * p->head_dim) * sizeof *q);
  memcpy(p->k, k->data, k->bytes);
  memcpy(p->v, v->data, v->bytes);
  if (sinks != NULL) {
    memcpy(p->sinks, sinks, (size_t)p->num_heads * sizeof *sinks);
  }
  for (int64_t i = 0; i < p->num_nodes; i++) {
    p->parents[i] = parents != NULL ? parents[i] : (int32_t)i - 1;
  }
  fill_depths(p);
  return true;
}

bool problem_load(const char *path, int64_t layer, problem *p) {
  memset(p, 0, sizeof *p);
  io_file *file = NULL;
  if (!io_open(path, NULL, &file)) {
    return false;
  }
  const bool loaded = load_tensors(file, layer, p);
  if (!loaded) {
    problem_free(p);
  }
  io_close(file);
  return loaded;
}

bool problem_list_layers(const char *path, int64_t *layers, size_t capacity, size_t *num_layers) {
  io_file *file = NULL;
  if (!io_open(path, NULL, &file)) {
    return false;
  }
  *num_layers = 0;
  for (int64_t layer = 0; layer < 1000 && *num_layers < capacity; layer++) {
    char name[64];
    tensor_name(name, sizeof name, layer, "q");
    if (io_find(file, name) != NULL) {
      layers[(*num_layers)++] = layer;
    }
  }
  io_close(file);
  return true;
}

void problem_free(problem *p) {
  cli_free(p->parents);
  cli_free(p->depths);
  cli_free(p->q);
  cli_free(p->k);
  cli_free(p->v);
  cli_free(p->sinks);
  memset(p, 0, sizeof *p);
}

int64_t problem_path(const problem *p, int64_t node, int32_t *path) {
  const int64_t length = p->depths[node] + 1;
  int64_t place = length;
  for (int32_t j = (int32_t)node; j >= 0; j = p->parents[j]) {
    path[--place] = j;
  }
  return length;
}
