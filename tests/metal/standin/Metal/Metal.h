/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few interfaces of Metal that the back end and its tests use, backed by the executor of tests/metal/emulator.
 * Names, argument order and constants are Metal's. A command runs when its buffer is committed, not before; objects
 * that commands refer to are retained until then, and each encoder is one in which dispatches may run at the same time
 * unless a barrier stands between them.
 */
#ifndef STANDIN_METAL_H
#define STANDIN_METAL_H

#import <Foundation/Foundation.h>

typedef struct MTLSize {
  NSUInteger width, height, depth;
} MTLSize;

static inline MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) {
  const MTLSize size = {width, height, depth};
  return size;
}

typedef enum MTLDataType { MTLDataTypeUInt = 33 } MTLDataType;
typedef enum MTLResourceOptions {
  MTLResourceStorageModeShared = 0,
  MTLResourceStorageModePrivate = 32
} MTLResourceOptions;
typedef enum MTLBarrierScope { MTLBarrierScopeBuffers = 1 } MTLBarrierScope;
typedef enum MTLCommandBufferStatus {
  MTLCommandBufferStatusNotEnqueued = 0,
  MTLCommandBufferStatusCompleted = 4,
  MTLCommandBufferStatusError = 5
} MTLCommandBufferStatus;

@protocol MTLBuffer <NSObject>
- (NSUInteger)length;
- (void *)contents;
@end

@protocol MTLFunction <NSObject>
@end

@protocol MTLComputePipelineState <NSObject>
- (NSUInteger)maxTotalThreadsPerThreadgroup;
- (NSUInteger)threadExecutionWidth;
@end

@interface MTLFunctionConstantValues : NSObject {
@public
  uint32_t values[8];
  bool set[8];
}
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index;
@end

@interface MTLCompileOptions : NSObject {
@public
  BOOL fast;
}
- (void)setFastMathEnabled:(BOOL)enabled;
@end

@protocol MTLLibrary <NSObject>
- (id<MTLFunction>)newFunctionWithName:(NSString *)name
                        constantValues:(MTLFunctionConstantValues *)values
                                 error:(NSError **)error;
@end

@protocol MTLComputeCommandEncoder <NSObject>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)dispatchThreadgroups:(MTLSize)grid threadsPerThreadgroup:(MTLSize)lanes;
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope;
- (void)endEncoding;
@end

@protocol MTLCommandBuffer <NSObject>
- (id<MTLComputeCommandEncoder>)computeCommandEncoder;
- (void)commit;
- (void)waitUntilCompleted;
- (MTLCommandBufferStatus)status;
- (NSError *)error;
@end

@protocol MTLCommandQueue <NSObject>
- (id<MTLCommandBuffer>)commandBuffer;
@end

@protocol MTLDevice <NSObject>
- (NSUInteger)maxThreadgroupMemoryLength;
- (id<MTLCommandQueue>)newCommandQueue;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error;
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError **)error;
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void);

#endif
