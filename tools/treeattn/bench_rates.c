/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the machine's arithmetic, exponential and reading rates. */
#define _GNU_SOURCE 1
#include "bench_rates.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef struct loops {
  const char *name;
  int64_t fmas_per_round;
  float (*multiply_add)(int64_t rounds);
  float (*exponentials)(const float *x, int64_t count);
  float (*read_memory)(const float *x, int64_t count);
} loops;

#if defined(__x86_64__) && defined(__GNUC__)

#define INLINE2 __attribute__((target("avx2,fma"), always_inline)) static inline
#define INLINE5 __attribute__((target("avx512f"), always_inline)) static inline

INLINE2 float sum_avx2(__m256 x) {
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_shuffle_ps(quarter, quarter, 1)));
}

INLINE2 __m256 power_avx2(__m256 p, __m256 t) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}

INLINE5 __m512 power_avx512(__m512 p, __m512 t) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}

INLINE5 float sum_avx512(__m512 x) {
  return _mm512_reduce_add_ps(x);
}

#define NAME(x) avx2_##x
#define NAME_TEXT "avx2"
#define ATTRIBUTE __attribute__((target("avx2,fma")))
#define VECTOR __m256
#define LANES 8
#define CHAINS 12
#define SET1 _mm256_set1_ps
#define LOAD _mm256_loadu_ps
#define ADD _mm256_add_ps
#define SUB _mm256_sub_ps
#define FMA _mm256_fmadd_ps
#define SCALE_BY_POWER power_avx2
#define SUM sum_avx2
#include "bench_rates_tmpl.h"

#define NAME(x) avx512_##x
#define NAME_TEXT "avx512"
#define ATTRIBUTE __attribute__((target("avx512f")))
#define VECTOR __m512
#define LANES 16
#define CHAINS 16
#define SET1 _mm512_set1_ps
#define LOAD _mm512_loadu_ps
#define ADD _mm512_add_ps
#define SUB _mm512_sub_ps
#define FMA _mm512_fmadd_ps
#define SCALE_BY_POWER power_avx512
#define SUM sum_avx512
#include "bench_rates_tmpl.h"

#elif defined(__aarch64__)

static inline float32x4_t power_neon(float32x4_t p, float32x4_t t) {
  return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vreinterpretq_s32_f32(t), 23)));
}

static inline float32x4_t fma_neon(float32x4_t a, float32x4_t b, float32x4_t c) {
  return vfmaq_f32(c, a, b);
}

#define NAME(x) neon_##x
#define NAME_TEXT "neon"
#define ATTRIBUTE
#define VECTOR float32x4_t
#define LANES 4
#define CHAINS 16
#define SET1 vdupq_n_f32
#define LOAD vld1q_f32
#define ADD vaddq_f32
#define SUB vsubq_f32
#define FMA fma_neon
#define SCALE_BY_POWER power_neon
#define SUM vaddvq_f32
#include "bench_rates_tmpl.h"

#endif

static inline float set_portable(float x) {
  return x;
}

static inline float load_portable(const float *p) {
  return *p;
}

static inline float add_portable(float a, float b) {
  return a + b;
}

static inline float sub_portable(float a, float b) {
  return a - b;
}

static inline float fma_portable(float a, float b, float c) {
  return a * b + c;
}

static inline float power_portable(float p, float t) {
  uint32_t p_bits;
  uint32_t t_bits;
  memcpy(&p_bits, &p, sizeof p_bits);
  memcpy(&t_bits, &t, sizeof t_bits);
  p_bits += t_bits << 23;
  memcpy(&p, &p_bits, sizeof p);
  return p;
}

#define NAME(x) portable_##x
#define NAME_TEXT "portable"
#define ATTRIBUTE
#define VECTOR float
#define LANES 1
#define CHAINS 16
#define SET1 set_portable
#define LOAD load_portable
#define ADD add_portable
#define SUB sub_portable
#define FMA fma_portable
#define SCALE_BY_POWER power_portable
#define SUM set_portable
#include "bench_rates_tmpl.h"

/* The strongest that the machine runs: the floor is the machine's, whatever ISA the library was told to use. */
static const loops *loops_for_machine(void) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("avx512f")) {
    return &avx512_loops;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return &avx2_loops;
  }
#elif defined(__aarch64__)
  return &neon_loops;
#endif
  return &portable_loops;
}

/* ---- measuring -------------------------------------------------------------------------------------------- */

enum {
  EXP_COUNT = 4096,
  EXP_PASSES = 64,
  READ_CHUNK = 1 << 18 /* numbers: 1 MiB */,
  MIN_ROUNDS = 3,
  TASKS_PER_THREAD = 64
};
#define MEASURE_SECONDS 0.05

struct bench_rates_meter {
  int64_t num_numbers;
  float x[EXP_COUNT];
  float numbers[]; /* read once a measurement */
};

/* Results go here, so that no loop is dead. */
static volatile float sink;

typedef struct job {
  const bench_rates_meter *meter;
  const loops *loops;
  int64_t rounds;
} job;

static void multiply_add_task(void *arg, size_t index) {
  const job *work = arg;
  (void)index;
  sink = work->loops->multiply_add(work->rounds);
}

static void exponentials_task(void *arg, size_t index) {
  const job *work = arg;
  (void)index;
  float sum = 0.0f;
  for (int pass = 0; pass < EXP_PASSES; pass++) {
    sum += work->loops->exponentials(work->meter->x, EXP_COUNT);
  }
  sink = sum;
}

static void read_task(void *arg, size_t index) {
  const job *work = arg;
  sink = work->loops->read_memory(work->meter->numbers + index * READ_CHUNK, READ_CHUNK);
}

/* Seconds of the fastest round; negative if the executor fails. A round takes milliseconds, more than a time slice, and
 * there are several, so that neighbours on the machine cost what they cost the workloads. */
static double fastest(const treeattn_executor *executor, void (*task)(void *, size_t), job *work, size_t num_tasks) {
  double best = INFINITY;
  const double began = cli_seconds();
  for (int round = 0; round < MIN_ROUNDS || cli_seconds() - began < MEASURE_SECONDS; round++) {
    const double start = cli_seconds();
    if (executor->parallel_for != NULL) {
      if (executor->parallel_for(executor->context, task, work, num_tasks) != 0) {
        return -1.0;
      }
    } else {
      for (size_t n = 0; n < num_tasks; n++) {
        task(work, n);
      }
    }
    const double seconds = cli_seconds() - start;
    best = seconds < best ? seconds : best;
  }
  return best;
}

size_t bench_cache_bytes(void) {
  /* What the kernel says comes first: sysconf counts every cache of a large host even where a guest has one. */
  unsigned long kib = 0;
  FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
  if (file != NULL) {
    if (fscanf(file, "%luK", &kib) != 1) {
      kib = 0;
    }
    fclose(file);
  }
#if defined(_SC_LEVEL3_CACHE_SIZE)
  if (kib == 0) {
    const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    kib = bytes > 0 ? (unsigned long)bytes >> 10 : 0;
  }
#endif
  return kib > 0 ? (size_t)kib << 10 : (size_t)32 << 20;
}

bench_rates_meter *bench_rates_meter_create(void) {
  /* Caches do not evict in order: a buffer a few times their size would still be served from them in part. */
  size_t bytes = 16 * bench_cache_bytes();
  const size_t least = (size_t)256 << 20;
  const size_t most = (size_t)1 << 30;
  bytes = bytes < least ? least : bytes > most ? most : bytes;
  const size_t count = bytes / sizeof(float) / READ_CHUNK * READ_CHUNK;
  bench_rates_meter *meter = cli_malloc(sizeof *meter + count * sizeof(float));
  if (meter == NULL) {
    return NULL;
  }
  meter->num_numbers = (int64_t)count;
  for (int i = 0; i < EXP_COUNT; i++) {
    meter->x[i] = -16.0f * (float)(i % 97) / 97.0f;
  }
  for (size_t i = 0; i < count; i++) { /* written, so that every page is memory of its own */
    meter->numbers[i] = 1.0f;
  }
  return meter;
}

void bench_rates_meter_destroy(bench_rates_meter *meter) {
  cli_free(meter);
}

int bench_rates_measure(bench_rates_meter *meter, const treeattn_executor *executor, int64_t num_threads,
                        bench_rates *rates) {
  job work = {meter, loops_for_machine(), 20000};
  const size_t num_tasks = (size_t)num_threads * TASKS_PER_THREAD;
  const double work_flops = 2.0 * (double)work.loops->fmas_per_round * (double)work.rounds * (double)num_tasks;
  const double work_exps = (double)EXP_COUNT * EXP_PASSES * (double)num_tasks;
  const double work_bytes = (double)meter->num_numbers * sizeof(float);
  const double flops_time = fastest(executor, multiply_add_task, &work, num_tasks);
  const double exps_time = fastest(executor, exponentials_task, &work, num_tasks);
  const double read_time = fastest(executor, read_task, &work, (size_t)meter->num_numbers / READ_CHUNK);
  if (flops_time < 0 || exps_time < 0 || read_time < 0) {
    return -1;
  }
  rates->name = work.loops->name;
  rates->flops = fmax(rates->flops, work_flops / flops_time);
  rates->exps = fmax(rates->exps, work_exps / exps_time);
  rates->bytes = fmax(rates->bytes, work_bytes / read_time);
  return 0;
}
