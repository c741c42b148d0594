/* SPDX-License-Identifier: Apache-2.0 */
/* One-line names for the instructions that C++ has no words for. */
#ifndef TA_CUDA_PTX_CUH
#define TA_CUDA_PTX_CUH

#include <cstdint>

__device__ __forceinline__ uint32_t ta_shared_address(const void *pointer) {
  return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* ---- asynchronous copies, 16 bytes a thread ---- */

__device__ __forceinline__ void ta_copy_16(uint32_t target, const void *source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

__device__ __forceinline__ void ta_copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void ta_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Arrives on the barrier once all copies that this thread has begun are there. */
__device__ __forceinline__ void ta_copy_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* ---- barriers in shared memory ---- */

__device__ __forceinline__ void ta_barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void ta_barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void ta_barrier_wait(uint32_t barrier, uint32_t phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

/* Barrier of `threads` threads among those of a block; id 0 is __syncthreads. */
__device__ __forceinline__ void ta_named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Makes what ordinary instructions wrote to shared memory visible to the matrix unit. */
__device__ __forceinline__ void ta_fence_shared_for_matrix_unit() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- programmatic launches: a kernel may start before the one in front of it ends ---- */

__device__ __forceinline__ void ta_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void ta_wait_for_dependencies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* ---- arithmetic ---- */

__device__ __forceinline__ float ta_fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* Two 16-bit numbers, `low` in the low half, rounded to nearest even. */
template <bool BF16>
__device__ __forceinline__ uint32_t ta_pack(float low, float high) {
  uint32_t packed;
  if constexpr (BF16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

template <bool BF16>
__device__ __forceinline__ float ta_unpack_low(uint32_t packed) {
  if constexpr (BF16) {
    return __uint_as_float(packed << 16);
  } else {
    float value;
    asm("{.reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(value) : "r"(packed));
    return value;
  }
}

template <bool BF16>
__device__ __forceinline__ float ta_unpack_high(uint32_t packed) {
  if constexpr (BF16) {
    return __uint_as_float(packed & 0xffff0000u);
  } else {
    float value;
    asm("{.reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high;}" : "=f"(value) : "r"(packed));
    return value;
  }
}

/* ---- matrix products of a warp ---- */

__device__ __forceinline__ void ta_load_matrices(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void ta_load_matrices_transposed(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/* d += a b over 16 steps: a is 16 x 16, b 16 x 8. */
template <bool BF16>
__device__ __forceinline__ void ta_warp_product(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (BF16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

#endif
