/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that are wrong, each in one way that the executor must report, and some that say how kernels were compiled. */
#include <metal_stdlib>
using namespace metal;

#ifndef TA_THREADGROUP_ARGUMENT
#define TA_THREADGROUP_ARGUMENT [[threadgroup(0)]]
#endif

/* Lane n reads what lane n + 1 wrote: right with the barrier, a race without it. */
kernel void neighbour(device uint *out [[buffer(0)]], constant uint &with_barrier [[buffer(1)]],
                      threadgroup uint *shared TA_THREADGROUP_ARGUMENT, uint3 place [[threadgroup_position_in_grid]],
                      uint lane [[thread_index_in_threadgroup]]) {
  shared[lane] = lane;
  if (with_barrier != 0) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  out[place.x * 64 + lane] = shared[(lane + 1) % 64];
}

/* Lanes meet, but nothing was asked to be ordered. */
kernel void barrier_of_nothing(device uint *out [[buffer(0)]], threadgroup uint *shared TA_THREADGROUP_ARGUMENT,
                               uint lane [[thread_index_in_threadgroup]]) {
  shared[lane] = lane;
  threadgroup_barrier(mem_flags::mem_none);
  out[lane] = shared[(lane + 1) % 64];
}

/* Element `count` is the first past the end. */
kernel void past_the_end(device uint *out [[buffer(0)]], constant uint &count [[buffer(1)]],
                         uint lane [[thread_index_in_threadgroup]]) {
  if (lane == 0) {
    out[0] = out[count];
  }
}

kernel void write_past_the_end(device uint *out [[buffer(0)]], constant uint &count [[buffer(1)]],
                               uint lane [[thread_index_in_threadgroup]]) {
  if (lane == 0) {
    out[count] = 1;
  }
}

kernel void before_the_start(device uint *out [[buffer(0)]], uint lane [[thread_index_in_threadgroup]]) {
  if (lane == 0) {
    out[-(int64_t(1) << 20)] = 1;
  }
}

kernel void past_threadgroup_memory(device uint *out [[buffer(0)]], threadgroup uint *shared TA_THREADGROUP_ARGUMENT,
                                    uint lane [[thread_index_in_threadgroup]]) {
  shared[lane + 1] = 1; /* the last lane's is outside */
  out[lane] = 0;
}

kernel void never_written(device uint *out [[buffer(0)]], threadgroup uint *shared TA_THREADGROUP_ARGUMENT,
                          uint lane [[thread_index_in_threadgroup]]) {
  if (lane != 7) {
    shared[lane] = lane;
  }
  out[lane] = shared[lane];
}

/* Threadgroups write the same word. */
kernel void same_word(device uint *out [[buffer(0)]], uint3 place [[threadgroup_position_in_grid]],
                      uint lane [[thread_index_in_threadgroup]]) {
  if (lane == 0) {
    out[0] = place.x;
  }
}

/* A threadgroup reads what another one writes. */
kernel void other_threadgroup(device uint *out [[buffer(0)]], uint3 place [[threadgroup_position_in_grid]],
                              uint lane [[thread_index_in_threadgroup]]) {
  if (lane == 0) {
    out[place.x] = out[1 - place.x] + 1;
  }
}

/* A cast takes the constness away; the memory is the caller's input all the same. */
kernel void write_to_input(device const uint *in [[buffer(0)]], uint lane [[thread_index_in_threadgroup]]) {
  if (lane == 0) {
    ((device uint *)in)[0] = 1;
  }
}

kernel void half_at_the_barrier(device uint *out [[buffer(0)]], uint lane [[thread_index_in_threadgroup]]) {
  if (lane < 32) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  out[lane] = lane;
}

kernel void two_barriers(device uint *out [[buffer(0)]], uint lane [[thread_index_in_threadgroup]]) {
  if (lane < 32) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  } else {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  out[lane] = lane;
}

kernel void lonely_shuffle(device float *out [[buffer(0)]], uint lane [[thread_index_in_threadgroup]]) {
  out[lane] = lane < 40 ? simd_shuffle_xor(float(lane), 1) : 0.0f;
}

/* Right, and different where products and sums are contracted. */
kernel void product_and_sum(device float *x [[buffer(0)]]) {
  x[3] = x[0] * x[1] + x[2];
}
