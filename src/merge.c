/* SPDX-License-Identifier: Apache-2.0 */
/* Merging finished results over disjoint keys, for callers that split attention themselves. */
#include <fenv.h>

#include "common.h"
#include "softmax_state.h"

#include <treeattn/attention.h>

/* A finished row as a state whose sum is 1 and whose maximum carries the whole lse. */
static ta_state state_of_lse(float lse) {
  if (lse == -INFINITY) {
    return ta_state_empty();
  }
  const float lo = (float)(TA_LOG2E - (double)TA_LOG2E_F);
  const ta_state state = {fmaf(lse, TA_LOG2E_F, lse * lo), 1.0f};
  return state;
}

treeattn_status treeattn_merge_states(int64_t num_rows, int64_t head_dim_v, float *out_a, float *lse_a,
                                      const float *out_b, const float *lse_b, treeattn_error *error) {
  int64_t elements = 0;
  if (num_rows < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_rows is %lld: must not be negative",
                   (long long)num_rows);
  }
  if (head_dim_v < 1) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "head_dim_v is %lld: must be 1 or more",
                   (long long)head_dim_v);
  }
  if (!ta_mul_i64(num_rows, head_dim_v, &elements)) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "num_rows (%lld) * head_dim_v (%lld) overflows", (long long)num_rows,
                   (long long)head_dim_v);
  }
  if (num_rows > 0 && (out_a == NULL || lse_a == NULL || out_b == NULL || lse_b == NULL)) {
    const char *name = out_a == NULL ? "out_a" : lse_a == NULL ? "lse_a" : out_b == NULL ? "out_b" : "lse_b";
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is NULL", name);
  }
  fenv_t environment; /* as for attention: the caller's rounding and flushing must not change a bit */
  (void)fegetenv(&environment);
  (void)fesetenv(FE_DFL_ENV);
  for (int64_t r = 0; r < num_rows; ++r) {
    ta_state state = state_of_lse(lse_a[r]);
    const ta_merge how = ta_state_merge(&state, state_of_lse(lse_b[r]));
    float *a = out_a + r * head_dim_v;
    const float *b = out_b + r * head_dim_v;
    switch (how.kind) {
      case TA_MERGE_KEEP_A: continue;
      case TA_MERGE_TAKE_B: lse_a[r] = lse_b[r]; break;
      case TA_MERGE_BOTH: lse_a[r] = ta_state_lse(state); break;
    }
    for (int64_t d = 0; d < head_dim_v; ++d) {
      if (how.kind == TA_MERGE_TAKE_B) {
        a[d] = b[d];
      } else {
        const float joined = fmaf(b[d], how.weight_b, a[d] * how.weight_a) / state.sum;
        a[d] = joined != joined ? ta_quiet_nan() : joined;
      }
    }
  }
  (void)fesetenv(&environment);
  return TREEATTN_OK;
}
