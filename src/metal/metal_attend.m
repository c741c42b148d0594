/* SPDX-License-Identifier: Apache-2.0 */
/* One run of a plan: its buffers checked, its two passes encoded. */
#include <math.h>
#include <string.h>

#import "metal.h"

#include "../mask.h"

#define FAIL_ARGUMENT(...) ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

/* Metal takes this many bytes in a command; longer arrays would need a buffer that outlives the call. */
enum { MOST_BYTES_OF_COMMAND = 4096 };

typedef struct checked_buffer {
  const char *name;
  treeattn_metal_buffer at;
  size_t need, alignment;
  bool written;
} checked_buffer;

enum { Q, K, V, OUT, LSE, PLAN, SCRATCH, NUM_BUFFERS };

treeattn_status treeattn_metal_plan_get_info(const treeattn_plan *plan, treeattn_metal_plan_info *info,
                                             treeattn_error *error) {
  if (plan == NULL || info == NULL) {
    return FAIL_ARGUMENT("%s is NULL", plan == NULL ? "plan" : "info");
  }
  if (info->struct_size != sizeof(treeattn_metal_plan_info)) {
    return FAIL_ARGUMENT(
        "struct_size is %zu: must be sizeof(treeattn_metal_plan_info), %zu; use TREEATTN_METAL_PLAN_INFO_INIT",
        info->struct_size, sizeof(treeattn_metal_plan_info));
  }
  ta_metal_counts counts;
  ta_metal_plan header;
  const treeattn_status status = ta_metal_measure(plan, &counts, &header, error);
  if (status == TREEATTN_OK) {
    info->plan_bytes = (size_t)header.bytes;
    info->scratch_bytes = (size_t)header.scratch_bytes;
    info->num_threadgroups[0] = (int64_t)header.num_tiles * header.num_kv_heads * header.num_chunks;
    info->num_threadgroups[1] = (int64_t)header.num_rows * header.num_heads;
  }
  return status;
}

treeattn_status treeattn_metal_plan_write(const treeattn_plan *plan, void *memory, size_t memory_bytes,
                                          treeattn_error *error) {
  if (plan == NULL) {
    return FAIL_ARGUMENT("plan is NULL");
  }
  ta_metal_counts counts;
  ta_metal_plan header;
  const treeattn_status status = ta_metal_measure(plan, &counts, &header, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (memory == NULL) {
    return FAIL_ARGUMENT("memory is NULL: the device part needs %lld bytes", (long long)header.bytes);
  }
  if ((uintptr_t)memory % 16 != 0) {
    return FAIL_ARGUMENT("memory is %p: must be aligned to 16 bytes", memory);
  }
  if (memory_bytes < (size_t)header.bytes) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "memory_bytes is %zu: the device part needs %lld",
                   memory_bytes, (long long)header.bytes);
  }
  return ta_metal_flatten(plan, &counts, memory, error);
}

static size_t bytes_from_offset(treeattn_metal_buffer at) {
  const size_t length = [(id<MTLBuffer>)at.buffer length];
  return at.offset > length ? 0 : length - at.offset;
}

static treeattn_status check_buffer(const checked_buffer *b, treeattn_error *error) {
  if (b->at.buffer == NULL) {
    return b->need == 0 ? TREEATTN_OK : FAIL_ARGUMENT("%s.buffer is NULL: %zu bytes are needed", b->name, b->need);
  }
  if (b->at.offset % b->alignment != 0) {
    return FAIL_ARGUMENT("%s.offset is %zu: must be a multiple of %zu", b->name, b->at.offset, b->alignment);
  }
  const size_t have = bytes_from_offset(b->at);
  if (have < b->need) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "%s.buffer has %zu bytes from offset %zu on: %zu are needed",
                   b->name, have, b->at.offset, b->need);
  }
  return TREEATTN_OK;
}

static bool overlap(const checked_buffer *a, const checked_buffer *b) {
  return a->at.buffer != NULL && a->at.buffer == b->at.buffer && a->need > 0 && b->need > 0 &&
         a->at.offset < b->at.offset + b->need && b->at.offset < a->at.offset + a->need;
}

static treeattn_status check_sinks(const treeattn_plan *plan, const treeattn_metal_run_args *run,
                                   treeattn_error *error) {
  if (run->sinks == NULL) {
    return TREEATTN_OK;
  }
  const size_t need = (size_t)plan->num_heads * sizeof(float);
  if (run->sinks_bytes < need) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "sinks_bytes is %zu: the plan needs %zu", run->sinks_bytes,
                   need);
  }
  if (need > MOST_BYTES_OF_COMMAND) {
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "num_heads is %lld: the Metal back end takes sinks of at most %d",
                   (long long)plan->num_heads, MOST_BYTES_OF_COMMAND / (int)sizeof(float));
  }
  for (int64_t h = 0; h < plan->num_heads; ++h) {
    if (!(run->sinks[h] <= TA_LARGEST_LOGIT) || (run->sinks[h] < -TA_LARGEST_LOGIT && run->sinks[h] != -INFINITY)) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_VALUE,
                     "sinks[%lld] is %g: must be at most 2^127 in magnitude, or -infinity", (long long)h,
                     (double)run->sinks[h]);
    }
  }
  return TREEATTN_OK;
}

/* The header of the device part, which says what it was written for and how much it needs. */
static treeattn_status read_header(const treeattn_plan *plan, treeattn_metal_buffer at, ta_metal_plan *header,
                                   treeattn_error *error) {
  const checked_buffer needed = {"plan", at, sizeof *header, 16, false};
  const treeattn_status status = check_buffer(&needed, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  const unsigned char *contents = [(id<MTLBuffer>)at.buffer contents];
  if (contents == NULL) {
    return FAIL_ARGUMENT("plan.buffer has no contents: its storage must be shared");
  }
  memcpy(header, contents + at.offset, sizeof *header);
  if (header->magic != TA_METAL_MAGIC || header->q_bytes != (int64_t)plan->q_bytes ||
      header->k_bytes != (int64_t)plan->k_bytes || header->v_bytes != (int64_t)plan->v_bytes ||
      header->out_bytes != (int64_t)plan->out_bytes || header->num_rows != plan->num_rows ||
      header->num_heads != plan->num_heads || header->num_kv_heads != plan->num_kv_heads) {
    return FAIL_ARGUMENT("plan.buffer does not hold the device part of this plan at offset %zu", at.offset);
  }
  return TREEATTN_OK;
}

static treeattn_status check_run(const treeattn_plan *plan, const treeattn_metal_run_args *run, ta_metal_plan *header,
                                 treeattn_error *error) {
  treeattn_status status = read_header(plan, run->plan, header, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  const size_t element = treeattn_dtype_bytes(plan->kv_dtype);
  const checked_buffer buffers[NUM_BUFFERS] = {
      [Q] = {"q", run->q, plan->q_bytes, 4, false},
      [K] = {"k", run->k, plan->k_bytes, element, false},
      [V] = {"v", run->v, plan->v_bytes, element, false},
      [OUT] = {"out", run->out, plan->out_bytes, 4, true},
      [LSE] = {"lse", run->lse, run->lse.buffer == NULL ? 0 : plan->lse_bytes, 4, true},
      [PLAN] = {"plan", run->plan, (size_t)header->bytes, 16, false},
      [SCRATCH] = {"scratch", run->scratch, (size_t)header->scratch_bytes, 4, true}};
  for (int n = 0; n < NUM_BUFFERS && status == TREEATTN_OK; ++n) {
    status = check_buffer(&buffers[n], error);
  }
  for (int a = 0; a < NUM_BUFFERS && status == TREEATTN_OK; ++a) {
    for (int b = 0; b < NUM_BUFFERS && status == TREEATTN_OK; ++b) {
      if (a != b && buffers[a].written && overlap(&buffers[a], &buffers[b])) {
        status = FAIL_ARGUMENT("%s and %s overlap", buffers[a].name, buffers[b].name);
      }
    }
  }
  return status == TREEATTN_OK ? check_sinks(plan, run, error) : status;
}

static void set_buffer(id<MTLComputeCommandEncoder> encoder, treeattn_metal_buffer at, NSUInteger index) {
  [encoder setBuffer:(id<MTLBuffer>)at.buffer offset:at.offset atIndex:index];
}

static void encode(id<MTLComputeCommandEncoder> encoder, const treeattn_plan *plan, const treeattn_metal_run_args *run,
                   const ta_metal_plan *header, id<MTLComputePipelineState> attend,
                   id<MTLComputePipelineState> combine) {
  const ta_metal_params params = ta_metal_params_of(plan, run->sinks != NULL, run->lse.buffer != NULL);
  const MTLSize lanes = MTLSizeMake(TA_METAL_LANES, 1, 1);
  [encoder setBytes:&params length:sizeof params atIndex:TA_METAL_PARAMS];
  set_buffer(encoder, run->plan, TA_METAL_PLAN);
  if (header->num_tiles > 0 && header->num_chunks > 0) {
    [encoder setComputePipelineState:attend];
    set_buffer(encoder, run->q, TA_METAL_ATTEND_Q);
    set_buffer(encoder, run->k, TA_METAL_ATTEND_K);
    set_buffer(encoder, run->v, TA_METAL_ATTEND_V);
    set_buffer(encoder, run->scratch, TA_METAL_ATTEND_PARTIAL);
    [encoder setThreadgroupMemoryLength:sizeof(ta_metal_shared) atIndex:0];
    [encoder dispatchThreadgroups:MTLSizeMake((NSUInteger)header->num_tiles, (NSUInteger)header->num_kv_heads,
                                              (NSUInteger)header->num_chunks)
            threadsPerThreadgroup:lanes];
    [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
  }
  [encoder setComputePipelineState:combine];
  set_buffer(encoder, run->scratch.buffer != NULL ? run->scratch : run->plan, TA_METAL_COMBINE_PARTIAL);
  if (run->sinks != NULL) {
    [encoder setBytes:run->sinks length:(NSUInteger)plan->num_heads * sizeof(float) atIndex:TA_METAL_COMBINE_SINKS];
  } else {
    const float none = 0.0f;
    [encoder setBytes:&none length:sizeof none atIndex:TA_METAL_COMBINE_SINKS];
  }
  set_buffer(encoder, run->out, TA_METAL_COMBINE_OUT);
  set_buffer(encoder, run->lse.buffer != NULL ? run->lse : run->out, TA_METAL_COMBINE_LSE);
  [encoder dispatchThreadgroups:MTLSizeMake((NSUInteger)header->num_rows, (NSUInteger)header->num_heads, 1)
          threadsPerThreadgroup:lanes];
}

static treeattn_status attend(treeattn_metal *metal, const treeattn_plan *plan, const treeattn_metal_run_args *run,
                              const ta_metal_plan *header, treeattn_error *error) {
  id<MTLComputePipelineState> passes[2] = {nil, nil};
  treeattn_status status = ta_metal_pipeline(metal, "treeattn_attend", plan, &passes[0], error);
  if (status == TREEATTN_OK) {
    status = ta_metal_pipeline(metal, "treeattn_combine", plan, &passes[1], error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  id<MTLCommandBuffer> own = nil;
  id<MTLCommandBuffer> commands = (id<MTLCommandBuffer>)run->target.command_buffer;
  id<MTLComputeCommandEncoder> encoder = (id<MTLComputeCommandEncoder>)run->target.encoder;
  if (encoder == nil) {
    if (commands == nil) {
      commands = own = [ta_metal_queue(metal) commandBuffer];
    }
    encoder = [commands computeCommandEncoder];
  }
  if (encoder == nil) {
    return ta_fail(error, TREEATTN_ERROR_BACKEND, "the command %s could not be made",
                   commands == nil ? "buffer" : "encoder");
  }
  encode(encoder, plan, run, header, passes[0], passes[1]);
  if (run->target.encoder == NULL) {
    [encoder endEncoding];
  }
  if (own != nil) {
    [own commit];
    [own waitUntilCompleted];
    if ([own status] == MTLCommandBufferStatusError) {
      return ta_fail(error, TREEATTN_ERROR_BACKEND, "the commands failed: %s",
                     [own error] == nil ? "no reason given" : [[[own error] localizedDescription] UTF8String]);
    }
  }
  return TREEATTN_OK;
}

treeattn_status treeattn_metal_attend(treeattn_metal *metal, const treeattn_plan *plan,
                                      const treeattn_metal_run_args *run, treeattn_error *error) {
  if (metal == NULL || plan == NULL || run == NULL) {
    return FAIL_ARGUMENT("%s is NULL", metal == NULL ? "metal" : plan == NULL ? "plan" : "run");
  }
  if (run->struct_size != sizeof(treeattn_metal_run_args)) {
    return FAIL_ARGUMENT(
        "struct_size is %zu: must be sizeof(treeattn_metal_run_args), %zu; use TREEATTN_METAL_RUN_ARGS_INIT",
        run->struct_size, sizeof(treeattn_metal_run_args));
  }
  treeattn_status status = TREEATTN_OK;
  @autoreleasepool {
    ta_metal_plan header;
    status = check_run(plan, run, &header, error);
    if (status == TREEATTN_OK && plan->num_rows > 0) {
      status = attend(metal, plan, run, &header, error);
    }
  }
  return status;
}
