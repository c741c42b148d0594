/* SPDX-License-Identifier: Apache-2.0 */
/* Tree attention on Metal: the plan of attention.h, run by the GPU, with the bits of the CPU. */
#ifndef TREEATTN_METAL_H
#define TREEATTN_METAL_H

#include <treeattn/attention.h>
#include <treeattn/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * In builds with TREEATTN_METAL. Metal's objects are passed as void *, so that this header needs neither Objective-C
 * nor the framework: an id<MTLDevice> as `device`, an id<MTLBuffer> as `buffer` and so on; with ARC, (__bridge void *)x.
 * Nothing that is passed changes its owner; what commands need later, Metal retains.
 *
 * One step of decoding:
 *
 *     treeattn_plan_create                  attention.h. Set num_workers to the threadgroups that should run at once,
 *                                           8 for each core of the GPU: it decides how a request is cut, never a bit
 *     treeattn_metal_plan_get_info          sizes of the two buffers that the plan needs
 *     treeattn_metal_plan_write             once, into a buffer of shared storage that no running command reads
 *     treeattn_metal_attend                 for every layer
 *
 * Everything that attention.h guarantees holds: the bits are those of the CPU's scalar reference. One thing is Metal's
 * to decide: it allows a GPU to flush subnormal numbers to zero. On such a GPU all of its results agree with each
 * other, but can differ from the CPU's in elements that went through a subnormal number.
 *
 * What is stricter than on the CPU: biases and page tables are read when the device part is written, and not again.
 * Everything that a plan can say is served, all head dimensions and cache types included, except that the query rows
 * of a request times the heads of a group must stay below 2^31, and that with sinks there are at most 1024 heads.
 */

/* A device with the library's pipelines, which are built when they are first needed and kept by name. May be used by
 * several threads at once. */
typedef struct treeattn_metal treeattn_metal;

/* device: id<MTLDevice>, or NULL for the system's default. Compiles the kernels; BACKEND with the compiler's message if
 * that fails, UNSUPPORTED where there is no device or it lacks threadgroup memory. */
TREEATTN_API treeattn_status treeattn_metal_create(void *device, treeattn_metal **metal, treeattn_error *error);
TREEATTN_API void treeattn_metal_destroy(treeattn_metal *metal);

/* A buffer from a byte on. `buffer` is an id<MTLBuffer>; NULL where a buffer is optional: none. */
typedef struct treeattn_metal_buffer {
  void *buffer;
  size_t offset;
} treeattn_metal_buffer;

/* Where commands go: into the caller's encoder, else into an encoder of their own in the caller's command buffer, else,
 * both NULL, into a command buffer of their own that has completed when the call returns. */
typedef struct treeattn_metal_target {
  void *encoder;        /* id<MTLComputeCommandEncoder>; barriers stand between our commands, not around them */
  void *command_buffer; /* id<MTLCommandBuffer>, which must retain what its commands refer to */
} treeattn_metal_target;

typedef struct treeattn_metal_plan_info {
  size_t struct_size;
  size_t plan_bytes;           /* of the device part of the plan */
  size_t scratch_bytes;        /* of the partial results of a run */
  int64_t num_threadgroups[2]; /* of the two passes */
} treeattn_metal_plan_info;

#ifdef __cplusplus
static inline treeattn_metal_plan_info treeattn_metal_plan_info_init(void) {
  treeattn_metal_plan_info value = treeattn_metal_plan_info();
  value.struct_size = sizeof value;
  return value;
}
#define TREEATTN_METAL_PLAN_INFO_INIT treeattn_metal_plan_info_init()
#else
#define TREEATTN_METAL_PLAN_INFO_INIT \
  { .struct_size = sizeof(treeattn_metal_plan_info) }
#endif

TREEATTN_API treeattn_status treeattn_metal_plan_get_info(const treeattn_plan *plan, treeattn_metal_plan_info *info,
                                                          treeattn_error *error);

/* Writes the device part of a plan: plan_bytes from `memory` on, which is aligned to 16 bytes, usually the contents of a
 * buffer. The plan itself must outlive the runs. */
TREEATTN_API treeattn_status treeattn_metal_plan_write(const treeattn_plan *plan, void *memory, size_t memory_bytes,
                                                       treeattn_error *error);

/* One layer. Sizes are what lies in a buffer from its offset on; layouts and strides are the plan's. */
typedef struct treeattn_metal_run_args {
  size_t struct_size;
  treeattn_metal_buffer q;    /* f32; offset in steps of 4 bytes */
  treeattn_metal_buffer k;    /* offset in steps of an element */
  treeattn_metal_buffer v;    /* likewise; may overlap k */
  treeattn_metal_buffer out;  /* f32; offset in steps of 4 bytes; overlaps nothing */
  treeattn_metal_buffer lse;  /* likewise; optional */
  treeattn_metal_buffer plan; /* what treeattn_metal_plan_write wrote, in shared storage; offset in steps of 16 bytes */
  treeattn_metal_buffer scratch; /* offset in steps of 4 bytes; any content; overlaps nothing */
  const float *sinks;            /* [num_heads] in the memory of the caller, read before the call returns; or NULL */
  size_t sinks_bytes;
  treeattn_metal_target target;
} treeattn_metal_run_args;

#ifdef __cplusplus
static inline treeattn_metal_run_args treeattn_metal_run_args_init(void) {
  treeattn_metal_run_args value = treeattn_metal_run_args();
  value.struct_size = sizeof value;
  return value;
}
#define TREEATTN_METAL_RUN_ARGS_INIT treeattn_metal_run_args_init()
#else
#define TREEATTN_METAL_RUN_ARGS_INIT \
  { .struct_size = sizeof(treeattn_metal_run_args) }
#endif

/* Encodes both passes, with a barrier between them. Nothing is encoded on failure. */
TREEATTN_API treeattn_status treeattn_metal_attend(treeattn_metal *metal, const treeattn_plan *plan,
                                                   const treeattn_metal_run_args *run, treeattn_error *error);

/* ---- the two operators in one call, as in attention.h ------------------------------------------------------ */

typedef struct treeattn_metal_tensor {
  void *buffer; /* id<MTLBuffer> */
  size_t offset;
  treeattn_dtype dtype;
} treeattn_metal_tensor;

/*
 * Parameters, shapes, checks and messages are those of treeattn_tree_attention and treeattn_flash_attn_vec; a tensor
 * has the bytes of its buffer from its offset on. They plan, write the device part into a buffer of their own, and
 * encode; tmp (treeattn_tmp_buffer_bytes) is the scratch where it suffices. The mask is read by the calling thread,
 * so its storage is shared and its content complete. Who repeats a mask over layers makes a plan instead.
 */
TREEATTN_API treeattn_status treeattn_metal_tree_attention(
    treeattn_metal *metal, const treeattn_metal_target *target, const treeattn_tree_attention_params *params,
    const treeattn_metal_tensor *q, const treeattn_metal_tensor *k, const treeattn_metal_tensor *v,
    const treeattn_metal_tensor *mask, const treeattn_metal_tensor *output, const treeattn_metal_tensor *tmp,
    treeattn_error *error);
TREEATTN_API treeattn_status treeattn_metal_flash_attn_vec(
    treeattn_metal *metal, const treeattn_metal_target *target, const treeattn_flash_attn_vec_params *params,
    const treeattn_metal_tensor *q, const treeattn_metal_tensor *k, const treeattn_metal_tensor *v,
    const treeattn_metal_tensor *output, const treeattn_metal_tensor *tmp, treeattn_error *error);

#ifdef __cplusplus
}
#endif
#endif
