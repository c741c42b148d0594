/* SPDX-License-Identifier: Apache-2.0 */
/* The classes behind the stand-in's protocols. */
#ifndef STANDIN_STANDIN_H
#define STANDIN_STANDIN_H

#import <Metal/Metal.h>

#include "bridge.h"

void standin_pool_add(id object);

@interface NSError (StandIn)
- (id)initWithText:(const char *)text;
@end

@interface StandInBuffer : NSObject <MTLBuffer> {
@public
  unsigned char *mapping, *data;
  size_t mapping_bytes, bytes;
  bool private_storage;
}
- (id)initWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
@end

@interface StandInLibrary : NSObject <MTLLibrary> {
@public
  standin_source *source;
}
@end

@interface StandInFunction : NSObject <MTLFunction> {
@public
  StandInLibrary *library;
  char name[64];
  uint32_t constants[STANDIN_CONSTANTS];
}
@end

@interface StandInPipeline : NSObject <MTLComputePipelineState> {
@public
  StandInFunction *function;
}
@end

/* A dispatch with everything that it refers to, or a barrier. */
typedef struct standin_command {
  bool is_barrier;
  StandInPipeline *pipeline;
  StandInBuffer *buffers[STANDIN_BINDINGS];
  size_t offset[STANDIN_BINDINGS], threadgroup_bytes[STANDIN_BINDINGS];
  uint32_t grid[3], lanes;
  struct standin_command *next;
} standin_command;

@interface StandInCommandBuffer : NSObject <MTLCommandBuffer> {
@public
  standin_command *first, **last;
  int open_encoders;
  MTLCommandBufferStatus state;
  NSError *failure;
}
- (void)fail:(const char *)text;
- (void)append:(const standin_command *)command;
@end

@interface StandInEncoder : NSObject <MTLComputeCommandEncoder> {
@public
  StandInCommandBuffer *commands;
  standin_command next; /* what the next dispatch will be */
  bool ended;
}
@end

@interface StandInQueue : NSObject <MTLCommandQueue>
@end

@interface StandInDevice : NSObject <MTLDevice>
@end

#endif
