/* SPDX-License-Identifier: Apache-2.0 */
/* A commit plan: made once per step for a whole batch, in the caller's memory. */
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "commit_plan.h"

/* Where the parts of a plan lie in its memory, as offsets from an aligned start. */
typedef struct layout {
  size_t moves, uses, reader, done, total;
} layout;

enum { ALIGNMENT = alignof(max_align_t) };

static bool take(size_t *total, int64_t count, size_t element_bytes, size_t *offset) {
  size_t bytes = 0;
  size_t end = 0;
  if (!ta_mul_size((size_t)count, element_bytes, &bytes) || !ta_add_size(*total, bytes, &end) ||
      !ta_add_size(end, ALIGNMENT - 1, &end)) {
    return false;
  }
  *offset = *total;
  *total = end / ALIGNMENT * ALIGNMENT;
  return true;
}

static int64_t count_uses(const treeattn_commit_args *args, const treeattn_commit_request *request) {
  if (request->num_nodes == 0) {
    return 0;
  }
  if (args->page_size == 0) {
    return 1;
  }
  return (request->prefix_len + request->num_nodes - 1) / args->page_size - request->prefix_len / args->page_size + 1;
}

static treeattn_status measure(const treeattn_commit_args *args, layout *parts, treeattn_error *error) {
  int64_t num_moves = 0;
  int64_t num_uses = 0;
  int64_t max_nodes = 0;
  int64_t max_path = 0;
  for (int64_t r = 0; r < args->num_requests; r++) {
    treeattn_commit_request request;
    treeattn_status status = ta_commit_get_request(args, r, &request, error);
    if (status == TREEATTN_OK) {
      status = ta_commit_check_request(args, r, &request, error);
    }
    if (status != TREEATTN_OK) {
      return status;
    }
    /* A cycle has two rows at least and one move more than rows. The sums stay small: 2^20 nodes a request. */
    num_moves += request.path_len + request.path_len / 2;
    num_uses += count_uses(args, &request);
    max_nodes = ta_max_i64(max_nodes, request.num_nodes);
    max_path = ta_max_i64(max_path, request.path_len);
  }
  size_t start = 0;
  parts->total = 0;
  if (!take(&parts->total, 1, sizeof(treeattn_commit_plan), &start) ||
      !take(&parts->total, num_moves, sizeof(treeattn_commit_move), &parts->moves) ||
      !take(&parts->total, num_uses, sizeof(ta_commit_use), &parts->uses) ||
      !take(&parts->total, max_nodes, sizeof(int32_t), &parts->reader) ||
      !take(&parts->total, max_path, sizeof(uint8_t), &parts->done) || parts->total > SIZE_MAX - ALIGNMENT) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "num_requests is %lld: the plan's size overflows",
                   (long long)args->num_requests);
  }
  return TREEATTN_OK;
}

treeattn_status treeattn_commit_plan_bytes(const treeattn_commit_args *args, size_t *plan_bytes,
                                           treeattn_error *error) {
  treeattn_commit_args checked;
  layout parts;
  treeattn_status status = ta_commit_check_args(&checked, args, error);
  if (status == TREEATTN_OK && plan_bytes == NULL) {
    status = ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "plan_bytes is NULL");
  }
  if (status == TREEATTN_OK) {
    status = measure(&checked, &parts, error);
  }
  if (status == TREEATTN_OK) {
    *plan_bytes = parts.total + ALIGNMENT - 1;
  }
  return status;
}

static bool moves_something(const treeattn_commit_request *request) {
  for (int64_t i = 0; i < request->path_len; i++) {
    if (request->path[i] != i) {
      return true;
    }
  }
  return false;
}

/* The blocks that hold a request's nodes. Checks the pages on the way. */
static treeattn_status add_uses(const treeattn_commit_args *args, int64_t r, const treeattn_commit_request *request,
                                ta_commit_use *uses, int64_t *num_uses, treeattn_error *error) {
  const bool moves = moves_something(request);
  if (args->page_size == 0) {
    uses[(*num_uses)++] = (ta_commit_use){request->cache_index, r, moves};
    return TREEATTN_OK;
  }
  const int64_t first = request->prefix_len / args->page_size;
  for (int64_t entry = first; entry < first + count_uses(args, request); entry++) {
    const int64_t page = request->page_table[entry];
    if (page < 0 || page >= args->num_pages) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                     "requests[%lld].page_table[%lld] is %lld: it must be at least 0 and less than num_pages (%lld)",
                     (long long)r, (long long)entry, (long long)page, (long long)args->num_pages);
    }
    uses[(*num_uses)++] = (ta_commit_use){page, r, moves};
  }
  return TREEATTN_OK;
}

static treeattn_status fill(const treeattn_commit_args *args, treeattn_commit_plan *plan, ta_commit_use *uses,
                            const ta_commit_work *work, treeattn_error *error) {
  int64_t num_uses = 0;
  for (int64_t r = 0; r < args->num_requests; r++) {
    treeattn_commit_request request;
    treeattn_status status = ta_commit_get_request(args, r, &request, error);
    if (status != TREEATTN_OK) {
      return status;
    }
    if (request.num_nodes == 0) {
      continue;
    }
    status = ta_commit_check_path(request.path, request.path_len, request.num_nodes, work->reader, r, error);
    if (status == TREEATTN_OK) {
      status = add_uses(args, r, &request, uses, &num_uses, error);
    }
    if (status != TREEATTN_OK) {
      return status;
    }
    ta_commit_order(plan, &request, work);
  }
  return ta_commit_check_overlap(uses, num_uses, plan->paged, error);
}

treeattn_status treeattn_commit_plan_init(const treeattn_commit_args *args, void *memory, size_t memory_bytes,
                                          treeattn_commit_plan **plan, treeattn_error *error) {
  if (plan == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "plan is NULL");
  }
  *plan = NULL;
  treeattn_commit_args checked;
  layout parts;
  treeattn_status status = ta_commit_check_args(&checked, args, error);
  if (status == TREEATTN_OK) {
    status = measure(&checked, &parts, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  if (memory == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "memory is NULL");
  }
  unsigned char *base = memory;
  const size_t skip = (ALIGNMENT - (uintptr_t)base % ALIGNMENT) % ALIGNMENT;
  if (memory_bytes < skip || memory_bytes - skip < parts.total) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "memory_bytes is %zu: the plan needs %zu", memory_bytes,
                   parts.total + ALIGNMENT - 1);
  }
  base += skip;
  treeattn_commit_plan *made = (treeattn_commit_plan *)(void *)base;
  memset(made, 0, sizeof *made);
  made->paged = checked.page_size > 0;
  made->num_blocks = made->paged ? checked.num_pages : checked.num_sequences;
  made->rows_per_block = made->paged ? checked.page_size : checked.kv_capacity;
  made->moves = (treeattn_commit_move *)(void *)(base + parts.moves);
  const ta_commit_work work = {(int32_t *)(void *)(base + parts.reader), base + parts.done};
  status = fill(&checked, made, (ta_commit_use *)(void *)(base + parts.uses), &work, error);
  if (status == TREEATTN_OK) {
    *plan = made;
  }
  return status;
}

treeattn_status treeattn_commit_plan_create(const treeattn_commit_args *args, treeattn_commit_plan **plan,
                                            treeattn_error *error) {
  if (plan == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "plan is NULL");
  }
  *plan = NULL;
  size_t plan_bytes = 0;
  treeattn_status status = treeattn_commit_plan_bytes(args, &plan_bytes, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  void *memory = malloc(plan_bytes);
  if (memory == NULL) {
    return ta_fail(error, TREEATTN_ERROR_OUT_OF_MEMORY, "malloc of %zu bytes for the plan failed", plan_bytes);
  }
  status = treeattn_commit_plan_init(args, memory, plan_bytes, plan, error);
  if (status != TREEATTN_OK) {
    free(memory);
    return status;
  }
  (*plan)->owned = memory;
  return TREEATTN_OK;
}

void treeattn_commit_plan_destroy(treeattn_commit_plan *plan) {
  if (plan != NULL) {
    free(plan->owned);
  }
}

treeattn_status treeattn_commit_plan_get_info(const treeattn_commit_plan *plan, treeattn_commit_plan_info *info,
                                              treeattn_error *error) {
  if (plan == NULL || info == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is NULL", plan == NULL ? "plan" : "info");
  }
  if (info->struct_size < sizeof *info) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "info.struct_size is %zu: it must be at least %zu",
                   info->struct_size, sizeof *info);
  }
  info->num_moves = plan->num_moves;
  info->num_rows = plan->num_rows;
  info->num_cycles = plan->num_cycles;
  return TREEATTN_OK;
}

treeattn_status treeattn_commit_plan_get_moves(const treeattn_commit_plan *plan, treeattn_commit_move *moves,
                                               int64_t capacity, treeattn_error *error) {
  if (plan == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "plan is NULL");
  }
  if (capacity < plan->num_moves) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "capacity is %lld: the plan has %lld moves",
                   (long long)capacity, (long long)plan->num_moves);
  }
  if (plan->num_moves > 0 && moves == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "moves is NULL: the plan has %lld",
                   (long long)plan->num_moves);
  }
  if (plan->num_moves > 0) {
    memcpy(moves, plan->moves, (size_t)plan->num_moves * sizeof *moves);
  }
  return TREEATTN_OK;
}
