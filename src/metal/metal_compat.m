/* SPDX-License-Identifier: Apache-2.0 */
/* The two one-call operators on Metal: the checks of the CPU's, then plan and run. */
#import "metal.h"

#include "../compat.h"

typedef struct metal_call {
  treeattn_metal *metal;
  const treeattn_metal_target *target;
  const treeattn_metal_tensor *q, *k, *v, *output, *tmp;
} metal_call;

/* As the checks want it. Only a mask is read through `data`; for the others it says that there is a buffer. */
static const treeattn_tensor *describe(const treeattn_metal_tensor *tensor, bool read, treeattn_tensor *out) {
  if (tensor == NULL) {
    return NULL;
  }
  id<MTLBuffer> buffer = (id<MTLBuffer>)tensor->buffer;
  const size_t length = buffer == nil ? 0 : [buffer length];
  unsigned char *data = read && buffer != nil ? [buffer contents] : tensor->buffer;
  out->bytes = tensor->offset > length ? 0 : length - tensor->offset;
  out->data = read && data != NULL ? data + tensor->offset : data;
  out->dtype = tensor->dtype;
  return out;
}

static treeattn_metal_buffer buffer_of(const treeattn_metal_tensor *tensor) {
  const treeattn_metal_buffer buffer = {tensor->buffer, tensor->offset};
  return buffer;
}

static treeattn_status run_plan(const metal_call *c, const treeattn_plan *plan, size_t tmp_bytes,
                                treeattn_error *error) {
  treeattn_metal_plan_info info = TREEATTN_METAL_PLAN_INFO_INIT;
  treeattn_status status = treeattn_metal_plan_get_info(plan, &info, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  /* A buffer of its own, since commands that were encoded before may still have to read their tmp. */
  id<MTLDevice> device = ta_metal_device(c->metal);
  id<MTLBuffer> device_plan = [device newBufferWithLength:info.plan_bytes options:MTLResourceStorageModeShared];
  id<MTLBuffer> scratch = nil;
  if (info.scratch_bytes > tmp_bytes) {
    scratch = [device newBufferWithLength:info.scratch_bytes options:MTLResourceStorageModePrivate];
  }
  if (device_plan == nil || (scratch == nil && info.scratch_bytes > tmp_bytes)) {
    status = ta_fail(error, TREEATTN_ERROR_OUT_OF_MEMORY, "%zu bytes could not be allocated on the device",
                     device_plan == nil ? info.plan_bytes : info.scratch_bytes);
  } else {
    treeattn_metal_run_args run = TREEATTN_METAL_RUN_ARGS_INIT;
    run.q = buffer_of(c->q);
    run.k = buffer_of(c->k);
    run.v = buffer_of(c->v);
    run.out = buffer_of(c->output);
    run.plan.buffer = device_plan;
    run.scratch = buffer_of(c->tmp);
    if (scratch != nil) {
      run.scratch.buffer = scratch;
      run.scratch.offset = 0;
    }
    if (c->target != NULL) {
      run.target = *c->target;
    }
    status = treeattn_metal_plan_write(plan, [device_plan contents], info.plan_bytes, error);
    if (status == TREEATTN_OK) {
      status = treeattn_metal_attend(c->metal, plan, &run, error);
    }
  }
  [device_plan release];
  [scratch release];
  return status;
}

static treeattn_status plan_and_run(const metal_call *c, treeattn_plan_args *args, size_t tmp_bytes,
                                    treeattn_error *error) {
  /* Leaves are the work of threadgroups while tmp has room for what they leave behind, which is 32 of them. */
  args->num_workers = args->requests->kv_seq_len <= (int64_t)32 * TA_LEAF ? 1024 : 1;
  treeattn_plan *plan = NULL;
  treeattn_status status = treeattn_plan_create(args, &plan, error);
  if (status == TREEATTN_OK) {
    status = run_plan(c, plan, tmp_bytes, error);
  }
  treeattn_plan_destroy(plan);
  return status;
}

treeattn_status treeattn_metal_tree_attention(treeattn_metal *metal, const treeattn_metal_target *target,
                                              const treeattn_tree_attention_params *params,
                                              const treeattn_metal_tensor *q, const treeattn_metal_tensor *k,
                                              const treeattn_metal_tensor *v, const treeattn_metal_tensor *mask,
                                              const treeattn_metal_tensor *output, const treeattn_metal_tensor *tmp,
                                              treeattn_error *error) {
  if (metal == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "tree_attention: metal is NULL");
  }
  treeattn_tensor d[6];
  treeattn_request request;
  treeattn_plan_args args;
  treeattn_status status = TREEATTN_OK;
  @autoreleasepool {
    const ta_compat_tensors tensors = {describe(q, false, &d[0]),      describe(k, false, &d[1]),
                                       describe(v, false, &d[2]),      describe(mask, true, &d[3]),
                                       describe(output, false, &d[4]), describe(tmp, false, &d[5])};
    status = ta_compat_tree(params, &tensors, &request, &args, error);
    if (status == TREEATTN_OK) {
      const metal_call c = {metal, target, q, k, v, output, tmp};
      status = plan_and_run(&c, &args, d[5].bytes, error);
    }
  }
  return status;
}

treeattn_status treeattn_metal_flash_attn_vec(treeattn_metal *metal, const treeattn_metal_target *target,
                                              const treeattn_flash_attn_vec_params *params,
                                              const treeattn_metal_tensor *q, const treeattn_metal_tensor *k,
                                              const treeattn_metal_tensor *v, const treeattn_metal_tensor *output,
                                              const treeattn_metal_tensor *tmp, treeattn_error *error) {
  if (metal == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "flash_attn_vec: metal is NULL");
  }
  treeattn_tensor d[5];
  treeattn_request request;
  treeattn_plan_args args;
  treeattn_status status = TREEATTN_OK;
  @autoreleasepool {
    const ta_compat_tensors tensors = {describe(q, false, &d[0]),      describe(k, false, &d[1]),
                                       describe(v, false, &d[2]),      NULL,
                                       describe(output, false, &d[3]), describe(tmp, false, &d[4])};
    status = ta_compat_flash(params, &tensors, &request, &args, error);
    if (status == TREEATTN_OK) {
      const metal_call c = {metal, target, q, k, v, output, tmp};
      status = plan_and_run(&c, &args, d[4].bytes, error);
    }
  }
  return status;
}
