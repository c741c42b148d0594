/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of four warps (wgmma): 64 rows, steps of 16, N columns, f32 accumulators in registers. */
#ifndef TA_CUDA_WGMMA_CUH
#define TA_CUDA_WGMMA_CUH

#include <cstdint>

/*
 * Operands in shared memory lie in panels of 64 columns: rows of 128 bytes whose 16-byte pieces are swizzled, piece c of
 * row r at c ^ (r & 7). A panel of 64 rows has 8192 bytes and starts at a multiple of 1024. The same panel serves as an
 * operand whose steps run along the row (keys: `row` descriptors) and as one whose steps run down the rows (values:
 * `column` descriptors, the columns going on in the next panel).
 */
enum { TA_PANEL_COLUMNS = 64, TA_PANEL_ROWS = 64, TA_PANEL_BYTES = 8192 };

/* The low words of descriptors; 16 bytes count 1. The high word is the same for both: 8 rows are 1024 bytes, and swizzled. */
__device__ __forceinline__ uint32_t ta_row_descriptor(uint32_t address) {
  return (address & 0x3ffffu) >> 4 | 1u << 16;
}

__device__ __forceinline__ uint32_t ta_column_descriptor(uint32_t address) {
  return (address & 0x3ffffu) >> 4 | (uint32_t)(TA_PANEL_BYTES >> 4) << 16;
}

__device__ __forceinline__ uint64_t ta_descriptor(uint32_t low) {
  return (uint64_t)low | (uint64_t)(1024 >> 4 | 1u << 30) << 32;
}

__device__ __forceinline__ void ta_group_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void ta_group_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void ta_group_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Tells the compiler that registers are written by products that it cannot see ending. */
template <int COUNT>
__device__ __forceinline__ void ta_group_hold(float (&d)[COUNT]) {
#pragma unroll
  for (int n = 0; n < COUNT; ++n) {
    asm volatile("" : "+f"(d[n])::"memory");
  }
}

#define TA_D8(d, n) "+f"(d[n]), "+f"(d[n + 1]), "+f"(d[n + 2]), "+f"(d[n + 3]), "+f"(d[n + 4]), "+f"(d[n + 5]), \
                    "+f"(d[n + 6]), "+f"(d[n + 7])
#define TA_D32(d, n) TA_D8(d, n), TA_D8(d, n + 8), TA_D8(d, n + 16), TA_D8(d, n + 24)

#define TA_LIST_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TA_LIST_48 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TA_LIST_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TA_LIST_96 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TA_LIST_128 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* d (64 x 64) = a b, or d + a b with `add`: both operands in shared memory, steps along their rows. */
template <bool BF16>
__device__ __forceinline__ void ta_group_scores(float (&d)[32], uint32_t a, uint32_t b, bool add) {
#define TA_SCORES(type)                                                                     \
  asm volatile("{.reg .pred add; setp.ne.b32 add, %34, 0;"                                  \
               "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" TA_LIST_32 "}, %32, %33, add, 1, 1, 0, 0;}" \
               : TA_D32(d, 0)                                                               \
               : "l"(ta_descriptor(a)), "l"(ta_descriptor(b)), "r"((int)add))
  if constexpr (BF16) {
    TA_SCORES("bf16");
  } else {
    TA_SCORES("f16");
  }
#undef TA_SCORES
}

/* d (64 x N) = a b, or d + a b with `add`: a in registers, b in shared memory with steps down its rows. */
template <bool BF16, int N>
struct ta_group_values;

#define TA_VALUES(BF16, type, N, COUNT, LIST, A0, A1, A2, A3, B, ADD, ...)                                          \
  template <>                                                                                                        \
  struct ta_group_values<BF16, N> {                                                                                  \
    static __device__ __forceinline__ void add(float (&d)[COUNT], const uint32_t (&a)[4], uint32_t b, bool add) {    \
      asm volatile("{.reg .pred add; setp.ne.b32 add, " ADD ", 0;"                                                   \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" LIST "}, {" A0 ", " A1 ", "  \
                   A2 ", " A3 "}, " B ", add, 1, 1, 1;}"                                                             \
                   : __VA_ARGS__                                                                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(ta_descriptor(b)), "r"((int)add));                             \
    }                                                                                                                \
  }
TA_VALUES(false, "f16", 64, 32, TA_LIST_32, "%32", "%33", "%34", "%35", "%36", "%37",
          TA_D32(d, 0));
TA_VALUES(true, "bf16", 64, 32, TA_LIST_32, "%32", "%33", "%34", "%35", "%36", "%37",
          TA_D32(d, 0));
TA_VALUES(false, "f16", 96, 48, TA_LIST_48, "%48", "%49", "%50", "%51", "%52", "%53",
          TA_D32(d, 0), TA_D8(d, 32), TA_D8(d, 40));
TA_VALUES(true, "bf16", 96, 48, TA_LIST_48, "%48", "%49", "%50", "%51", "%52", "%53",
          TA_D32(d, 0), TA_D8(d, 32), TA_D8(d, 40));
TA_VALUES(false, "f16", 128, 64, TA_LIST_64, "%64", "%65", "%66", "%67", "%68", "%69",
          TA_D32(d, 0), TA_D32(d, 32));
TA_VALUES(true, "bf16", 128, 64, TA_LIST_64, "%64", "%65", "%66", "%67", "%68", "%69",
          TA_D32(d, 0), TA_D32(d, 32));
TA_VALUES(false, "f16", 192, 96, TA_LIST_96, "%96", "%97", "%98", "%99", "%100", "%101",
          TA_D32(d, 0), TA_D32(d, 32), TA_D32(d, 64));
TA_VALUES(true, "bf16", 192, 96, TA_LIST_96, "%96", "%97", "%98", "%99", "%100", "%101",
          TA_D32(d, 0), TA_D32(d, 32), TA_D32(d, 64));
TA_VALUES(false, "f16", 256, 128, TA_LIST_128, "%128", "%129", "%130", "%131", "%132", "%133",
          TA_D32(d, 0), TA_D32(d, 32), TA_D32(d, 64), TA_D32(d, 96));
TA_VALUES(true, "bf16", 256, 128, TA_LIST_128, "%128", "%129", "%130", "%131", "%132", "%133",
          TA_D32(d, 0), TA_D32(d, 32), TA_D32(d, 64), TA_D32(d, 96));
#undef TA_VALUES

#endif
