/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The elementary functions and the fold of softmax states in Metal's language, operation for operation as
 * src/elementary.h and src/softmax_state.h have them.
 *
 * Metal's compiler may contract a product and a sum even in its safe mode. So no product here ever feeds an addition other
 * than through fma, and contraction has nothing to take hold of. Nor may fma become an addition behind our back, as it
 * does with a factor of 1: the ones and zeros among its arguments come from the host.
 */
#ifndef TA_METAL_ELEMENTARY
#define TA_METAL_ELEMENTARY

#include <metal_stdlib>
using namespace metal;

#include "params.h"

#define TA_LOG2E_HI 1.44269502f     /* 0x1.715476p+0 */
#define TA_LOG2E_LO 1.92596303e-08f /* 0x1.4ae0c0p-26 */
#define TA_LN2_HI 0.693147182f      /* 0x1.62e430p-1 */
#define TA_LN2_LO -1.90465421e-09f  /* -0x1.05c610p-29 */
#define TA_STATE_MAX_OF_NONE -FLT_MAX
#define TA_QUIET_NAN as_type<float>(0x7fc00000u)

/* 2^x; see ta_exp2 of src/elementary.h. */
inline float exp2_of(float x) {
  const float magic = 12583039.0f; /* 1.5 * 2^23 + 127 */
  const float clamped = x < -127.0f ? -127.0f : x;
  const float shifted = clamped + magic;
  const float f = clamped - (shifted - magic);
  const float scale = as_type<float>(as_type<uint>(shifted) << 23);
  float g = fma(0.000153264715f, f, 0.00133908063f); /* 0x1.416b5ep-13, 0x1.5f082ep-10 */
  g = fma(g, f, 0.00961850584f);                     /* 0x1.3b2de0p-7 */
  g = fma(g, f, 0.0555035993f);                      /* 0x1.c6af7cp-5 */
  g = fma(g, f, 0.240226477f);                       /* 0x1.ebfbdcp-3 */
  g = fma(g, f, 0.693147182f);                       /* 0x1.62e430p-1 */
  return fma(scale, g * f, scale);
}

/* tanh x; see ta_tanh. zero: 0, from the host. */
inline float tanh_of(float x, float zero) {
  const uint sign = as_type<uint>(x) & 0x80000000u;
  const float magnitude = as_type<float>(as_type<uint>(x) & 0x7fffffffu);
  const float u = magnitude * magnitude;
  float poly = fma(-0.00570498733f, u, 0.020639088f); /* -0x1.75e1cep-8, 0x1.52269cp-6 */
  poly = fma(poly, u, -0.0537397154f);                /* -0x1.b83c5ap-5 */
  poly = fma(poly, u, 0.133314416f);                  /* 0x1.110726p-3 */
  poly = fma(poly, u, -0.333332807f);                 /* -0x1.555532p-2 */
  const float small = fma(magnitude * u, poly, magnitude);
  const float limited = magnitude > 10.0f ? 10.0f : magnitude;
  /* A plain product would meet the addition inside exp2. 0x1.715476p+1 */
  const float large = 1.0f - 2.0f / (exp2_of(fma(limited, 2.88539004f, zero)) + 1.0f);
  const float result = magnitude < 0.625f ? small : large;
  return as_type<float>(as_type<uint>(result) | sign);
}

/* ln x for normal x > 0; see ta_log. */
inline float log_of(float x) {
  if (x != x) {
    return x;
  }
  const uint bits = as_type<uint>(x) - 0x3f3504f3u;
  const float e = float(int(bits) >> 23);
  const float m = as_type<float>((bits & 0x007fffffu) + 0x3f3504f3u);
  const float r = m - 1.0f;
  float q = fma(0.0674664229f, r, -0.116756521f); /* 0x1.1457acp-4, -0x1.de3c16p-4 */
  q = fma(q, r, 0.11888162f);                     /* 0x1.e6f06ap-4 */
  q = fma(q, r, -0.124055885f);                   /* -0x1.fc2206p-4 */
  q = fma(q, r, 0.142195523f);                    /* 0x1.233768p-3 */
  q = fma(q, r, -0.166679963f);                   /* -0x1.555c4ep-3 */
  q = fma(q, r, 0.200021192f);                    /* 0x1.99a4b6p-3 */
  q = fma(q, r, -0.250000089f);                   /* -0x1.000006p-2 */
  q = fma(q, r, 0.333333135f);                    /* 0x1.555548p-2 */
  const float y = fma(r * r, fma(r, q, -0.5f), r);
  return fma(e, TA_LN2_HI, fma(e, TA_LN2_LO, y));
}

/* The one NaN that results hold. */
inline float with_one_nan(float x) {
  return x != x ? TA_QUIET_NAN : x;
}

/* ---- states ---- */

struct state_of_row {
  float max, sum; /* empty exactly when sum is 0 */
};

enum { TA_KEEP_A = 0, TA_TAKE_B = 1, TA_JOIN = 2 };

struct join_of_states {
  int kind;
  float weight_a, weight_b;
};

/* Merges b into a and says how their out vectors are joined. An empty side leaves the other bit for bit. */
inline join_of_states join_states(thread state_of_row &a, state_of_row b) {
  join_of_states join = {TA_KEEP_A, 1.0f, 0.0f};
  if (b.sum == 0.0f) {
    return join;
  }
  if (a.sum == 0.0f) {
    a = b;
    join.kind = TA_TAKE_B;
    return join;
  }
  const float larger = a.max > b.max ? a.max : b.max;
  join.kind = TA_JOIN;
  join.weight_a = exp2_of(a.max - larger);
  join.weight_b = exp2_of(b.max - larger);
  a.max = larger;
  a.sum = fma(b.sum, join.weight_b, a.sum * join.weight_a);
  return join;
}

inline float join_outs(join_of_states join, float a, float b) {
  return fma(b, join.weight_b, a * join.weight_a);
}

#endif
