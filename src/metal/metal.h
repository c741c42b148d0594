/* SPDX-License-Identifier: Apache-2.0 */
/* What the Objective-C files share: a device with its pipelines, and where commands go. */
#ifndef TA_METAL_METAL_H
#define TA_METAL_METAL_H

#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <treeattn/treeattn_metal.h>

#include "device_plan.h"

/* metal.m: the pipeline of a kernel for a plan's head dimensions and cache type. Kept until the device is destroyed. */
TA_HIDDEN treeattn_status ta_metal_pipeline(treeattn_metal *metal, const char *kernel, const treeattn_plan *plan,
                                            id<MTLComputePipelineState> *pipeline, treeattn_error *error);
TA_HIDDEN id<MTLDevice> ta_metal_device(const treeattn_metal *metal);
TA_HIDDEN id<MTLCommandQueue> ta_metal_queue(const treeattn_metal *metal);

/* The kernels' source, generated from the .metal files. */
TA_HIDDEN extern const char ta_metal_source[];

#endif
