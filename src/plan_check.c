/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of a plan, field by field. */
#include "plan.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define FAIL_ARGUMENT(...) ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

static treeattn_status check_heads(const treeattn_plan_args *args, treeattn_error *error) {
  if (args->num_heads <= 0 || args->num_heads > INT32_MAX) {
    return FAIL_ARGUMENT("num_heads is %lld: must be 1 to %d", (long long)args->num_heads, INT32_MAX);
  }
  if (args->num_kv_heads <= 0 || args->num_kv_heads > args->num_heads) {
    return FAIL_ARGUMENT("num_kv_heads is %lld: must be 1 to num_heads (%lld)", (long long)args->num_kv_heads,
                         (long long)args->num_heads);
  }
  if (args->num_heads % args->num_kv_heads != 0) {
    return FAIL_ARGUMENT("num_heads (%lld) must be divisible by num_kv_heads (%lld)", (long long)args->num_heads,
                         (long long)args->num_kv_heads);
  }
  const int64_t dims[2] = {args->head_dim, args->head_dim_v == 0 ? args->head_dim : args->head_dim_v};
  for (int n = 0; n < 2; ++n) {
    if (dims[n] < 8 || dims[n] > 1024 || dims[n] % 8 != 0) {
      return FAIL_ARGUMENT("%s is %lld: must be 8 to 1024 in steps of 8", n == 0 ? "head_dim" : "head_dim_v",
                           (long long)dims[n]);
    }
  }
  return TREEATTN_OK;
}

static treeattn_status check_numbers(const treeattn_plan_args *args, treeattn_error *error) {
  if (args->backend != TREEATTN_BACKEND_CPU && args->backend != TREEATTN_BACKEND_CUDA) {
    return FAIL_ARGUMENT("backend is %d: not a treeattn_backend", (int)args->backend);
  }
  if (treeattn_dtype_bytes(args->kv_dtype) == 0) {
    return FAIL_ARGUMENT("kv_dtype is %d: must be TREEATTN_F32, TREEATTN_F16 or TREEATTN_BF16", (int)args->kv_dtype);
  }
  const treeattn_dtype float_types[2] = {args->q_dtype, args->out_dtype};
  for (int n = 0; n < 2; ++n) {
    const char *field = n == 0 ? "q_dtype" : "out_dtype";
    if ((int)float_types[n] != 0 && treeattn_dtype_bytes(float_types[n]) == 0) {
      return FAIL_ARGUMENT("%s is %d: not a treeattn_dtype", field, (int)float_types[n]);
    }
    if (args->backend == TREEATTN_BACKEND_CPU && (int)float_types[n] != 0 && float_types[n] != TREEATTN_F32) {
      return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "%s is %s: the CPU back end takes f32", field,
                     treeattn_dtype_name(float_types[n]));
    }
  }
  if (!(fabsf(args->scale) <= FLT_MAX / 2)) { /* also when multiplied by log2(e); false for NaN */
    return FAIL_ARGUMENT("scale is %g: must be finite and at most %g in magnitude", (double)args->scale,
                         (double)(FLT_MAX / 2));
  }
  if (!(args->softcap >= 0.0f && args->softcap <= FLT_MAX / 2)) {
    return FAIL_ARGUMENT("softcap is %g: must be 0 (off) or positive and at most %g", (double)args->softcap,
                         (double)(FLT_MAX / 2));
  }
  if (args->softcap > 0.0f && !(fabs((double)args->scale / (double)args->softcap) <= (double)FLT_MAX)) {
    return FAIL_ARGUMENT("scale (%g) / softcap (%g) overflows", (double)args->scale, (double)args->softcap);
  }
  if (args->window < 0) {
    return FAIL_ARGUMENT("window is %lld: must be 0 (off) or more", (long long)args->window);
  }
  if (args->num_workers < 0 || args->num_workers > 1024) {
    return FAIL_ARGUMENT("num_workers is %lld: must be 0 to 1024", (long long)args->num_workers);
  }
  if (args->mode != TREEATTN_MODE_EXACT && args->mode != TREEATTN_MODE_FAST) {
    return FAIL_ARGUMENT("mode is %d: not a treeattn_mode", (int)args->mode);
  }
  if (args->mode == TREEATTN_MODE_FAST && args->backend == TREEATTN_BACKEND_CPU) {
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED,
                   "mode is TREEATTN_MODE_FAST: the CPU back end has no fast mode in this build");
  }
  if (args->mode == TREEATTN_MODE_FAST && args->kv_dtype == TREEATTN_F32) {
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED,
                   "mode is TREEATTN_MODE_FAST and kv_dtype is f32: matrix units take f16 and bf16 caches");
  }
  if (strcmp(treeattn_isa_name(args->isa), "unknown") == 0) {
    return FAIL_ARGUMENT("isa is %d: not a treeattn_isa", (int)args->isa);
  }
  if (!treeattn_isa_available(args->isa)) {
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "isa is %s: not available on this machine or in this build",
                   treeattn_isa_name(args->isa));
  }
  return TREEATTN_OK;
}

static treeattn_status check_cache_shape(const treeattn_plan_args *args, treeattn_error *error) {
  if (args->num_requests < 0 || args->num_requests > INT32_MAX) {
    return FAIL_ARGUMENT("num_requests is %lld: must be 0 to %d", (long long)args->num_requests, INT32_MAX);
  }
  if (args->num_requests > 0 && args->requests == NULL) {
    return FAIL_ARGUMENT("requests is NULL: num_requests is %lld", (long long)args->num_requests);
  }
  if (args->num_requests > 0 && args->request_bytes != sizeof(treeattn_request)) {
    return FAIL_ARGUMENT("request_bytes is %zu: must be sizeof(treeattn_request), %zu", args->request_bytes,
                         sizeof(treeattn_request));
  }
  const struct {
    const char *name;
    int64_t value;
  } counts[] = {{"page_size", args->page_size},
                {"kv_capacity", args->kv_capacity},
                {"num_sequences", args->num_sequences},
                {"num_pages", args->num_pages},
                {"q_stride_head", args->q_stride_head},
                {"q_stride_row", args->q_stride_row},
                {"out_stride_row", args->out_stride_row},
                {"out_stride_head", args->out_stride_head},
                {"lse_stride_row", args->lse_stride_row},
                {"lse_stride_head", args->lse_stride_head},
                {"k_stride_sequence", args->k_stride_sequence},
                {"k_stride_head", args->k_stride_head},
                {"k_stride_slot", args->k_stride_slot},
                {"v_stride_sequence", args->v_stride_sequence},
                {"v_stride_head", args->v_stride_head},
                {"v_stride_slot", args->v_stride_slot}};
  for (size_t n = 0; n < sizeof counts / sizeof *counts; ++n) {
    if (counts[n].value < 0) {
      return FAIL_ARGUMENT("%s is %lld: must not be negative", counts[n].name, (long long)counts[n].value);
    }
  }
  return TREEATTN_OK;
}

treeattn_status ta_plan_check_args(const treeattn_plan_args *args, treeattn_error *error) {
  if (args == NULL) {
    return FAIL_ARGUMENT("args is NULL");
  }
  if (args->struct_size != sizeof(treeattn_plan_args)) {
    return FAIL_ARGUMENT("struct_size is %zu: must be sizeof(treeattn_plan_args), %zu; use TREEATTN_PLAN_ARGS_INIT",
                         args->struct_size, sizeof(treeattn_plan_args));
  }
  treeattn_status status = check_heads(args, error);
  if (status == TREEATTN_OK) {
    status = check_numbers(args, error);
  }
  return status == TREEATTN_OK ? check_cache_shape(args, error) : status;
}
