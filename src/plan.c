/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments to a checked plan, in memory of the caller or of its own. Pure. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "cpu/kernels.h"

#define FAIL_ARGUMENT(...) ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

/* Goes through the requests in order, dry or filling; `requests` may be NULL when dry. */
static treeattn_status plan_requests(const treeattn_plan_args *args, ta_arena *arena, ta_request *requests,
                                     int64_t *num_rows, treeattn_error *error) {
  *num_rows = 0;
  for (int64_t b = 0; b < args->num_requests; ++b) {
    ta_request record;
    const treeattn_status status = ta_plan_request(args, b, &args->requests[b], arena, &record, error);
    if (status != TREEATTN_OK) {
      return status;
    }
    record.first_row = *num_rows;
    if (!ta_add_i64(*num_rows, record.num_rows, num_rows)) {
      return ta_plan_fail_overflow("query rows of the batch", error);
    }
    if (requests != NULL) {
      requests[b] = record;
    }
  }
  return TREEATTN_OK;
}

treeattn_status treeattn_plan_bytes(const treeattn_plan_args *args, size_t *plan_bytes, treeattn_error *error) {
  if (plan_bytes == NULL) {
    return FAIL_ARGUMENT("plan_bytes is NULL");
  }
  treeattn_status status = ta_plan_check_args(args, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  ta_arena arena = {NULL, TA_ARENA_ALIGNMENT, false}; /* the caller's memory may need aligning */
  (void)ta_arena_take(&arena, 1, sizeof(treeattn_plan));
  (void)ta_arena_take(&arena, args->num_requests, sizeof(ta_request));
  int64_t num_rows = 0;
  status = plan_requests(args, &arena, NULL, &num_rows, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (arena.overflow) {
    return ta_plan_fail_overflow("requests", error);
  }
  *plan_bytes = arena.used;
  return TREEATTN_OK;
}

static treeattn_status fill_plan(const treeattn_plan_args *args, ta_arena *arena, treeattn_plan *plan,
                                 treeattn_error *error) {
  memset(plan, 0, sizeof *plan);
  plan->num_requests = args->num_requests;
  plan->requests = ta_arena_take(arena, args->num_requests, sizeof(ta_request));
  treeattn_status status = plan_requests(args, arena, plan->requests, &plan->num_rows, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  plan->num_heads = args->num_heads;
  plan->num_kv_heads = args->num_kv_heads;
  plan->group = args->num_heads / args->num_kv_heads;
  plan->head_dim = args->head_dim;
  plan->head_dim_v = args->head_dim_v == 0 ? args->head_dim : args->head_dim_v;
  plan->q_dtype = (int)args->q_dtype == 0 ? TREEATTN_F32 : args->q_dtype;
  plan->out_dtype = (int)args->out_dtype == 0 ? TREEATTN_F32 : args->out_dtype;
  plan->kv_dtype = args->kv_dtype;
  plan->backend = args->backend;
  plan->scale = args->scale;
  plan->softcap = args->softcap;
  plan->window = args->window;
  plan->mode = args->mode;
  plan->isa = args->isa == TREEATTN_ISA_AUTO ? treeattn_isa_detect() : args->isa;
  plan->kernels = ta_kernels_for(plan->isa);
  plan->num_workers = ta_max_i64(args->num_workers, 1);
  status = ta_plan_lay_out_rows(args, plan, error);
  if (status == TREEATTN_OK) {
    status = ta_plan_lay_out_cache(args, plan, error);
  }
  return status == TREEATTN_OK ? ta_plan_cut_work(plan, error) : status;
}

treeattn_status treeattn_plan_init(const treeattn_plan_args *args, void *memory, size_t memory_bytes,
                                   treeattn_plan **plan, treeattn_error *error) {
  size_t need = 0;
  if (plan == NULL) {
    return FAIL_ARGUMENT("plan is NULL");
  }
  *plan = NULL;
  treeattn_status status = treeattn_plan_bytes(args, &need, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (memory == NULL) {
    return FAIL_ARGUMENT("memory is NULL: the plan needs %zu bytes", need);
  }
  if (memory_bytes < need) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "memory_bytes is %zu: the plan needs %zu", memory_bytes,
                   need);
  }
  const size_t misaligned = (size_t)((uintptr_t)memory % TA_ARENA_ALIGNMENT);
  ta_arena arena = {(unsigned char *)memory + (misaligned == 0 ? 0 : TA_ARENA_ALIGNMENT - misaligned), 0, false};
  treeattn_plan *made = ta_arena_take(&arena, 1, sizeof(treeattn_plan));
  status = fill_plan(args, &arena, made, error);
  if (status == TREEATTN_OK) {
    *plan = made;
  }
  return status;
}

treeattn_status treeattn_plan_create(const treeattn_plan_args *args, treeattn_plan **plan, treeattn_error *error) {
  size_t need = 0;
  if (plan == NULL) {
    return FAIL_ARGUMENT("plan is NULL");
  }
  *plan = NULL;
  treeattn_status status = treeattn_plan_bytes(args, &need, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  /* The pointer that malloc gave is kept in front of the plan, which is aligned further than malloc aligns. */
  const size_t front = TA_ARENA_ALIGNMENT;
  unsigned char *memory = need > SIZE_MAX - front ? NULL : malloc(front + need);
  if (memory == NULL) {
    return ta_fail(error, TREEATTN_ERROR_OUT_OF_MEMORY, "plan: %zu bytes could not be allocated", need);
  }
  status = treeattn_plan_init(args, memory + front, need, plan, error);
  if (status != TREEATTN_OK) {
    free(memory);
    return status;
  }
  memcpy((unsigned char *)*plan - sizeof memory, &memory, sizeof memory);
  (*plan)->owned = true;
  return TREEATTN_OK;
}

void treeattn_plan_destroy(treeattn_plan *plan) {
  if (plan != NULL && plan->owned) {
    unsigned char *memory = NULL;
    memcpy(&memory, (unsigned char *)plan - sizeof memory, sizeof memory);
    free(memory);
  }
}

treeattn_status treeattn_plan_get_info(const treeattn_plan *plan, treeattn_plan_info *info, treeattn_error *error) {
  if (plan == NULL || info == NULL) {
    return FAIL_ARGUMENT("%s is NULL", plan == NULL ? "plan" : "info");
  }
  if (info->struct_size != sizeof(treeattn_plan_info)) {
    return FAIL_ARGUMENT("struct_size is %zu: must be sizeof(treeattn_plan_info), %zu; use TREEATTN_PLAN_INFO_INIT",
                         info->struct_size, sizeof(treeattn_plan_info));
  }
  info->scratch_bytes = plan->scratch_bytes;
  info->worker_bytes = plan->worker_bytes;
  info->partial_bytes = plan->partial_bytes;
  info->num_query_rows = plan->num_rows;
  info->num_tasks[0] = plan->num_tasks[0];
  info->num_tasks[1] = plan->num_tasks[1];
  info->num_workers = plan->num_workers;
  info->isa = plan->isa;
  info->mode = plan->mode;
  info->q_bytes = plan->q_bytes;
  info->k_bytes = plan->k_bytes;
  info->v_bytes = plan->v_bytes;
  info->out_bytes = plan->out_bytes;
  info->lse_bytes = plan->lse_bytes;
  return TREEATTN_OK;
}

treeattn_status treeattn_plan_get_positions(const treeattn_plan *plan, int32_t *positions, int64_t capacity,
                                            treeattn_error *error) {
  if (plan == NULL) {
    return FAIL_ARGUMENT("plan is NULL");
  }
  if (positions == NULL && plan->num_rows > 0) {
    return FAIL_ARGUMENT("positions is NULL: the plan has %lld query rows", (long long)plan->num_rows);
  }
  if (capacity < plan->num_rows) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "capacity is %lld: the plan has %lld query rows",
                   (long long)capacity, (long long)plan->num_rows);
  }
  for (int64_t b = 0; b < plan->num_requests; ++b) {
    const ta_request *request = &plan->requests[b];
    for (int64_t r = 0; r < request->num_rows; ++r) {
      positions[request->first_row + r] = request->row_position[r];
    }
  }
  return TREEATTN_OK;
}
