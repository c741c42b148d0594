/* SPDX-License-Identifier: Apache-2.0 */
/* The two one-call operators: dense mask, and causal or sliding window. Both check, plan and run. */
#include <stdlib.h>

#include "common.h"
#include "compat.h"
#include "plan.h"

#define FAIL_ARGUMENT(...) ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

typedef struct call {
  const char *name;
  uint32_t num_heads, num_kv_heads, head_dim, kv_seq_len, kv_capacity, q_seq_len;
  const treeattn_tensor *q, *k, *v, *output, *tmp;
} call;

size_t treeattn_tmp_buffer_bytes(uint32_t num_heads, uint32_t head_dim, uint32_t q_seq_len) {
  size_t bytes = 0;
  if (!ta_mul_size(num_heads, q_seq_len, &bytes) || !ta_mul_size(bytes, 32, &bytes) ||
      !ta_mul_size(bytes, (size_t)head_dim + 2, &bytes) || !ta_mul_size(bytes, sizeof(float), &bytes)) {
    return SIZE_MAX;
  }
  return bytes;
}

static treeattn_status check_params(const call *c, treeattn_error *error) {
  if (c->head_dim != 128 && c->head_dim != 256 && c->head_dim != 512) {
    return FAIL_ARGUMENT("%s: head_dim must be 128, 256, or 512, got %u", c->name, (unsigned)c->head_dim);
  }
  if (c->num_heads == 0 || c->num_kv_heads == 0) {
    return FAIL_ARGUMENT("%s: num_heads (%u) and num_kv_heads (%u) must be > 0", c->name, (unsigned)c->num_heads,
                         (unsigned)c->num_kv_heads);
  }
  if (c->num_heads % c->num_kv_heads != 0) {
    return FAIL_ARGUMENT("%s: num_heads (%u) must be divisible by num_kv_heads (%u)", c->name, (unsigned)c->num_heads,
                         (unsigned)c->num_kv_heads);
  }
  if (c->kv_seq_len == 0) {
    return FAIL_ARGUMENT("%s: kv_seq_len must be > 0, got 0", c->name);
  }
  if (c->kv_capacity < c->kv_seq_len) {
    return FAIL_ARGUMENT("%s: kv_capacity (%u) must be >= kv_seq_len (%u)", c->name, (unsigned)c->kv_capacity,
                         (unsigned)c->kv_seq_len);
  }
  if (c->q_seq_len == 0) {
    return FAIL_ARGUMENT("%s: q_seq_len must be > 0, got 0", c->name);
  }
  return TREEATTN_OK;
}

static treeattn_status check_dtype(const call *c, const char *name, const treeattn_tensor *tensor,
                                   treeattn_error *error) {
  if (tensor->dtype != TREEATTN_F32) {
    return FAIL_ARGUMENT("%s: %s dtype must be f32, got %s", c->name, name, treeattn_dtype_name(tensor->dtype));
  }
  return TREEATTN_OK;
}

/* Bytes of a tensor of up to three dimensions against its buffer. */
static treeattn_status check_bytes(const call *c, const char *name, const treeattn_tensor *tensor, uint32_t d0,
                                   uint32_t d1, uint32_t d2, size_t element, treeattn_error *error) {
  size_t need = 0;
  if (!ta_mul_size(d0, d1, &need) || !ta_mul_size(need, d2, &need) || !ta_mul_size(need, element, &need) ||
      need > PTRDIFF_MAX) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "%s: %s size %u * %u * %u * %zu overflows", c->name, name,
                   (unsigned)d0, (unsigned)d1, (unsigned)d2, element);
  }
  if (tensor->bytes < need) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "%s: %s buffer too small: have %zu bytes, need >= %zu",
                   c->name, name, tensor->bytes, need);
  }
  if (tensor->data == NULL) {
    return FAIL_ARGUMENT("%s: %s data is NULL", c->name, name);
  }
  return TREEATTN_OK;
}

static treeattn_status check_tensors(const call *c, const treeattn_tensor *mask, uint32_t mask_stride,
                                     treeattn_error *error) {
  const struct {
    const char *name;
    const treeattn_tensor *tensor;
  } floats[] = {{"q", c->q}, {"tree_mask", mask}, {"output", c->output}, {"tmp", c->tmp}};
  if (c->k == NULL || c->v == NULL) {
    return FAIL_ARGUMENT("%s: %s is NULL", c->name, c->k == NULL ? "k" : "v");
  }
  for (size_t n = 0; n < sizeof floats / sizeof *floats; ++n) {
    if (floats[n].tensor == NULL) {
      return FAIL_ARGUMENT("%s: %s is NULL", c->name, floats[n].name);
    }
    const treeattn_status status = check_dtype(c, floats[n].name, floats[n].tensor, error);
    if (status != TREEATTN_OK) {
      return status;
    }
  }
  if (c->k->dtype != c->v->dtype) {
    return FAIL_ARGUMENT("%s: k dtype (%s) and v dtype (%s) must match", c->name, treeattn_dtype_name(c->k->dtype),
                         treeattn_dtype_name(c->v->dtype));
  }
  const size_t element = treeattn_dtype_bytes(c->k->dtype);
  if (element == 0) {
    return FAIL_ARGUMENT("%s: k/v dtype must be f32, f16 or bf16, got %d", c->name, (int)c->k->dtype);
  }
  treeattn_status status = check_bytes(c, "q", c->q, c->num_heads, c->q_seq_len, c->head_dim, sizeof(float), error);
  if (status == TREEATTN_OK) {
    status = check_bytes(c, "k", c->k, c->num_kv_heads, c->kv_capacity, c->head_dim, element, error);
  }
  if (status == TREEATTN_OK) {
    status = check_bytes(c, "v", c->v, c->num_kv_heads, c->kv_capacity, c->head_dim, element, error);
  }
  if (status == TREEATTN_OK && mask_stride != 0) {
    status = check_bytes(c, "tree_mask", mask, c->q_seq_len, mask_stride, 1, sizeof(float), error);
  }
  if (status == TREEATTN_OK) {
    status = check_bytes(c, "output", c->output, c->q_seq_len, c->num_heads, c->head_dim, sizeof(float), error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  const size_t need = treeattn_tmp_buffer_bytes(c->num_heads, c->head_dim, c->q_seq_len);
  if (c->tmp->bytes < need) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "%s: tmp buffer too small: have %zu bytes, need >= %zu",
                   c->name, c->tmp->bytes, need);
  }
  return c->tmp->data == NULL ? FAIL_ARGUMENT("%s: tmp data is NULL", c->name) : TREEATTN_OK;
}

/* Memory from the caller's tmp while it lasts, then from malloc. */
static void *take(unsigned char **tmp, size_t *left, size_t bytes, void **owned) {
  *owned = NULL;
  if (bytes <= *left) {
    void *memory = *tmp;
    *tmp += bytes;
    *left -= bytes;
    return memory;
  }
  *owned = malloc(bytes);
  return *owned;
}

static treeattn_status plan_and_run(const char *name, const ta_compat_tensors *t, const treeattn_executor *executor,
                                    treeattn_plan_args *args, treeattn_error *error) {
  unsigned char *tmp = t->tmp->data;
  size_t left = t->tmp->bytes;
  size_t plan_bytes = 0;
  void *plan_owned = NULL;
  void *scratch_owned = NULL;
  treeattn_plan *plan = NULL;
  args->num_workers = executor == NULL || executor->parallel_for == NULL ? 1 : 16;
  treeattn_status status = treeattn_plan_bytes(args, &plan_bytes, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  void *memory = take(&tmp, &left, plan_bytes, &plan_owned);
  if (memory == NULL) {
    return ta_fail(error, TREEATTN_ERROR_OUT_OF_MEMORY, "%s: %zu bytes could not be allocated", name, plan_bytes);
  }
  status = treeattn_plan_init(args, memory, plan_bytes, &plan, error);
  if (status == TREEATTN_OK) {
    treeattn_run_args run = TREEATTN_RUN_ARGS_INIT;
    run.q = t->q->data;
    run.q_bytes = t->q->bytes;
    run.k = t->k->data;
    run.k_bytes = t->k->bytes;
    run.v = t->v->data;
    run.v_bytes = t->v->bytes;
    run.out = t->output->data;
    run.out_bytes = t->output->bytes;
    run.scratch_bytes = plan->scratch_bytes;
    run.scratch = take(&tmp, &left, plan->scratch_bytes, &scratch_owned);
    if (executor != NULL) {
      run.executor = *executor;
    }
    status = run.scratch == NULL ? ta_fail(error, TREEATTN_ERROR_OUT_OF_MEMORY, "%s: %zu bytes could not be allocated",
                                           name, plan->scratch_bytes)
                                 : treeattn_attend(plan, &run, error);
  }
  free(scratch_owned);
  free(plan_owned);
  return status;
}

static void fill_args(const call *c, float scale, treeattn_plan_args *args) {
  args->num_requests = 1;
  args->request_bytes = sizeof(treeattn_request);
  args->num_heads = c->num_heads;
  args->num_kv_heads = c->num_kv_heads;
  args->head_dim = c->head_dim;
  args->kv_dtype = c->k->dtype;
  args->kv_capacity = c->kv_capacity;
  args->scale = scale;
}

treeattn_status ta_compat_tree(const treeattn_tree_attention_params *params, const ta_compat_tensors *t,
                               treeattn_request *request, treeattn_plan_args *args, treeattn_error *error) {
  if (params == NULL) {
    return FAIL_ARGUMENT("tree_attention: params is NULL");
  }
  const call c = {"tree_attention",
                  params->num_heads,
                  params->num_kv_heads,
                  params->head_dim,
                  params->kv_seq_len,
                  params->kv_capacity,
                  params->q_seq_len,
                  t->q,
                  t->k,
                  t->v,
                  t->output,
                  t->tmp};
  treeattn_status status = check_params(&c, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (params->mask_stride < params->kv_seq_len) {
    return FAIL_ARGUMENT("tree_attention: mask_stride (%u) must be >= kv_seq_len (%u)", (unsigned)params->mask_stride,
                         (unsigned)params->kv_seq_len);
  }
  status = check_tensors(&c, t->mask, params->mask_stride, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  *request = (treeattn_request)TREEATTN_REQUEST_INIT;
  request->num_nodes = params->q_seq_len;
  request->kv_seq_len = params->kv_seq_len;
  request->mask_kind = TREEATTN_MASK_DENSE_F32;
  request->mask = t->mask->data;
  request->mask_bytes = t->mask->bytes;
  request->mask_stride = params->mask_stride;
  *args = (treeattn_plan_args)TREEATTN_PLAN_ARGS_INIT;
  fill_args(&c, params->scale, args);
  args->requests = request;
  return TREEATTN_OK;
}

treeattn_status ta_compat_flash(const treeattn_flash_attn_vec_params *params, const ta_compat_tensors *t,
                                treeattn_request *request, treeattn_plan_args *args, treeattn_error *error) {
  if (params == NULL) {
    return FAIL_ARGUMENT("flash_attn_vec: params is NULL");
  }
  const call c = {"flash_attn_vec",
                  params->num_heads,
                  params->num_kv_heads,
                  params->head_dim,
                  params->kv_seq_len,
                  params->kv_capacity,
                  params->q_seq_len,
                  t->q,
                  t->k,
                  t->v,
                  t->output,
                  t->tmp};
  treeattn_status status = check_params(&c, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (params->q_seq_len > params->kv_seq_len) {
    return FAIL_ARGUMENT("flash_attn_vec: q_seq_len (%u) must be <= kv_seq_len (%u)", (unsigned)params->q_seq_len,
                         (unsigned)params->kv_seq_len);
  }
  status = check_tensors(&c, t->q, 0, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  *request = (treeattn_request)TREEATTN_REQUEST_INIT;
  request->num_nodes = params->q_seq_len;
  request->kv_seq_len = params->kv_seq_len;
  *args = (treeattn_plan_args)TREEATTN_PLAN_ARGS_INIT;
  fill_args(&c, params->scale, args);
  args->requests = request;
  args->window = params->sliding_window;
  args->softcap = params->softcap;
  return TREEATTN_OK;
}

treeattn_status treeattn_tree_attention(const treeattn_tree_attention_params *params, const treeattn_tensor *q,
                                        const treeattn_tensor *k, const treeattn_tensor *v, const treeattn_tensor *mask,
                                        const treeattn_tensor *output, const treeattn_tensor *tmp,
                                        const treeattn_executor *executor, treeattn_error *error) {
  const ta_compat_tensors tensors = {q, k, v, mask, output, tmp};
  treeattn_request request;
  treeattn_plan_args args;
  const treeattn_status status = ta_compat_tree(params, &tensors, &request, &args, error);
  return status == TREEATTN_OK ? plan_and_run("tree_attention", &tensors, executor, &args, error) : status;
}

treeattn_status treeattn_flash_attn_vec(const treeattn_flash_attn_vec_params *params, const treeattn_tensor *q,
                                        const treeattn_tensor *k, const treeattn_tensor *v,
                                        const treeattn_tensor *output, const treeattn_tensor *tmp,
                                        const treeattn_executor *executor, treeattn_error *error) {
  const ta_compat_tensors tensors = {q, k, v, NULL, output, tmp};
  treeattn_request request;
  treeattn_plan_args args;
  const treeattn_status status = ta_compat_flash(params, &tensors, &request, &args, error);
  return status == TREEATTN_OK ? plan_and_run("flash_attn_vec", &tensors, executor, &args, error) : status;
}
