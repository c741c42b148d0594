/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of logits or probabilities as weights in double, and what is asked of weights. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "elementary.h"
#include "verify.h"
#include "verify_math.h"

enum { BLOCK = TA_WEIGHTS_BLOCK };

/* Elements begin .. begin + BLOCK - 1 of the row as f32; what lies beyond the row becomes `padding`. */
static void load_block(const void *row, treeattn_dtype dtype, int64_t vocab_size, int64_t begin, float padding,
                       float *block) {
  const int64_t count = ta_min_i64(BLOCK, vocab_size - begin);
  if (dtype == TREEATTN_F32) {
    memcpy(block, (const float *)row + begin, (size_t)count * sizeof *block);
  } else if (dtype == TREEATTN_F16) {
    for (int64_t t = 0; t < count; t++) {
      block[t] = ta_float_from_f16(((const uint16_t *)row)[begin + t]);
    }
  } else {
    for (int64_t t = 0; t < count; t++) {
      block[t] = ta_float_from_bf16(((const uint16_t *)row)[begin + t]);
    }
  }
  for (int64_t t = count; t < BLOCK; t++) {
    block[t] = padding;
  }
}

static float load_one(const void *row, treeattn_dtype dtype, int64_t index) {
  switch (dtype) {
    case TREEATTN_F16: return ta_float_from_f16(((const uint16_t *)row)[index]);
    case TREEATTN_BF16: return ta_float_from_bf16(((const uint16_t *)row)[index]);
    default: return ((const float *)row)[index];
  }
}

static double block_sum(const double *values) {
  double lanes[8] = {0};
  for (int t = 0; t < BLOCK; t += 8) {
    for (int lane = 0; lane < 8; lane++) {
      lanes[lane] += values[t + lane];
    }
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

void ta_weights_sum_block(ta_weights *weights, int64_t block) {
  weights->sums[block] = block_sum(weights->values + block * BLOCK);
}

void ta_weights_sum(ta_weights *weights) {
  double total = 0;
  for (int64_t block = 0; block < weights->num_blocks; block++) {
    total += weights->sums[block];
  }
  weights->total = total;
}

void ta_weights_remove(ta_weights *weights, int64_t token) {
  weights->values[token] = 0;
  ta_weights_sum_block(weights, token / BLOCK);
  ta_weights_sum(weights);
}

/* Each x <= 0 becomes e^x. Loops of one length without control flow, since only those are sure to become vectors. */
static void exp_block(double *values) {
  double exponents[BLOCK];
  for (int t = 0; t < BLOCK; t++) {
    exponents[t] = values[t];
    values[t] = values[t] < TA_EXP_DOUBLE_LOWEST ? TA_EXP_DOUBLE_LOWEST : values[t];
  }
  for (int t = 0; t < BLOCK; t++) {
    values[t] = ta_exp_double_in_range(values[t]);
  }
  for (int t = 0; t < BLOCK; t++) {
    values[t] = exponents[t] < TA_EXP_DOUBLE_LOWEST ? 0.0 : values[t];
  }
}

treeattn_status ta_logits_row_argmax(const void *row, treeattn_dtype dtype, int64_t vocab_size, ta_row_name name,
                                     int32_t *token, treeattn_error *error) {
  const ta_argmax top = ta_row_argmax(row, dtype, vocab_size);
  if (top.kind == TA_ARGMAX_NAN) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_VALUE, "%s%s[%lld][%ld] is NaN: node %lld has no next token",
                   name.prefix, name.field, (long long)name.node, (long)top.index, (long long)name.node);
  }
  if (top.kind == TA_ARGMAX_NOTHING) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_VALUE,
                   "%s%s[%lld] is -infinity everywhere: node %lld has no next token", name.prefix, name.field,
                   (long long)name.node, (long long)name.node);
  }
  *token = top.index;
  return TREEATTN_OK;
}

treeattn_status ta_weights_from_logits(ta_weights *weights, const void *row, treeattn_dtype dtype, int64_t vocab_size,
                                       float temperature, ta_row_name name, treeattn_error *error) {
  int32_t top = 0;
  const treeattn_status status = ta_logits_row_argmax(row, dtype, vocab_size, name, &top, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  const double largest = (double)load_one(row, dtype, top);
  const double inverse = 1.0 / (double)temperature;
  float logits[BLOCK];
  for (int64_t block = 0; block < weights->num_blocks; block++) {
    double *values = weights->values + block * BLOCK;
    load_block(row, dtype, vocab_size, block * BLOCK, -INFINITY, logits);
    if (largest > (double)FLT_MAX) {
      for (int t = 0; t < BLOCK; t++) {
        values[t] = logits[t] > FLT_MAX ? 1.0 : 0.0;
      }
    } else {
      for (int t = 0; t < BLOCK; t++) {
        values[t] = ((double)logits[t] - largest) * inverse;
      }
      exp_block(values);
    }
    ta_weights_sum_block(weights, block);
  }
  ta_weights_sum(weights);
  return TREEATTN_OK;
}

/* Loads a block of probabilities and refuses what is none. */
static treeattn_status load_probs(const void *row, treeattn_dtype dtype, int64_t vocab_size, int64_t begin,
                                  ta_row_name name, float *probs, treeattn_error *error) {
  load_block(row, dtype, vocab_size, begin, 0.0f, probs);
  int bad = 0;
  for (int t = 0; t < BLOCK; t++) {
    bad |= !(probs[t] >= 0.0f && probs[t] <= FLT_MAX);
  }
  if (!bad) {
    return TREEATTN_OK;
  }
  int t = 0;
  while (probs[t] >= 0.0f && probs[t] <= FLT_MAX) {
    t++;
  }
  if (probs[t] != probs[t]) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_VALUE, "%s%s[%lld][%lld] is NaN", name.prefix, name.field,
                   (long long)name.node, (long long)(begin + t));
  }
  return ta_fail(error, TREEATTN_ERROR_INVALID_VALUE, "%s%s[%lld][%lld] is %g: a probability is 0 or more, and finite",
                 name.prefix, name.field, (long long)name.node, (long long)(begin + t), (double)probs[t]);
}

static treeattn_status fail_zero_row(ta_row_name name, treeattn_error *error) {
  return ta_fail(error, TREEATTN_ERROR_INVALID_VALUE, "%s%s[%lld] sums to 0: node %lld has no next token", name.prefix,
                 name.field, (long long)name.node, (long long)name.node);
}

treeattn_status ta_weights_from_probs(ta_weights *weights, const void *row, treeattn_dtype dtype, int64_t vocab_size,
                                      bool zero_allowed, ta_row_name name, treeattn_error *error) {
  float probs[BLOCK];
  for (int64_t block = 0; block < weights->num_blocks; block++) {
    double *values = weights->values + block * BLOCK;
    const treeattn_status status = load_probs(row, dtype, vocab_size, block * BLOCK, name, probs, error);
    if (status != TREEATTN_OK) {
      return status;
    }
    for (int t = 0; t < BLOCK; t++) {
      values[t] = (double)probs[t];
    }
    ta_weights_sum_block(weights, block);
  }
  ta_weights_sum(weights);
  return weights->total > 0 || zero_allowed ? TREEATTN_OK : fail_zero_row(name, error);
}

treeattn_status ta_probs_row_argmax(const void *row, treeattn_dtype dtype, int64_t vocab_size, ta_row_name name,
                                    int32_t *token, treeattn_error *error) {
  float probs[BLOCK];
  for (int64_t begin = 0; begin < vocab_size; begin += BLOCK) {
    const treeattn_status status = load_probs(row, dtype, vocab_size, begin, name, probs, error);
    if (status != TREEATTN_OK) {
      return status;
    }
  }
  const ta_argmax top = ta_row_argmax(row, dtype, vocab_size);
  if (!(load_one(row, dtype, top.index) > 0)) {
    return fail_zero_row(name, error);
  }
  *token = top.index;
  return TREEATTN_OK;
}

int32_t ta_weights_draw(const ta_weights *weights, double uniform) {
  const double target = uniform * weights->total;
  double before = 0;
  int64_t block = 0;
  int64_t chosen = 0;
  for (; block < weights->num_blocks; block++) {
    if (weights->sums[block] > 0) {
      chosen = block;
      if (before + weights->sums[block] > target) {
        break;
      }
      before += weights->sums[block];
    }
  }
  /* Within the block the sum runs token by token and may end a rounding error below the block's own: the last
   * token with a weight then takes what is missing. */
  const double *values = weights->values + chosen * BLOCK;
  int token = 0;
  for (int t = 0; t < BLOCK; t++) {
    if (values[t] > 0) {
      token = t;
      before += values[t];
      if (before > target) {
        break;
      }
    }
  }
  return (int32_t)(chosen * BLOCK + token);
}

double ta_weights_exp_minus_entropy(const ta_weights *weights) {
  double sum = 0; /* of p ln p, the term of p = 0 being 0 */
  double terms[BLOCK];
  for (int64_t block = 0; block < weights->num_blocks; block++) {
    const double *values = weights->values + block * BLOCK;
    for (int t = 0; t < BLOCK; t++) {
      const double p = values[t] / weights->total;
      terms[t] = p * ta_log_double(p < DBL_MIN ? DBL_MIN : p);
    }
    sum += block_sum(terms);
  }
  return ta_exp_double(sum < 0 ? sum : 0.0);
}
