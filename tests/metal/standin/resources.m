/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in's device: buffers between unmapped pages, libraries from source text, pipelines. */
#define _GNU_SOURCE 1
#import "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static long num_pipelines;
static char *last_source;

long standin_pipelines(void) {
  return num_pipelines;
}

const char *standin_last_source(void) {
  return last_source;
}

static void set_error(NSError **error, const char *text) {
  if (error != NULL) {
    *error = [[[NSError alloc] initWithText:text] autorelease];
  }
}

@implementation StandInBuffer
/* As far back as 16-byte alignment allows, so that what is read or written past the end mostly ends the program. */
- (id)initWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const size_t inner = (length + page - 1) / page * page;
  mapping_bytes = inner + 2 * page;
  mapping = mmap(NULL, mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED || (inner > 0 && mprotect(mapping + page, inner, PROT_READ | PROT_WRITE) != 0)) {
    mapping = NULL;
    [self release];
    return nil;
  }
  if (length <= (size_t)64 << 20) { /* pages of a huge buffer cost nothing until somebody touches them */
    memset(mapping + page, 0xff, inner);
  }
  data = mapping + page + (inner - length) / 16 * 16;
  bytes = length;
  private_storage = options == MTLResourceStorageModePrivate;
  return self;
}
- (NSUInteger)length {
  return bytes;
}
- (void *)contents {
  return private_storage ? NULL : data;
}
- (void)dealloc {
  if (mapping != NULL) {
    (void)munmap(mapping, mapping_bytes);
  }
  [super dealloc];
}
@end

@implementation MTLFunctionConstantValues
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index {
  if (type != MTLDataTypeUInt || index >= STANDIN_CONSTANTS) {
    abort();
  }
  memcpy(&values[index], value, sizeof values[index]);
  set[index] = true;
}
@end

@implementation MTLCompileOptions
- (id)init {
  fast = YES; /* Metal's default */
  return self;
}
- (void)setFastMathEnabled:(BOOL)enabled {
  fast = enabled;
}
@end

@implementation StandInLibrary
- (id<MTLFunction>)newFunctionWithName:(NSString *)name
                        constantValues:(MTLFunctionConstantValues *)values
                                 error:(NSError **)error {
  if (!standin_source_has(source, [name UTF8String])) {
    set_error(error, "no such kernel");
    return nil;
  }
  StandInFunction *function = [[StandInFunction alloc] init];
  const uint32_t declared = standin_source_constants(source);
  for (int n = 0; n < STANDIN_CONSTANTS; ++n) {
    if ((declared >> n & 1) != 0 && !values->set[n]) {
      set_error(error, "a function constant has no value");
      [function release];
      return nil;
    }
    function->constants[n] = values->values[n];
  }
  function->library = [self retain];
  (void)snprintf(function->name, sizeof function->name, "%s", [name UTF8String]);
  return function;
}
- (void)dealloc {
  standin_source_free(source);
  [super dealloc];
}
@end

@implementation StandInFunction
- (void)dealloc {
  [library release];
  [super dealloc];
}
@end

@implementation StandInPipeline
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return 1024;
}
- (NSUInteger)threadExecutionWidth {
  return 32;
}
- (void)dealloc {
  [function release];
  [super dealloc];
}
@end

@implementation StandInDevice
- (NSUInteger)maxThreadgroupMemoryLength {
  return 32768;
}
- (id<MTLCommandQueue>)newCommandQueue {
  return [[StandInQueue alloc] init];
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  return length == 0 ? nil : [[StandInBuffer alloc] initWithLength:length options:options];
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error {
  if (options == nil || options->fast) {
    set_error(error, "the kernels' bits need safe math, and fast math was asked for");
    return nil;
  }
  StandInLibrary *library = [[StandInLibrary alloc] init];
  library->source = standin_source_new([source UTF8String]);
  free(last_source);
  last_source = strdup([source UTF8String]);
  return library;
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError **)error {
  (void)error;
  StandInPipeline *pipeline = [[StandInPipeline alloc] init];
  pipeline->function = [(StandInFunction *)function retain];
  ++num_pipelines;
  return pipeline;
}
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void) {
  return [[StandInDevice alloc] init];
}
