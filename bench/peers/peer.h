/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a peer has to bring to be measured by `treeattn bench --peer COMMAND`: it is a program of its own, which reads
 * commands on standard input and answers on standard output, a line each. Tensors are files that both have mapped.
 *
 *   on starting        it says   peer NAME
 *   load H G D N T DTYPE SCALE THREADS Q K V SEEN OUT      (the last five are file descriptors that it inherited)
 *                      it says   ready                or   refused REASON
 *   run                it says   done SECONDS
 *   end of input       it ends
 *
 * Q [H][N][D] f32, K and V [G][T][D] of DTYPE, SEEN [N][T] one byte each (1: node n sees slot t), OUT [N][H][D] f32.
 * What a peer would do once for many layers, or once for a cache that it lays out itself, belongs to `load`.
 */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct peer_problem {
  int64_t num_heads, num_kv_heads, head_dim, num_nodes, num_slots;
  char dtype[8]; /* f32, f16 or bf16 */
  float scale;
  int num_threads;
  const float *q;
  const void *k, *v;
  const uint8_t *seen;
  float *out;
} peer_problem;

/* Prepares a problem, which stays mapped until the next one. NULL, or why it is not served. */
typedef const char *(*peer_load_fn)(const peer_problem *problem);
/* Computes the problem; only this is timed. */
typedef void (*peer_run_fn)(void);

/* Serves commands until there are no more. The exit status of the program. */
int peer_serve(const char *name, peer_load_fn load, peer_run_fn run);

/* Element `index` of a cache. */
float peer_element(const char *dtype, const void *cache, int64_t index);

#endif
