/* SPDX-License-Identifier: Apache-2.0 */
/* What a device found wrong with a request, in words. */
#include <stdio.h>

#include <treeattn/treeattn_cuda_step.h>

#include "../common.h"

typedef struct words {
  const char *field;
  const char *reason;
} words;

#define NO_PROBABILITY "a probability is 0 or more, and finite"
#define NO_TOKEN "it is no token of the vocabulary"
#define SUMS_TO_ZERO "the row sums to 0: the node has no next token"

static words words_of(const treeattn_cuda_outcome *outcome) {
  const bool has_index = outcome->index >= 0;
  const bool has_column = outcome->column >= 0;
  switch (outcome->field) {
    case TREEATTN_CUDA_FIELD_OFFSETS:
      return (words){"offsets", "they fall, leave num_nodes, or hold more nodes than max_nodes"};
    case TREEATTN_CUDA_FIELD_PARENTS:
      return (words){"parents", "a parent is -1 for a root or the index of an earlier node"};
    case TREEATTN_CUDA_FIELD_PREFIX_LENS:
      return (words){"prefix_len", outcome->status == TREEATTN_ERROR_OVERFLOW
                                       ? "with the nodes it does not fit int32"
                                       : "it is negative, or its slots exceed the capacity"};
    case TREEATTN_CUDA_FIELD_MASK:
      return (words){outcome->column == 0 ? "mask_bits" : (outcome->column == 1 ? "mask_bool" : "mask_f32"),
                     "row_stride is below the columns"};
    case TREEATTN_CUDA_FIELD_SETTINGS:
      return (words){"settings", "method, temperature, epsilon or delta is out of range, or needs other arrays"};
    case TREEATTN_CUDA_FIELD_TOKENS: return (words){"tokens", NO_TOKEN};
    case TREEATTN_CUDA_FIELD_ARGMAX: return (words){"argmax", NO_TOKEN};
    case TREEATTN_CUDA_FIELD_LOGITS:
      return (words){"logits", has_column ? "it is NaN: the node has no next token"
                                          : "the row is -infinity everywhere: the node has no next token"};
    case TREEATTN_CUDA_FIELD_PROBS: return (words){"probs", has_column ? NO_PROBABILITY : SUMS_TO_ZERO};
    case TREEATTN_CUDA_FIELD_DRAFT_PROBS:
      return (words){"draft_probs", has_index ? NO_PROBABILITY : "they are absent, but the method needs them"};
    case TREEATTN_CUDA_FIELD_UNIFORMS:
      return (words){"uniforms", has_index ? "a uniform lies in [0, 1)" : "they are absent, but the method needs them"};
    case TREEATTN_CUDA_FIELD_NUM_PATH: return (words){"num_path", "it lies in 0 to num_nodes"};
    case TREEATTN_CUDA_FIELD_PATH: return (words){"path", "a path increases and stays below num_nodes"};
    case TREEATTN_CUDA_FIELD_CACHE_INDEX:
      return (words){"cache_index",
                     has_index ? "that request has nodes in the same sequence" : "there is no such sequence"};
    case TREEATTN_CUDA_FIELD_PAGE_TABLE:
      return (words){"page_table", has_column ? "that request has nodes in the same page" : "there is no such page"};
    case TREEATTN_CUDA_FIELD_TENSORS: return (words){"tensors", "tensor and group: the pointer is NULL"};
    default: return (words){"outcome", "it was not written by this library"};
  }
}

treeattn_status treeattn_cuda_outcome_explain(const treeattn_cuda_outcome *outcome, int64_t request,
                                              treeattn_error *error) {
  if (outcome == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "outcome is NULL");
  }
  if (outcome->status == TREEATTN_OK) {
    return TREEATTN_OK;
  }
  char index[16] = "";
  char column[16] = "";
  if (outcome->index >= 0) {
    (void)snprintf(index, sizeof index, "[%ld]", (long)outcome->index);
  }
  if (outcome->column >= 0 && outcome->field != TREEATTN_CUDA_FIELD_MASK) {
    (void)snprintf(column, sizeof column, "[%ld]", (long)outcome->column);
  }
  const words say = words_of(outcome);
  return ta_fail(error, (treeattn_status)outcome->status, "requests[%lld].%s%s%s: %s", (long long)request, say.field,
                 index, column, say.reason);
}
