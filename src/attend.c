/* SPDX-License-Identifier: Apache-2.0 */
/* The public run: checks a layer's buffers against the plan and hands its tasks to the back end. */
#include <fenv.h>
#include <math.h>
#include <stdatomic.h>

#include "cpu/backend.h"
#include "mask.h"
#include "plan.h"

#define FAIL_ARGUMENT(...) ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

/* The scratch of a run: the workers' parts, then the partial results, all aligned. */
static unsigned char *scratch_base(const treeattn_run_args *run) {
  const size_t misaligned = (size_t)((uintptr_t)run->scratch % TA_ARENA_ALIGNMENT);
  return (unsigned char *)run->scratch + (misaligned == 0 ? 0 : TA_ARENA_ALIGNMENT - misaligned);
}

static treeattn_status check_buffer(const char *name, const void *data, size_t bytes, size_t need,
                                    treeattn_error *error) {
  if (need > 0 && data == NULL) {
    return FAIL_ARGUMENT("%s is NULL: %zu bytes are needed", name, need);
  }
  if (bytes < need) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "%s_bytes is %zu: the plan needs %zu", name, bytes, need);
  }
  return TREEATTN_OK;
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
  const uintptr_t a_start = (uintptr_t)a;
  const uintptr_t b_start = (uintptr_t)b;
  return a != NULL && b != NULL && a_bytes > 0 && b_bytes > 0 && a_start < b_start + b_bytes &&
         b_start < a_start + a_bytes;
}

treeattn_status treeattn_attend_check(const treeattn_plan *plan, const treeattn_run_args *run, treeattn_error *error) {
  if (plan == NULL || run == NULL) {
    return FAIL_ARGUMENT("%s is NULL", plan == NULL ? "plan" : "run");
  }
  if (run->struct_size != sizeof(treeattn_run_args)) {
    return FAIL_ARGUMENT("struct_size is %zu: must be sizeof(treeattn_run_args), %zu; use TREEATTN_RUN_ARGS_INIT",
                         run->struct_size, sizeof(treeattn_run_args));
  }
  if (plan->backend != TREEATTN_BACKEND_CPU) {
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "backend is %d: this plan is not for treeattn_attend",
                   (int)plan->backend);
  }
  const struct {
    const char *name;
    const void *data;
    size_t bytes, need;
  } buffers[] = {
      {"q", run->q, run->q_bytes, plan->q_bytes},
      {"k", run->k, run->k_bytes, plan->k_bytes},
      {"v", run->v, run->v_bytes, plan->v_bytes},
      {"out", run->out, run->out_bytes, plan->out_bytes},
      {"lse", run->lse, run->lse_bytes, run->lse == NULL ? 0 : plan->lse_bytes},
      {"sinks", run->sinks, run->sinks_bytes, run->sinks == NULL ? 0 : (size_t)plan->num_heads * sizeof(float)},
      {"scratch", run->scratch, run->scratch_bytes, plan->scratch_bytes}};
  enum { OUT = 3, NUM_BUFFERS = sizeof buffers / sizeof *buffers };
  for (size_t n = 0; n < NUM_BUFFERS; ++n) {
    const treeattn_status status =
        check_buffer(buffers[n].name, buffers[n].data, buffers[n].bytes, buffers[n].need, error);
    if (status != TREEATTN_OK) {
      return status;
    }
  }
  const size_t written[3] = {OUT, OUT + 1, NUM_BUFFERS - 1};
  for (size_t w = 0; w < 3; ++w) {
    for (size_t n = 0; n < NUM_BUFFERS; ++n) {
      if (n != written[w] &&
          overlap(buffers[n].data, buffers[n].need, buffers[written[w]].data, buffers[written[w]].need)) {
        return FAIL_ARGUMENT("%s and %s overlap", buffers[written[w]].name, buffers[n].name);
      }
    }
  }
  const struct {
    const char *name;
    const void *data;
    size_t alignment;
  } aligned[] = {{"q", run->q, sizeof(float)},
                 {"k", run->k, treeattn_dtype_bytes(plan->kv_dtype)},
                 {"v", run->v, treeattn_dtype_bytes(plan->kv_dtype)},
                 {"out", run->out, sizeof(float)},
                 {"lse", run->lse, sizeof(float)},
                 {"sinks", run->sinks, sizeof(float)}};
  for (size_t n = 0; n < sizeof aligned / sizeof *aligned; ++n) {
    if ((uintptr_t)aligned[n].data % aligned[n].alignment != 0) {
      return FAIL_ARGUMENT("%s is %p: must be aligned to its elements (%zu bytes)", aligned[n].name, aligned[n].data,
                           aligned[n].alignment);
    }
  }
  if (run->sinks != NULL) {
    for (int64_t h = 0; h < plan->num_heads; ++h) {
      if (!(run->sinks[h] <= TA_LARGEST_LOGIT) || (run->sinks[h] < -TA_LARGEST_LOGIT && run->sinks[h] != -INFINITY)) {
        return ta_fail(error, TREEATTN_ERROR_INVALID_VALUE,
                       "sinks[%lld] is %g: must be at most 2^127 in magnitude, or -infinity", (long long)h,
                       (double)run->sinks[h]);
      }
    }
  }
  return TREEATTN_OK;
}

/* Runs one task in the floating-point environment that the arithmetic is specified in. */
static void run_task(const treeattn_plan *plan, const treeattn_run_args *run, int stage, int64_t index,
                     int64_t worker) {
  ta_task task;
  if (!ta_plan_task(plan, stage, index, &task)) {
    return;
  }
  unsigned char *base = scratch_base(run);
  void *memory = base + (size_t)worker * plan->worker_bytes;
  float *partial = (float *)(void *)(base + (size_t)plan->num_workers * plan->worker_bytes);
  if (stage == 1) {
    ta_combine(plan, run, &task, memory, partial);
  } else if (plan->kernels == NULL) {
    ta_scalar_attend(plan, run, &task, memory, partial);
  } else {
    ta_driver_attend(plan, run, &task, memory, partial);
  }
}

void treeattn_attend_task(const treeattn_plan *plan, const treeattn_run_args *run, int stage, int64_t task,
                          int64_t worker) {
  if (worker < 0 || worker >= plan->num_workers || plan->backend != TREEATTN_BACKEND_CPU) {
    return;
  }
  fenv_t environment;
  (void)fegetenv(&environment);
  (void)fesetenv(FE_DFL_ENV);
  run_task(plan, run, stage, task, worker);
  (void)fesetenv(&environment);
}

/* Workers take the next task as they become free; which worker takes which does not matter to the result. */
typedef struct job {
  const treeattn_plan *plan;
  const treeattn_run_args *run;
  int stage;
  _Atomic int64_t next;
} job;

static void work(void *arg, size_t worker) {
  job *shared = arg;
  fenv_t environment;
  (void)fegetenv(&environment);
  (void)fesetenv(FE_DFL_ENV);
  for (;;) {
    const int64_t task = atomic_fetch_add_explicit(&shared->next, 1, memory_order_relaxed);
    if (task >= shared->plan->num_tasks[shared->stage]) {
      break;
    }
    run_task(shared->plan, shared->run, shared->stage, task, (int64_t)worker);
  }
  (void)fesetenv(&environment);
}

treeattn_status treeattn_attend(const treeattn_plan *plan, const treeattn_run_args *run, treeattn_error *error) {
  const treeattn_status status = treeattn_attend_check(plan, run, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  for (int stage = 0; stage < 2; ++stage) {
    const int64_t workers = ta_min_i64(plan->num_workers, plan->num_tasks[stage]);
    job shared = {plan, run, stage, 0};
    if (workers > 1 && run->executor.parallel_for != NULL) {
      const int failed = run->executor.parallel_for(run->executor.context, work, &shared, (size_t)workers);
      if (failed != 0 && stage == 0) {
        return ta_fail(error, TREEATTN_ERROR_BACKEND, "executor.parallel_for returned %d", failed);
      }
      if (failed !=
          0) { /* the first stage has written results: finish what is left here rather than leave half of them */
        work(&shared, 0);
      }
    } else if (workers > 0) {
      work(&shared, 0);
    }
  }
  return TREEATTN_OK;
}
