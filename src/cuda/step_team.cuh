/* SPDX-License-Identifier: Apache-2.0 */
/* The thread blocks that share one request: a cluster where the machine code knows them, otherwise a block alone. */
#ifndef TA_CUDA_STEP_TEAM_CUH
#define TA_CUDA_STEP_TEAM_CUH

#include <stdint.h>

struct ta_team {
  int32_t rank, size;
};

__device__ __forceinline__ ta_team ta_team_get() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t rank, size;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return {(int32_t)rank, (int32_t)size};
#else
  return {0, 1};
#endif
}

/* All threads of the team meet; what any of them wrote before, to global memory too, all of them see after. */
__device__ __forceinline__ void ta_team_meet(const ta_team &team) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (team.size > 1) {
    /* Not the aligned form: lanes of a warp may arrive one after another. */
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
    return;
  }
#endif
  (void)team;
  __syncthreads();
}

#endif
