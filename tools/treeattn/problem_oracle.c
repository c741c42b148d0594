/* SPDX-License-Identifier: Apache-2.0 */
/* The answer in float64, straight from the definition. */
#include <math.h>
#include <string.h>

#include "problem.h"

static bool is_ancestor_or_self(const problem *p, int64_t ancestor, int64_t node) {
  int64_t j = node;
  while (j > ancestor) {
    j = p->parents[j];
  }
  return j == ancestor;
}

void problem_oracle(const problem *p, int64_t node, int64_t head, double *scores, double *out, double *lse,
                    double *max_score) {
  const int64_t g = head / (p->num_heads / p->num_kv_heads);
  const int64_t num_slots = p->prefix_len + p->num_nodes;
  const int64_t own_position = p->prefix_len + p->depths[node];
  const float *q = p->q + (head * p->num_nodes + node) * p->head_dim;
  double max = p->sinks != NULL ? (double)p->sinks[head] : -INFINITY;
  double magnitude = 0.0;
  bool sees_something = false;
  for (int64_t slot = 0; slot < num_slots; slot++) {
    const int64_t j = slot - p->prefix_len;
    const int64_t position = j < 0 ? slot : p->prefix_len + p->depths[j];
    scores[slot] = -INFINITY;
    if ((j >= 0 && !is_ancestor_or_self(p, j, node)) || (p->window > 0 && own_position - position >= p->window)) {
      continue;
    }
    double dot = 0.0;
    for (int64_t d = 0; d < p->head_dim; d++) {
      dot +=
          (double)q[d] * (double)problem_load_element(p->kv_dtype, p->k, (g * p->kv_capacity + slot) * p->head_dim + d);
    }
    double score = dot * (double)p->scale;
    magnitude = fabs(score) > magnitude ? fabs(score) : magnitude;
    if (p->softcap > 0.0f) {
      score = (double)p->softcap * tanh(score / (double)p->softcap);
    }
    scores[slot] = score;
    max = score > max ? score : max;
    sees_something = true;
  }
  memset(out, 0, (size_t)p->head_dim_v * sizeof *out);
  *lse = -INFINITY;
  if (max_score != NULL) {
    *max_score = magnitude;
  }
  if (!sees_something) {
    return;
  }
  double sum = p->sinks != NULL ? exp((double)p->sinks[head] - max) : 0.0;
  for (int64_t slot = 0; slot < num_slots; slot++) {
    if (isinf(scores[slot])) {
      continue;
    }
    const double weight = exp(scores[slot] - max);
    sum += weight;
    for (int64_t d = 0; d < p->head_dim_v; d++) {
      out[d] +=
          weight * (double)problem_load_element(p->kv_dtype, p->v, (g * p->kv_capacity + slot) * p->head_dim_v + d);
    }
  }
  for (int64_t d = 0; d < p->head_dim_v; d++) {
    out[d] /= sum;
  }
  *lse = max + log(sum);
}

double problem_relative_error(const float *out, const double *expected, int64_t dim) {
  double difference = 0.0;
  double norm = 0.0;
  for (int64_t d = 0; d < dim; d++) {
    const double x = (double)out[d] - expected[d];
    difference += x * x;
    norm += expected[d] * expected[d];
  }
  if (!isfinite(difference) || !isfinite(norm)) {
    return NAN;
  }
  return norm > 0.0 ? sqrt(difference / norm) : sqrt(difference);
}
