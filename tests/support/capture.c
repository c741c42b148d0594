/* SPDX-License-Identifier: Apache-2.0 */
/* Captured attention inputs. */
#include "capture.h"

#include <stdio.h>
#include <string.h>

#include "check.h"

/* Finds a tensor: its bytes and up to three sizes. */
static const unsigned char *find_tensor(const capture *c, const char *name, const char *dtype, int shape[3]) {
  uint64_t header_bytes;
  memcpy(&header_bytes, c->file, sizeof header_bytes);
  char key[64];
  (void)snprintf(key, sizeof key, "\"%s\":{\"dtype\":\"%s\",\"shape\":[", name, dtype);
  const char *entry = strstr((const char *)c->file + 8, key);
  if (entry == NULL) {
    return NULL;
  }
  entry += strlen(key);
  shape[0] = shape[1] = shape[2] = 0;
  CHECK(sscanf(entry, "%d,%d,%d", &shape[0], &shape[1], &shape[2]) >= 1, "%s has no shape", name);
  unsigned long long begin = 0, end = 0;
  const char *offsets = strstr(entry, "\"data_offsets\":[");
  CHECK(offsets != NULL && sscanf(offsets, "\"data_offsets\":[%llu,%llu]", &begin, &end) == 2, "%s has no offsets",
        name);
  CHECK(begin <= end && 8 + header_bytes + end <= c->bytes, "%s lies outside its file", name);
  return c->file + 8 + header_bytes + begin;
}

bool capture_open(capture *c, const char *path) {
  memset(c, 0, sizeof *c);
  FILE *stream = fopen(path, "rb");
  if (stream == NULL) {
    return false;
  }
  (void)fseek(stream, 0, SEEK_END);
  c->bytes = (size_t)ftell(stream);
  rewind(stream);
  c->file = calloc(c->bytes + 1, 1);
  CHECK(c->file != NULL && fread(c->file, 1, c->bytes, stream) == c->bytes && c->bytes > 8, "%s cannot be read", path);
  (void)fclose(stream);
  /* The header ends before the data begins: strstr must not run into it. */
  int shape[3];
  c->parents = (const int32_t *)(const void *)find_tensor(c, "parents", "I32", shape);
  c->num_nodes = shape[0];
  c->positions = (const int32_t *)(const void *)find_tensor(c, "positions", "I32", shape);
  CHECK(c->parents != NULL && c->positions != NULL, "%s has no tree", path);
  return true;
}

bool capture_layer(const capture *c, int layer, problem *p) {
  char name[32];
  int q_shape[3], k_shape[3], v_shape[3];
  (void)snprintf(name, sizeof name, "layer%d.q", layer);
  const unsigned char *q = find_tensor(c, name, "F32", q_shape);
  if (q == NULL) {
    return false;
  }
  (void)snprintf(name, sizeof name, "layer%d.k", layer);
  const unsigned char *k = find_tensor(c, name, "F16", k_shape);
  (void)snprintf(name, sizeof name, "layer%d.v", layer);
  const unsigned char *v = find_tensor(c, name, "F16", v_shape);
  CHECK(k != NULL && v != NULL && q_shape[1] == c->num_nodes, "layer %d is incomplete", layer);
  *p = problem_new(q_shape[0], k_shape[0], q_shape[2], v_shape[2], TREEATTN_F16);
  rng r = {0};
  request_data *data = problem_add(p, k_shape[1] - c->num_nodes, c->num_nodes, c->parents, 1.0f, &r);
  memcpy(data->q, q, (size_t)q_shape[0] * (size_t)q_shape[1] * (size_t)q_shape[2] * 4);
  memcpy(data->k, k, (size_t)k_shape[0] * (size_t)k_shape[1] * (size_t)k_shape[2] * 2);
  memcpy(data->v, v, (size_t)v_shape[0] * (size_t)v_shape[1] * (size_t)v_shape[2] * 2);
  return true;
}

void capture_close(capture *c) {
  free(c->file);
  memset(c, 0, sizeof *c);
}
