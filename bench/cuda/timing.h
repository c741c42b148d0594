/* SPDX-License-Identifier: Apache-2.0 */
/* Time of what is enqueued on a stream, as part of a graph: without the host's share. */
#ifndef BENCH_CUDA_TIMING_H
#define BENCH_CUDA_TIMING_H

#include <functional>

#include <cuda_runtime.h>

#include "bench.h"

/* Device memory; a size of 0 gives some too. */
void *device_alloc(size_t bytes);

/* Seconds of one call: the median over `repeat` replays of a graph of enqueue(0, stream) to enqueue(calls - 1, stream). */
double time_graph(int calls, int repeat, const std::function<void(int, cudaStream_t)> &enqueue);

#endif
