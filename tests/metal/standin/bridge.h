/* SPDX-License-Identifier: Apache-2.0 */
/* The executor, as the stand-in and the tests see it from C. */
#ifndef STANDIN_BRIDGE_H
#define STANDIN_BRIDGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { STANDIN_BINDINGS = 31, STANDIN_CONSTANTS = 8 };

/* A source text, read for the arguments of its kernels and the names of its function constants. */
typedef struct standin_source standin_source;
standin_source *standin_source_new(const char *text);
void standin_source_free(standin_source *source);
/* 1 if the text has this kernel and the executor has it compiled. */
int standin_source_has(const standin_source *source, const char *kernel);
/* The function constants that the text declares, as bits of their indices. */
uint32_t standin_source_constants(const standin_source *source);

typedef struct standin_dispatch {
  const standin_source *source;
  const char *kernel;
  uint32_t constants[STANDIN_CONSTANTS];
  unsigned char *data[STANDIN_BINDINGS]; /* NULL: nothing is bound */
  size_t bytes[STANDIN_BINDINGS], offset[STANDIN_BINDINGS];
  size_t threadgroup_bytes[STANDIN_BINDINGS]; /* 0: not set */
  uint32_t grid[3], lanes;
} standin_dispatch;

/* Runs it. "" or a report, which stays until the next call. */
const char *standin_run(const standin_dispatch *dispatch);
void standin_barrier(void);

/* ---- for tests ---- */

/* Objects that are alive, and the text of the source that was compiled last. */
long standin_objects(void);
const char *standin_last_source(void);
/* memoryBarrierWithScope does nothing. */
void standin_drop_device_barriers(int drop);
/* Dispatches run, and pipelines built, so far. */
long standin_dispatches(void);
long standin_pipelines(void);

void standin_shuffle(uint64_t seed);
uint64_t standin_bytes_read(const char *kernel, int buffer);
/* The place of the n-th barrier that lanes have passed, or NULL. */
const char *standin_barrier_place(int n);
void standin_drop_barrier(const char *place);

#ifdef __cplusplus
}
#endif
#endif
