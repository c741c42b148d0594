/* SPDX-License-Identifier: Apache-2.0 */
/* A Metal device and the pipelines on it. Reference counts are kept by hand. */
#import "metal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct pipeline_record {
  char name[64];
  id<MTLComputePipelineState> pipeline;
  struct pipeline_record *next;
} pipeline_record;

struct treeattn_metal {
  id<MTLDevice> device;
  id<MTLCommandQueue> queue;
  id<MTLLibrary> library;
  pthread_mutex_t lock; /* of pipelines */
  pipeline_record *pipelines;
};

_Static_assert(sizeof(ta_metal_shared) % 16 == 0 && sizeof(ta_metal_shared) <= 32768, "what every device has");

static const char *reason_of(NSError *failure) {
  return failure == nil ? "no reason given" : [[failure localizedDescription] UTF8String];
}

/* Messages are one line, compilers' are not. */
static treeattn_status fail_backend(const char *what, const char *name, NSError *failure, treeattn_error *error) {
  const treeattn_status status = ta_fail(error, TREEATTN_ERROR_BACKEND, "%s %s: %s", what, name, reason_of(failure));
  for (char *c = error == NULL ? NULL : error->message; c != NULL && *c != '\0'; ++c) {
    *c = *c == '\n' ? ' ' : *c;
  }
  return status;
}

/* The source is compiled here and not when the library is built: that takes no more than the system has, and safe math is
 * asked for where it is needed. */
static id<MTLLibrary> compile_library(id<MTLDevice> device, treeattn_error *error) {
  NSError *failure = nil;
  MTLCompileOptions *options = [[MTLCompileOptions alloc] init];
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations" /* its successor is not in older systems */
  [options setFastMathEnabled:NO];
#pragma clang diagnostic pop
  id<MTLLibrary> library = [device newLibraryWithSource:[NSString stringWithUTF8String:ta_metal_source]
                                                options:options
                                                  error:&failure];
  [options release];
  if (library == nil) {
    (void)fail_backend("the Metal compiler refuses", "the kernels", failure, error);
  }
  return library;
}

static treeattn_status create(id<MTLDevice> device, treeattn_metal *metal, treeattn_error *error) {
  if (device == nil) {
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "device is NULL and the system has no Metal device");
  }
  if ([device maxThreadgroupMemoryLength] < sizeof(ta_metal_shared)) {
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "device has %zu bytes of threadgroup memory: %zu are needed",
                   (size_t)[device maxThreadgroupMemoryLength], sizeof(ta_metal_shared));
  }
  metal->library = compile_library(device, error);
  if (metal->library == nil) {
    return TREEATTN_ERROR_BACKEND;
  }
  metal->device = [device retain];
  metal->queue = [device newCommandQueue];
  if (metal->queue == nil) {
    return ta_fail(error, TREEATTN_ERROR_BACKEND, "device gives no command queue");
  }
  return TREEATTN_OK;
}

treeattn_status treeattn_metal_create(void *device, treeattn_metal **metal, treeattn_error *error) {
  if (metal == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "metal is NULL");
  }
  *metal = NULL;
  treeattn_metal *made = calloc(1, sizeof *made);
  if (made == NULL || pthread_mutex_init(&made->lock, NULL) != 0) {
    free(made);
    return ta_fail(error, TREEATTN_ERROR_OUT_OF_MEMORY, "metal: %zu bytes could not be allocated", sizeof *made);
  }
  treeattn_status status = TREEATTN_OK;
  @autoreleasepool {
    id<MTLDevice> chosen = device != NULL ? [(id<MTLDevice>)device retain] : MTLCreateSystemDefaultDevice();
    status = create(chosen, made, error);
    [chosen release];
  }
  if (status != TREEATTN_OK) {
    treeattn_metal_destroy(made);
    return status;
  }
  *metal = made;
  return TREEATTN_OK;
}

void treeattn_metal_destroy(treeattn_metal *metal) {
  if (metal == NULL) {
    return;
  }
  @autoreleasepool {
    while (metal->pipelines != NULL) {
      pipeline_record *record = metal->pipelines;
      metal->pipelines = record->next;
      [record->pipeline release];
      free(record);
    }
    [metal->library release];
    [metal->queue release];
    [metal->device release];
  }
  (void)pthread_mutex_destroy(&metal->lock);
  free(metal);
}

id<MTLDevice> ta_metal_device(const treeattn_metal *metal) {
  return metal->device;
}

id<MTLCommandQueue> ta_metal_queue(const treeattn_metal *metal) {
  return metal->queue;
}

static treeattn_status check_pipeline(id<MTLComputePipelineState> pipeline, const char *name, treeattn_error *error) {
  const size_t most = [pipeline maxTotalThreadsPerThreadgroup];
  const size_t width = [pipeline threadExecutionWidth];
  if (most < TA_METAL_LANES) {
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "%s: the device runs %zu threads in a threadgroup, %d are needed",
                   name, most, TA_METAL_LANES);
  }
  if (width % (TA_METAL_LANES / TA_METAL_ROWS) != 0) { /* lanes of a row exchange their maxima within a simdgroup */
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "%s: simdgroups have %zu lanes, a multiple of %d is needed", name,
                   width, TA_METAL_LANES / TA_METAL_ROWS);
  }
  return TREEATTN_OK;
}

static treeattn_status build_pipeline(const treeattn_metal *metal, const char *kernel, const treeattn_plan *plan,
                                      pipeline_record *record, treeattn_error *error) {
  NSError *failure = nil;
  const uint32_t constants[] = {(uint32_t)plan->head_dim, (uint32_t)plan->head_dim_v, (uint32_t)plan->kv_dtype};
  MTLFunctionConstantValues *values = [[MTLFunctionConstantValues alloc] init];
  [values setConstantValue:&constants[0] type:MTLDataTypeUInt atIndex:TA_METAL_HEAD_DIM];
  [values setConstantValue:&constants[1] type:MTLDataTypeUInt atIndex:TA_METAL_HEAD_DIM_V];
  [values setConstantValue:&constants[2] type:MTLDataTypeUInt atIndex:TA_METAL_KV_TYPE];
  id<MTLFunction> function = [metal->library newFunctionWithName:[NSString stringWithUTF8String:kernel]
                                                  constantValues:values
                                                           error:&failure];
  [values release];
  if (function == nil) {
    return fail_backend("no function", record->name, failure, error);
  }
  record->pipeline = [metal->device newComputePipelineStateWithFunction:function error:&failure];
  [function release];
  if (record->pipeline == nil) {
    return fail_backend("no pipeline", record->name, failure, error);
  }
  const treeattn_status status = check_pipeline(record->pipeline, record->name, error);
  if (status != TREEATTN_OK) {
    [record->pipeline release];
  }
  return status;
}

treeattn_status ta_metal_pipeline(treeattn_metal *metal, const char *kernel, const treeattn_plan *plan,
                                  id<MTLComputePipelineState> *pipeline, treeattn_error *error) {
  pipeline_record wanted;
  memset(&wanted, 0, sizeof wanted);
  (void)snprintf(wanted.name, sizeof wanted.name, "%s_%s_%d_%d", kernel, treeattn_dtype_name(plan->kv_dtype),
                 (int)plan->head_dim, (int)plan->head_dim_v);
  treeattn_status status = TREEATTN_OK;
  (void)pthread_mutex_lock(&metal->lock);
  pipeline_record *record = metal->pipelines;
  while (record != NULL && strcmp(record->name, wanted.name) != 0) {
    record = record->next;
  }
  if (record == NULL) {
    status = build_pipeline(metal, kernel, plan, &wanted, error);
    record = status == TREEATTN_OK ? malloc(sizeof *record) : NULL;
    if (record != NULL) {
      *record = wanted;
      record->next = metal->pipelines;
      metal->pipelines = record;
    } else if (status == TREEATTN_OK) {
      [wanted.pipeline release];
      status = ta_fail(error, TREEATTN_ERROR_OUT_OF_MEMORY, "pipeline %s: %zu bytes could not be allocated",
                       wanted.name, sizeof wanted);
    }
  }
  *pipeline = record == NULL ? nil : record->pipeline;
  (void)pthread_mutex_unlock(&metal->lock);
  return status;
}
