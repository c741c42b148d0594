/* SPDX-License-Identifier: Apache-2.0 */
/* A graph, its replays and their median. */
#include "timing.h"

#include <algorithm>

void *device_alloc(size_t bytes) {
  void *memory = nullptr;
  CUDA(cudaMalloc(&memory, bytes == 0 ? 256 : bytes));
  return memory;
}

double time_graph(int calls, int repeat, const std::function<void(int, cudaStream_t)> &enqueue) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaEvent_t begin, end;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int n = 0; n < calls; ++n) {
    enqueue(n, stream);
  }
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int n = 0; n < repeat + 2; ++n) {
    float ms = 0;
    CUDA(cudaEventRecord(begin, stream));
    CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaEventRecord(end, stream));
    CUDA(cudaEventSynchronize(end));
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms);
  }
  CUDA(cudaEventDestroy(begin));
  CUDA(cudaEventDestroy(end));
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaStreamDestroy(stream));
  std::sort(times.begin() + 2, times.end());
  return 1e-3 * times[2 + (size_t)repeat / 2] / calls;
}
