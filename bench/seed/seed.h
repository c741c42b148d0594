/* SPDX-License-Identifier: Apache-2.0 */
/* The baseline that benches compare with: tree attention by an explicit f32 mask, one pass over K and V for each
 * row. */
#ifndef BENCH_SEED_H
#define BENCH_SEED_H

#include <treeattn/attention.h>

/* Keys are cut into chunks of SEED_CHUNK; chunk c belongs to split c mod SEED_SPLITS. */
#define SEED_CHUNK 32
#define SEED_SPLITS 32
#define SEED_MAX_HEAD_DIM 1024

typedef enum seed_isa { SEED_ISA_AUTO = 0, SEED_ISA_PLAIN = 1, SEED_ISA_AVX2 = 2 } seed_isa;

typedef struct seed_args {
  int64_t num_heads;    /* H, a multiple of num_kv_heads */
  int64_t num_kv_heads; /* G */
  int64_t head_dim;     /* D: a multiple of 8, at most SEED_MAX_HEAD_DIM */
  int64_t q_seq_len;    /* N */
  int64_t kv_seq_len;   /* T */
  int64_t kv_capacity;  /* C, at least T */
  int64_t mask_stride;  /* at least T */
  float scale;
  treeattn_dtype kv_dtype; /* F32 or F16 */
  const float *q;          /* [H][N][D] */
  const void *k;           /* [G][C][D] */
  const void *v;           /* [G][C][D] */
  const float *mask;       /* [N][mask_stride]: 0 attended, TREEATTN_MASK_HIDDEN masked; added to the score */
  float *out;              /* [N][H][D] */
  treeattn_executor executor;
  seed_isa isa;
} seed_args;

/* "plain" or "avx2": what AUTO takes on this machine. */
const char *seed_isa_detect(void);

/* 0; -1 for arguments outside the ranges above or a failing executor. */
int seed_tree_attention(const seed_args *args);

#endif
