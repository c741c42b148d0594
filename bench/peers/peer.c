/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol of peer.h from the peer's side. */
#include "peer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef struct mapping {
  void *data;
  size_t bytes;
} mapping;

static bool map(mapping *m, int file, size_t bytes) {
  if (m->data != NULL) {
    munmap(m->data, m->bytes);
  }
  void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  m->data = data == MAP_FAILED ? NULL : data;
  m->bytes = bytes;
  return m->data != NULL;
}

static const char *read_problem(const char *line, peer_problem *p) {
  static mapping q, k, v, seen, out;
  int file[5];
  if (sscanf(line, "load %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %7s %f %d %d %d %d %d %d",
             &p->num_heads, &p->num_kv_heads, &p->head_dim, &p->num_nodes, &p->num_slots, p->dtype, &p->scale,
             &p->num_threads, &file[0], &file[1], &file[2], &file[3], &file[4]) != 13) {
    return "the command was not understood";
  }
  const size_t element = strcmp(p->dtype, "f32") == 0 ? 4 : 2;
  const size_t rows = (size_t)(p->num_heads * p->num_nodes * p->head_dim) * sizeof(float);
  const size_t cache = (size_t)(p->num_kv_heads * p->num_slots * p->head_dim) * element;
  if (!map(&q, file[0], rows) || !map(&k, file[1], cache) || !map(&v, file[2], cache) ||
      !map(&seen, file[3], (size_t)(p->num_nodes * p->num_slots)) || !map(&out, file[4], rows)) {
    return "the tensors could not be mapped";
  }
  p->q = q.data;
  p->k = k.data;
  p->v = v.data;
  p->seen = seen.data;
  p->out = out.data;
  return NULL;
}

static double seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int peer_serve(const char *name, peer_load_fn load, peer_run_fn run) {
  static peer_problem problem;
  char line[512];
  (void)printf("peer %s\n", name);
  (void)fflush(stdout);
  while (fgets(line, sizeof line, stdin) != NULL) {
    if (strncmp(line, "load ", 5) == 0) {
      const char *reason = read_problem(line, &problem);
      reason = reason == NULL ? load(&problem) : reason;
      (void)printf(reason == NULL ? "ready\n" : "refused %s\n", reason);
    } else {
      const double start = seconds();
      run();
      (void)printf("done %.9f\n", seconds() - start);
    }
    (void)fflush(stdout);
  }
  return 0;
}

static float half(uint16_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
  const uint32_t rest = bits & 0x7fffu;
  uint32_t wide = sign | ((rest << 13) + 0x38000000u);
  float value;
  if (rest >= 0x7c00u) {
    wide = sign | 0x7f800000u | ((rest & 0x3ffu) << 13);
  } else if (rest < 0x400u) {
    value = (float)rest * 0x1.0p-24f;
    return sign != 0 ? -value : value;
  }
  memcpy(&value, &wide, sizeof value);
  return value;
}

float peer_element(const char *dtype, const void *cache, int64_t index) {
  if (strcmp(dtype, "f32") == 0) {
    return ((const float *)cache)[index];
  }
  const uint16_t bits = ((const uint16_t *)cache)[index];
  if (strcmp(dtype, "f16") == 0) {
    return half(bits);
  }
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}
