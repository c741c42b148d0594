/* SPDX-License-Identifier: Apache-2.0 */
/* The contract in float64, written as naively as it reads. */
#include "oracle.h"

#include <math.h>
#include <string.h>

#include "check.h"
#include "halves.h"

static double score_of(const problem *p, const request_data *request, int node, int head, int slot) {
  int g = head / (p->num_heads / p->num_kv_heads);
  const float *q = request->q + ((int64_t)head * request->num_nodes + node) * p->head_dim;
  int64_t k = ((int64_t)g * request->num_slots + slot) * p->head_dim;
  double dot = 0;
  for (int d = 0; d < p->head_dim; d++) {
    dot += (double)q[d] * (double)element_load(p->kv_dtype, request->k, k + d);
  }
  double s = (double)p->scale * dot;
  return p->softcap > 0 ? (double)p->softcap * tanh(s / (double)p->softcap) : s;
}

void oracle_row(const problem *p, const request_data *request, int node, int head, const uint8_t *sees,
                const float *bias, double *out, double *lse) {
  int g = head / (p->num_heads / p->num_kv_heads);
  double *scores = calloc((size_t)request->num_slots + 1, sizeof *scores);
  double max = -HUGE_VAL;
  bool any = false;
  for (int slot = 0; slot < request->num_slots; slot++) {
    if (sees[slot] != 0) {
      scores[slot] = score_of(p, request, node, head, slot) + (bias == NULL ? 0.0 : (double)bias[slot]);
      max = scores[slot] > max ? scores[slot] : max;
      any = true;
    }
  }
  memset(out, 0, (size_t)p->head_dim_v * sizeof *out);
  *lse = -HUGE_VAL;
  if (any) {
    double sink = p->sinks == NULL ? -HUGE_VAL : (double)p->sinks[head];
    max = sink > max ? sink : max;
    double sum = exp(sink - max);
    for (int slot = 0; slot < request->num_slots; slot++) {
      if (sees[slot] != 0) {
        double weight = exp(scores[slot] - max);
        int64_t v = ((int64_t)g * request->num_slots + slot) * p->head_dim_v;
        sum += weight;
        for (int d = 0; d < p->head_dim_v; d++) {
          out[d] += weight * (double)element_load(p->kv_dtype, request->v, v + d);
        }
      }
    }
    for (int d = 0; d < p->head_dim_v; d++) {
      out[d] /= sum;
    }
    *lse = max + log(sum);
  }
  free(scores);
}

void oracle_all(const problem *p, double *out, double *lse) {
  for (int n = 0; n < p->num_requests; n++) {
    const request_data *request = &p->requests[n];
    uint8_t *sees = calloc((size_t)request->num_nodes * (size_t)request->num_slots + 1, 1);
    tree_visibility(request->parents, request->num_nodes, request->prefix_len, p->window, sees);
    for (int i = 0; i < request->num_nodes; i++) {
      for (int head = 0; head < p->num_heads; head++) {
        oracle_row(p, request, i, head, sees + (size_t)i * (size_t)request->num_slots, NULL, out, lse);
        out += p->head_dim_v;
        lse++;
      }
    }
    free(sees);
  }
}

double relative_error(const float *actual, const double *expected, int64_t count) {
  double difference = 0, norm = 0;
  for (int64_t n = 0; n < count; n++) {
    double delta = (double)actual[n] - expected[n];
    difference += delta * delta;
    norm += expected[n] * expected[n];
  }
  if (!isfinite(difference) || !isfinite(norm)) {
    return HUGE_VAL;
  }
  if (norm == 0.0) {
    return difference == 0.0 ? 0.0 : HUGE_VAL;
  }
  return sqrt(difference / norm);
}

double largest_score(const problem *p) {
  double largest = 0;
  for (int n = 0; n < p->num_requests; n++) {
    const request_data *request = &p->requests[n];
    for (int i = 0; i < request->num_nodes; i++) {
      for (int head = 0; head < p->num_heads; head++) {
        for (int slot = 0; slot < request->num_slots; slot++) {
          double s = fabs(score_of(p, request, i, head, slot));
          largest = s > largest ? s : largest;
        }
      }
    }
  }
  return largest;
}
