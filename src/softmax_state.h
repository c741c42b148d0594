/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a softmax over a set of keys, {max, sum, out}, as a monoid: the only place that knows the empty row.
 * Scores are in units of log2: a key of score t weighs 2^(t - max).
 */
#ifndef TA_SOFTMAX_STATE_H
#define TA_SOFTMAX_STATE_H

#include <float.h>
#include <stdbool.h>

#include "elementary.h"

/* The maximum over no key. Finite, so that a score of -infinity weighs 2^-infinity = 0 and not 2^NaN. */
#define TA_STATE_MAX_OF_NONE (-FLT_MAX)

/* {max, sum} of one row; `out` (head_dim_v numbers, sum of weight * v) lies beside it. Empty exactly when sum is 0. */
typedef struct ta_state {
  float max;
  float sum;
} ta_state;

TA_FUNCTION ta_state ta_state_empty(void) {
  const ta_state state = {TA_STATE_MAX_OF_NONE, 0.0f};
  return state;
}

TA_FUNCTION bool ta_state_is_empty(ta_state state) {
  return state.sum == 0.0f; /* false for NaN, which must not be dropped */
}

/* How the two `out` vectors are joined: out = fma(out_b, weight_b, out_a * weight_a). */
typedef enum ta_merge_kind { TA_MERGE_KEEP_A, TA_MERGE_TAKE_B, TA_MERGE_BOTH } ta_merge_kind;

typedef struct ta_merge {
  ta_merge_kind kind;
  float weight_a, weight_b;
} ta_merge;

/*
 * Merges b into *a. An empty side leaves the other bit for bit: multiplying it in would turn -0 into +0 and let
 * what an empty side's buffer holds through.
 */
TA_FUNCTION ta_merge ta_state_merge(ta_state *a, ta_state b) {
  ta_merge merge = {TA_MERGE_KEEP_A, 1.0f, 0.0f};
  if (ta_state_is_empty(b)) {
    return merge;
  }
  if (ta_state_is_empty(*a)) {
    *a = b;
    merge.kind = TA_MERGE_TAKE_B;
    merge.weight_a = 0.0f;
    merge.weight_b = 1.0f;
    return merge;
  }
  const float max = a->max > b.max ? a->max : b.max;
  merge.kind = TA_MERGE_BOTH;
  merge.weight_a = ta_exp2(a->max - max);
  merge.weight_b = ta_exp2(b.max - max);
  a->max = max;
  a->sum = fmaf(b.sum, merge.weight_b, a->sum * merge.weight_a);
  return merge;
}

/* The sink of a head joins the denominator as one more key without a value; `sink` is in natural units. */
TA_FUNCTION ta_merge ta_state_merge_sink(ta_state *a, float sink) {
  const float hi = TA_LOG2E_F;
  const float lo = (float)(TA_LOG2E - (double)TA_LOG2E_F);
  const ta_state b = {fmaf(sink, hi, sink * lo), 1.0f};
  return ta_state_merge(a, b);
}

/* ln of the denominator. */
TA_FUNCTION float ta_state_lse(ta_state state) {
  if (ta_state_is_empty(state)) {
    return -INFINITY;
  }
  const float lse = fmaf(state.max, TA_LN2_HI, fmaf(state.max, TA_LN2_LO, ta_log(state.sum)));
  return lse != lse ? ta_quiet_nan() : lse;
}

#endif
