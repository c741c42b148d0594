/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers of the tests: one 64-bit seed describes one trial, so that a failure can be replayed. */
#ifndef TESTS_RNG_H
#define TESTS_RNG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct rng {
  uint64_t state;
} rng;

/* splitmix64 */
static inline uint64_t rng_next(rng *r) {
  uint64_t x = (r->state += UINT64_C(0x9e3779b97f4a7c15));
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

/* 0 .. n-1. The modulo's bias does not matter to a test. */
static inline int rng_below(rng *r, int n) {
  return (int)(rng_next(r) % (uint64_t)n);
}

/* low .. high, both included */
static inline int rng_range(rng *r, int low, int high) {
  return low + rng_below(r, high - low + 1);
}

static inline bool rng_chance(rng *r, int one_in) {
  return rng_below(r, one_in) == 0;
}

/* [-1, 1) */
static inline float rng_signed(rng *r) {
  return (float)((double)(rng_next(r) >> 40) / 8388608.0 - 1.0);
}

static inline void rng_shuffle(rng *r, int32_t *items, int count) {
  for (int i = count - 1; i > 0; i--) {
    int other = rng_below(r, i + 1);
    int32_t swap = items[i];
    items[i] = items[other];
    items[other] = swap;
  }
}

#define PICK(r, array) ((array)[rng_below((r), (int)(sizeof(array) / sizeof((array)[0])))])

/*
 * Trials. TREEATTN_TEST_SEED=<seed> replays one trial instead of all; TREEATTN_TEST_QUICK=1 shrinks counts for sanitizers and
 * emulators. The low 16 bits of a seed are the index of its trial, since tests derive what must be covered from the index.
 */
bool test_quick(void);
int trial_count(int normal, int quick);
/* Seeds *r for the trial and remembers the seed for failure messages. Returns the trial's index. */
int trial_begin(rng *r, uint64_t salt, int index);
uint64_t trial_seed(void);

#endif
