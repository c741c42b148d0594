/* SPDX-License-Identifier: Apache-2.0 */
/* A batch of verifications: scratch, the hand-out of requests to workers, and results only when all went well. */
#include <fenv.h>
#include <string.h>

#include "verify.h"

const char *treeattn_verify_method_name(treeattn_verify_method method) {
  switch (method) {
    case TREEATTN_VERIFY_GREEDY: return "greedy";
    case TREEATTN_VERIFY_TARGET_ONLY: return "target-only";
    case TREEATTN_VERIFY_RESIDUAL: return "residual";
    case TREEATTN_VERIFY_WITHOUT_REPLACEMENT: return "without-replacement";
    case TREEATTN_VERIFY_TYPICAL_LOSSY: return "typical";
  }
  return "unknown";
}

/* What one worker keeps for itself. */
typedef struct worker {
  int64_t failed_request; /* -1: none */
  treeattn_error error;
  ta_verify_state state;
  ta_typical_nodes nodes;
} worker;

typedef struct batch {
  const treeattn_verify_args *args;
  int64_t num_workers;
  worker *workers;           /* [num_workers] */
  ta_verify_output *outputs; /* [num_requests], copied to the results at the end */
} batch;

/* Hands out pieces of the scratch, or only counts their bytes while `base` is NULL. */
typedef struct arena {
  unsigned char *base;
  size_t used;
  bool overflowed;
} arena;

enum { PIECE_ALIGNMENT = 64 };

static void *arena_take(arena *memory, int64_t count, size_t size) {
  size_t bytes = 0;
  void *piece = memory->base == NULL ? NULL : memory->base + memory->used;
  if ((uint64_t)count > SIZE_MAX || !ta_mul_size((size_t)count, size, &bytes) ||
      !ta_add_size(bytes, PIECE_ALIGNMENT - 1, &bytes) ||
      !ta_add_size(memory->used, bytes - bytes % PIECE_ALIGNMENT, &memory->used)) {
    memory->overflowed = true;
  }
  return piece;
}

static ta_weights take_weights(arena *memory, int64_t num_blocks) {
  ta_weights weights = {NULL, NULL, num_blocks, 0};
  weights.values = arena_take(memory, num_blocks, TA_WEIGHTS_BLOCK * sizeof(double));
  weights.sums = arena_take(memory, num_blocks, sizeof(double));
  return weights;
}

/* The most that any request of the batch asks of a worker. */
typedef struct needs {
  bool target, draft;
  int64_t typical_nodes;
} needs;

static needs batch_needs(const treeattn_verify_args *args) {
  needs result = {false, false, 0};
  for (int64_t index = 0; index < args->num_requests; index++) {
    const treeattn_verify_request *request = ta_verify_request_at(args, index);
    const treeattn_verify_method method = ta_verify_effective_method(request);
    const ta_verify_rule *rule = ta_verify_rule_of(method);
    result.target = result.target || method != TREEATTN_VERIFY_GREEDY;
    result.draft = result.draft || (rule != NULL && rule->uses_draft);
    if (method == TREEATTN_VERIFY_TYPICAL_LOSSY) {
      result.typical_nodes = ta_max_i64(result.typical_nodes, request->num_nodes);
    }
  }
  return result;
}

/* Lays everything out. With memory->base NULL only the size comes out; the pointers are then not to be followed. */
static void lay_out(batch *work, arena *memory) {
  const treeattn_verify_args *args = work->args;
  const needs need = batch_needs(args);
  const int64_t num_blocks = ta_weights_num_blocks(args->vocab_size);
  work->num_workers = ta_max_i64(1, ta_min_i64(args->num_workers, args->num_requests));
  work->workers = arena_take(memory, work->num_workers, sizeof *work->workers);
  work->outputs = arena_take(memory, args->num_requests, sizeof *work->outputs);
  for (int64_t w = 0; w < work->num_workers; w++) {
    worker one = {.failed_request = -1};
    if (need.target) {
      one.state.target = take_weights(memory, num_blocks);
    }
    if (need.draft) {
      one.state.draft = take_weights(memory, num_blocks);
    }
    one.nodes.log_probability = arena_take(memory, need.typical_nodes, sizeof(double));
    one.nodes.first_child = arena_take(memory, need.typical_nodes, sizeof(int32_t));
    one.nodes.next_sibling = arena_take(memory, need.typical_nodes, sizeof(int32_t));
    one.nodes.depth = arena_take(memory, need.typical_nodes, sizeof(int32_t));
    if (memory->base != NULL) {
      work->workers[w] = one;
    }
  }
  for (int64_t index = 0; index < args->num_requests; index++) {
    const int64_t num_nodes = ta_verify_request_at(args, index)->num_nodes;
    ta_verify_output output = {.num_path = 0};
    output.path = arena_take(memory, num_nodes, sizeof *output.path);
    output.tokens = arena_take(memory, num_nodes, sizeof *output.tokens);
    if (ta_verify_result_at(args, index)->decisions != NULL) {
      output.decisions = arena_take(memory, num_nodes, sizeof *output.decisions);
    }
    if (memory->base != NULL) {
      work->outputs[index] = output;
    }
  }
}

static treeattn_status scratch_bytes_of(const treeattn_verify_args *args, size_t *scratch_bytes,
                                        treeattn_error *error) {
  batch work = {args, 0, NULL, NULL};
  arena memory = {NULL, PIECE_ALIGNMENT - 1, false}; /* room to align the start */
  lay_out(&work, &memory);
  if (memory.overflowed) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW,
                   "num_requests is %lld and vocab_size %lld: their scratch does not fit",
                   (long long)args->num_requests, (long long)args->vocab_size);
  }
  *scratch_bytes = memory.used;
  return TREEATTN_OK;
}

treeattn_status treeattn_verify_scratch_bytes(const treeattn_verify_args *args, size_t *scratch_bytes,
                                              treeattn_error *error) {
  const treeattn_status status = ta_verify_check_args(args, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (scratch_bytes == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "scratch_bytes is NULL");
  }
  return scratch_bytes_of(args, scratch_bytes, error);
}

static treeattn_status verify_one(const batch *work, worker *one, int64_t index) {
  char prefix[TA_VERIFY_PREFIX_BYTES];
  ta_verify_prefix(prefix, index);
  const treeattn_verify_request *request = ta_verify_request_at(work->args, index);
  const ta_verify_problem problem = {request, work->args->vocab_size, prefix};
  ta_verify_output *output = &work->outputs[index];
  if (request->num_nodes == 0) {
    return TREEATTN_OK;
  }
  const treeattn_verify_method method = ta_verify_effective_method(request);
  if (method == TREEATTN_VERIFY_GREEDY) {
    return ta_verify_walk_greedy(&problem, output, &one->error);
  }
  if (method == TREEATTN_VERIFY_TYPICAL_LOSSY) {
    return ta_verify_walk_typical(&problem, &one->nodes, &one->state.target, output, &one->error);
  }
  ta_uniform_source source = {&problem, 0};
  const ta_chooser chooser = ta_uniform_chooser(&source);
  return ta_verify_walk(&problem, ta_verify_rule_of(method), &chooser, &one->state, output, &one->error);
}

/* Worker w takes requests w, w + num_workers, ... in order, so that the first failure overall is found by somebody. */
static void verify_task(void *arg, size_t index) {
  const batch *work = arg;
  worker *one = &work->workers[index];
  fenv_t environment;
  (void)fegetenv(&environment);
  (void)fesetenv(FE_DFL_ENV);
  for (int64_t r = (int64_t)index; r < work->args->num_requests && one->failed_request < 0; r += work->num_workers) {
    if (verify_one(work, one, r) != TREEATTN_OK) {
      one->failed_request = r;
    }
  }
  (void)fesetenv(&environment);
}

static void copy_results(const batch *work) {
  for (int64_t index = 0; index < work->args->num_requests; index++) {
    const ta_verify_output *output = &work->outputs[index];
    treeattn_verify_result *result = ta_verify_result_at(work->args, index);
    result->num_path = output->num_path;
    result->num_decisions = output->num_decisions;
    if (output->num_path > 0) {
      memcpy(result->path, output->path, (size_t)output->num_path * sizeof *output->path);
      memcpy(result->tokens, output->tokens, (size_t)output->num_path * sizeof *output->tokens);
    }
    if (output->num_decisions > 0) {
      memcpy(result->decisions, output->decisions, (size_t)output->num_decisions * sizeof *output->decisions);
    }
  }
}

treeattn_status treeattn_verify(const treeattn_verify_args *args, treeattn_error *error) {
  size_t needed = 0;
  treeattn_status status = ta_verify_check_args(args, error);
  if (status == TREEATTN_OK) {
    status = scratch_bytes_of(args, &needed, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  if (args->scratch == NULL || args->scratch_bytes < needed) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "scratch_bytes is %zu: this batch needs %zu",
                   args->scratch == NULL ? (size_t)0 : args->scratch_bytes, needed);
  }
  const size_t offset = (PIECE_ALIGNMENT - (uintptr_t)args->scratch % PIECE_ALIGNMENT) % PIECE_ALIGNMENT;
  batch work = {args, 0, NULL, NULL};
  arena memory = {(unsigned char *)args->scratch + offset, 0, false};
  lay_out(&work, &memory);
  if (args->executor.parallel_for != NULL) {
    const int failure =
        args->executor.parallel_for(args->executor.context, verify_task, &work, (size_t)work.num_workers);
    if (failure != 0) {
      return ta_fail(error, TREEATTN_ERROR_BACKEND, "the executor returned %d", failure);
    }
  } else {
    for (int64_t w = 0; w < work.num_workers; w++) {
      verify_task(&work, (size_t)w);
    }
  }
  const worker *first = NULL;
  for (int64_t w = 0; w < work.num_workers; w++) {
    const worker *one = &work.workers[w];
    if (one->failed_request >= 0 && (first == NULL || one->failed_request < first->failed_request)) {
      first = one;
    }
  }
  if (first != NULL) {
    return ta_fail(error, first->error.status, "%s", first->error.message);
  }
  copy_results(&work);
  return TREEATTN_OK;
}
