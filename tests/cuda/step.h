/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of the step's tests: trees one after another, here and in device memory. */
#ifndef TESTS_CUDA_STEP_H
#define TESTS_CUDA_STEP_H

#include <string.h>

#include <treeattn/treeattn.h>
#include <treeattn/treeattn_cuda_step.h>

#include "support/rng.h"
#include "support/trees.h"

#include "support.h"

enum { STEP_MAX_REQUESTS = 24 };

typedef struct step_batch {
  int num_requests, num_nodes, max_nodes;
  int32_t offsets[STEP_MAX_REQUESTS + 1];
  int32_t *parents; /* [num_nodes] */
  device_buffer offsets_there, parents_there;
} step_batch;

static inline void *step_calloc(size_t count, size_t bytes) {
  void *memory = calloc(count + 1, bytes);
  CHECK(memory != NULL, "out of memory");
  return memory;
}

static inline int step_nodes(const step_batch *b, int n) {
  return b->offsets[n + 1] - b->offsets[n];
}

/* Up to most_requests trees of up to most_nodes nodes, and elements behind the last that belong to none. */
static inline void step_batch_random(step_batch *b, int most_requests, int most_nodes, rng *r) {
  memset(b, 0, sizeof *b);
  b->num_requests = rng_range(r, 0, most_requests);
  b->offsets[0] = rng_below(r, 3);
  for (int n = 0; n < b->num_requests; n++) {
    const int nodes = rng_chance(r, 5) ? rng_below(r, 2) : rng_range(r, 1, most_nodes);
    b->offsets[n + 1] = b->offsets[n] + nodes;
    b->max_nodes = nodes > b->max_nodes ? nodes : b->max_nodes;
  }
  b->num_nodes = b->offsets[b->num_requests] + rng_below(r, 3);
  b->max_nodes += rng_below(r, 3);
  b->parents = step_calloc((size_t)b->num_nodes, sizeof(int32_t));
  for (int n = 0; n < b->num_requests; n++) {
    tree_make((tree_shape)rng_below(r, NUM_TREE_SHAPES), step_nodes(b, n), r, b->parents + b->offsets[n]);
  }
}

static inline void step_batch_upload(step_batch *b) {
  b->offsets_there = td_alloc_copy(b->offsets, (size_t)(b->num_requests + 1) * sizeof(int32_t));
  b->parents_there = td_alloc_copy(b->parents, (size_t)b->num_nodes * sizeof(int32_t));
}

static inline treeattn_cuda_batch step_batch_args(const step_batch *b) {
  return (treeattn_cuda_batch){b->num_requests, b->num_nodes, b->max_nodes,
                               (const int32_t *)(const void *)b->offsets_there.data};
}

static inline void step_batch_free(step_batch *b) {
  td_free(&b->offsets_there);
  td_free(&b->parents_there);
  free(b->parents);
}

/* What a function left in device memory must be these bytes, guard bands included. */
static inline void step_check_bytes(const char *what, const device_buffer *there, const void *expected) {
  unsigned char *copy = step_calloc(there->bytes, 1);
  td_download(copy, there->data, there->bytes);
  for (size_t n = 0; n < there->bytes; n++) {
    CHECK(copy[n] == ((const unsigned char *)expected)[n], "%s: byte %zu of %zu is 0x%02x instead of 0x%02x", what, n,
          there->bytes, copy[n], ((const unsigned char *)expected)[n]);
  }
  CHECK(td_intact(there), "%s: bytes around it were written", what);
  free(copy);
}

/* An outcome and that its words begin with `place`, as in "requests[3].logits[2]". */
static inline void step_check_outcome(const treeattn_cuda_outcome *outcome, int n, treeattn_status status,
                                      treeattn_cuda_field field, int index, int column) {
  treeattn_error error = {TREEATTN_OK, ""};
  CHECK(outcome->status == (int)status && outcome->field == (int)field && outcome->index == index &&
            outcome->column == column,
        "request %d: status %d, field %d, index %d, column %d instead of %d, %d, %d, %d", n, (int)outcome->status,
        (int)outcome->field, (int)outcome->index, (int)outcome->column, (int)status, (int)field, index, column);
  CHECK(treeattn_cuda_outcome_explain(outcome, n, &error) == status, "request %d: the words have another status", n);
  CHECK(status == TREEATTN_OK || (error.status == status && strncmp(error.message, "requests[", 9) == 0),
        "request %d: the words are \"%s\"", n, error.message);
}

#endif
