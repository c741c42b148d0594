/* SPDX-License-Identifier: Apache-2.0 */
/* Metal objects for tests in C. */
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <stdio.h>
#include <string.h>

#include "device.h"

void *device_new(void) {
  return MTLCreateSystemDefaultDevice();
}

void *device_buffer(void *device, size_t bytes) {
  id<MTLBuffer> buffer = [(id<MTLDevice>)device newBufferWithLength:bytes options:MTLResourceStorageModeShared];
  memset([buffer contents], 0xff, bytes);
  return buffer;
}

void *device_untouched_buffer(void *device, size_t bytes) {
  return [(id<MTLDevice>)device newBufferWithLength:bytes options:MTLResourceStorageModeShared];
}

void *device_private_buffer(void *device, size_t bytes) {
  return [(id<MTLDevice>)device newBufferWithLength:bytes options:MTLResourceStorageModePrivate];
}

unsigned char *device_contents(void *buffer) {
  return [(id<MTLBuffer>)buffer contents];
}

void device_release(void *object) {
  [(id)object release];
}

device_commands device_commands_begin(void *device) {
  device_commands commands;
  commands.queue = [(id<MTLDevice>)device newCommandQueue];
  commands.encoder = NULL;
  @autoreleasepool {
    commands.command_buffer = [[(id<MTLCommandQueue>)commands.queue commandBuffer] retain];
  }
  return commands;
}

void device_commands_open_encoder(device_commands *commands) {
  @autoreleasepool {
    commands->encoder = [[(id<MTLCommandBuffer>)commands->command_buffer computeCommandEncoder] retain];
  }
}

int device_commands_finish(device_commands *commands, char *message, size_t message_bytes) {
  int fine = 0;
  @autoreleasepool {
    if (commands->encoder != NULL) {
      [(id<MTLComputeCommandEncoder>)commands->encoder endEncoding];
      [(id)commands->encoder release];
    }
    id<MTLCommandBuffer> buffer = (id<MTLCommandBuffer>)commands->command_buffer;
    [buffer commit];
    [buffer waitUntilCompleted];
    fine = [buffer status] == MTLCommandBufferStatusCompleted;
    (void)snprintf(message, message_bytes, "%s",
                   [buffer error] == nil ? "" : [[[buffer error] localizedDescription] UTF8String]);
    [buffer release];
    [(id)commands->queue release];
  }
  return fine;
}
