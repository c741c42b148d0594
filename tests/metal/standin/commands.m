/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in's commands: encoded now, run when their buffer is committed. */
#import "standin.h"

#include <stdlib.h>
#include <string.h>

static long num_dispatches;
static bool barriers_dropped;

long standin_dispatches(void) {
  return num_dispatches;
}

void standin_drop_device_barriers(int drop) {
  barriers_dropped = drop != 0;
}

@implementation StandInQueue
- (id<MTLCommandBuffer>)commandBuffer {
  StandInCommandBuffer *commands = [[StandInCommandBuffer alloc] init];
  commands->last = &commands->first;
  return [commands autorelease];
}
@end

static void release_references(const standin_command *command) {
  [command->pipeline release];
  for (int n = 0; n < STANDIN_BINDINGS; ++n) {
    [command->buffers[n] release];
  }
}

static const char *run_command(const standin_command *command) {
  if (command->is_barrier) {
    standin_barrier();
    return "";
  }
  const StandInFunction *function = command->pipeline->function;
  standin_dispatch dispatch;
  memset(&dispatch, 0, sizeof dispatch);
  dispatch.source = function->library->source;
  dispatch.kernel = function->name;
  memcpy(dispatch.constants, function->constants, sizeof dispatch.constants);
  for (int n = 0; n < STANDIN_BINDINGS; ++n) {
    dispatch.threadgroup_bytes[n] = command->threadgroup_bytes[n];
    if (command->buffers[n] != nil) {
      dispatch.data[n] = command->buffers[n]->data;
      dispatch.bytes[n] = command->buffers[n]->bytes;
      dispatch.offset[n] = command->offset[n];
    }
  }
  memcpy(dispatch.grid, command->grid, sizeof dispatch.grid);
  dispatch.lanes = command->lanes;
  ++num_dispatches;
  return standin_run(&dispatch);
}

@implementation StandInCommandBuffer
- (id<MTLComputeCommandEncoder>)computeCommandEncoder {
  StandInEncoder *encoder = [[StandInEncoder alloc] init];
  encoder->commands = [self retain];
  ++open_encoders;
  return [encoder autorelease];
}
- (void)fail:(const char *)text {
  if (failure == nil) {
    failure = [[NSError alloc] initWithText:text];
    state = MTLCommandBufferStatusError;
  }
}
- (void)append:(const standin_command *)command {
  standin_command *copy = malloc(sizeof *copy);
  *copy = *command;
  copy->next = NULL;
  [copy->pipeline retain];
  for (int n = 0; n < STANDIN_BINDINGS; ++n) {
    [copy->buffers[n] retain];
  }
  *last = copy;
  last = &copy->next;
}
- (void)commit {
  if (open_encoders != 0) {
    [self fail:"an encoder was not ended"];
  }
  standin_barrier();
  for (standin_command *command = first; command != NULL && failure == nil; command = command->next) {
    const char *report = run_command(command);
    if (report[0] != '\0') {
      [self fail:report];
    }
  }
  standin_barrier();
  state = failure == nil ? MTLCommandBufferStatusCompleted : MTLCommandBufferStatusError;
}
- (void)waitUntilCompleted {
}
- (MTLCommandBufferStatus)status {
  return state;
}
- (NSError *)error {
  return failure;
}
- (void)dealloc {
  while (first != NULL) {
    standin_command *command = first;
    first = command->next;
    release_references(command);
    free(command);
  }
  [failure release];
  [super dealloc];
}
@end

@implementation StandInEncoder
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
  [state retain];
  [next.pipeline release];
  next.pipeline = (StandInPipeline *)state;
}
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  if (length == 0 || length > 4096) {
    [commands fail:"setBytes takes 1 to 4096 bytes"];
    return;
  }
  StandInBuffer *copy = [[StandInBuffer alloc] initWithLength:length options:MTLResourceStorageModeShared];
  memcpy(copy->data, bytes, length);
  [self setBuffer:copy offset:0 atIndex:index];
  [copy release];
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  if (index >= STANDIN_BINDINGS || (buffer != nil && offset > [buffer length])) {
    [commands fail:"setBuffer: no such index, or an offset past the end"];
    return;
  }
  [buffer retain];
  [next.buffers[index] release];
  next.buffers[index] = (StandInBuffer *)buffer;
  next.offset[index] = offset;
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
  if (index >= STANDIN_BINDINGS || length % 16 != 0 || length > 32768) {
    [commands fail:"setThreadgroupMemoryLength takes up to 32768 bytes in steps of 16"];
    return;
  }
  next.threadgroup_bytes[index] = length;
}
- (void)dispatchThreadgroups:(MTLSize)grid threadsPerThreadgroup:(MTLSize)lanes {
  const NSUInteger count = lanes.width * lanes.height * lanes.depth;
  if (ended || next.pipeline == nil || count == 0 || count > [next.pipeline maxTotalThreadsPerThreadgroup] ||
      grid.width == 0 || grid.height == 0 || grid.depth == 0 || grid.width > UINT32_MAX || grid.height > UINT32_MAX ||
      grid.depth > UINT32_MAX) {
    [commands fail:"dispatchThreadgroups: no pipeline, an empty or too large grid, or the encoder has ended"];
    return;
  }
  next.grid[0] = (uint32_t)grid.width;
  next.grid[1] = (uint32_t)grid.height;
  next.grid[2] = (uint32_t)grid.depth;
  next.lanes = (uint32_t)count;
  [commands append:&next];
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
  standin_command barrier;
  memset(&barrier, 0, sizeof barrier);
  barrier.is_barrier = true;
  if (scope == MTLBarrierScopeBuffers && !barriers_dropped) {
    [commands append:&barrier];
  }
}
- (void)endEncoding {
  standin_command barrier; /* encoders of a command buffer run one after another */
  memset(&barrier, 0, sizeof barrier);
  barrier.is_barrier = true;
  [commands append:&barrier];
  commands->open_encoders -= ended ? 0 : 1;
  ended = true;
}
- (void)dealloc {
  release_references(&next);
  [commands release];
  [super dealloc];
}
@end
