/* SPDX-License-Identifier: Apache-2.0 */
/* Which instruction sets this machine runs. */
#include "kernels.h"

#ifdef TREEATTN_TESTING
#include <stdlib.h>
#include <string.h>
#endif

#if defined(TA_HAVE_AVX2) || defined(TA_HAVE_AVX512)
#include <cpuid.h>
#include <stdatomic.h>

/* Not every compiler's __builtin_cpu_supports knows this one. What it needs of the system comes with AVX. */
static bool cpu_has_f16c(void) {
  static _Atomic int known = 0; /* asking takes microseconds in a virtual machine, and each plan asks */
  const int answer = atomic_load_explicit(&known, memory_order_relaxed);
  if (answer != 0) {
    return answer == 1;
  }
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  const bool has = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
  atomic_store_explicit(&known, has ? 1 : 2, memory_order_relaxed);
  return has;
}

static bool cpu_has(treeattn_isa isa) {
  __builtin_cpu_init();
  if (isa == TREEATTN_ISA_AVX2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
  }
  if (isa == TREEATTN_ISA_AVX512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && cpu_has_f16c();
  }
  return false;
}
#endif

/* Test builds only: TREEATTN_CPU names the strongest instruction set that may be seen. */
static bool masked(treeattn_isa isa) {
#ifdef TREEATTN_TESTING
  const char *limit = getenv("TREEATTN_CPU");
  if (limit != NULL) {
    if (strcmp(limit, "scalar") == 0) {
      return isa != TREEATTN_ISA_SCALAR;
    }
    if (strcmp(limit, "avx2") == 0) {
      return isa == TREEATTN_ISA_AVX512;
    }
  }
#endif
  (void)isa;
  return false;
}

const ta_kernels *ta_kernels_for(treeattn_isa isa) {
  if (masked(isa)) {
    return NULL;
  }
#ifdef TA_HAVE_AVX2
  if (isa == TREEATTN_ISA_AVX2 && cpu_has(isa)) {
    return &ta_kernels_avx2;
  }
#endif
#ifdef TA_HAVE_AVX512
  if (isa == TREEATTN_ISA_AVX512 && cpu_has(isa)) {
    return &ta_kernels_avx512;
  }
#endif
#ifdef TA_HAVE_NEON
  if (isa == TREEATTN_ISA_NEON) {
    return &ta_kernels_neon;
  }
#endif
  return NULL;
}

const char *treeattn_isa_name(treeattn_isa isa) {
  switch (isa) {
    case TREEATTN_ISA_AUTO: return "auto";
    case TREEATTN_ISA_SCALAR: return "scalar";
    case TREEATTN_ISA_AVX2: return "avx2";
    case TREEATTN_ISA_AVX512: return "avx512";
    case TREEATTN_ISA_NEON: return "neon";
  }
  return "unknown";
}

int treeattn_isa_available(treeattn_isa isa) {
  return isa == TREEATTN_ISA_AUTO || isa == TREEATTN_ISA_SCALAR || ta_kernels_for(isa) != NULL;
}

treeattn_isa treeattn_isa_detect(void) {
  static const treeattn_isa strongest_first[] = {TREEATTN_ISA_AVX512, TREEATTN_ISA_AVX2, TREEATTN_ISA_NEON};
  for (size_t n = 0; n < sizeof strongest_first / sizeof *strongest_first; ++n) {
    if (ta_kernels_for(strongest_first[n]) != NULL) {
      return strongest_first[n];
    }
  }
  return TREEATTN_ISA_SCALAR;
}
