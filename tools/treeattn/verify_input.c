/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors a verification takes from its file, and in which shapes. */
#include "verify_input.h"

#include "cli.h"

/* A matrix [num_nodes][vocab_size] as it stands in the file; f64 becomes f32. */
static bool get_rows(verify_input *input, const char *name, treeattn_verify_rows *rows) {
  const int64_t num_nodes = input->request.num_nodes;
  const int64_t vocab_size = input->vocab_size;
  const int64_t shape[2] = {num_nodes, vocab_size > 0 ? vocab_size : IO_FREE};
  const io_tensor *tensor;
  if (!io_get(input->file, name, IO_KV | IO_F64, 2, shape, &tensor)) {
    return false;
  }
  if (tensor->shape[1] < 1) {
    (void)cli_error("%s: tensor '%s': a vocabulary has 1 token or more", io_path(input->file), name);
    return false;
  }
  input->vocab_size = tensor->shape[1];
  *rows = (treeattn_verify_rows)TREEATTN_VERIFY_ROWS_INIT;
  rows->data = tensor->data;
  rows->bytes = tensor->bytes;
  rows->dtype = io_dtype_to_treeattn(tensor->dtype);
  if (tensor->dtype == IO_F64) {
    const float *values;
    if (!io_get_f32(input->file, name, 2, shape, &tensor, &values)) {
      return false;
    }
    rows->data = values;
    rows->bytes = (size_t)tensor->num_elements * sizeof *values;
    rows->dtype = TREEATTN_F32;
  }
  return true;
}

/* What says what follows each node: the tensor that was asked for, or the one that the method can use. */
static bool get_target(verify_input *input, verify_source source) {
  const bool greedy = input->request.method == TREEATTN_VERIFY_GREEDY || input->request.temperature == 0;
  const bool has_logits = io_find(input->file, "logits") != NULL;
  const bool has_probs = io_find(input->file, "probs") != NULL;
  if (source == VERIFY_FROM_ANY) {
    if (greedy && io_find(input->file, "argmax") != NULL) {
      source = VERIFY_FROM_ARGMAX;
    } else if (has_logits && has_probs) {
      (void)cli_error("%s: has both logits and probs: choose with --from", io_path(input->file));
      return false;
    } else if (has_logits || has_probs) {
      source = has_logits ? VERIFY_FROM_LOGITS : VERIFY_FROM_PROBS;
    } else {
      (void)cli_error("%s: has no tensor %slogits or probs", io_path(input->file), greedy ? "argmax, " : "");
      return false;
    }
  }
  switch (source) {
    case VERIFY_FROM_LOGITS: return get_rows(input, "logits", &input->request.logits);
    case VERIFY_FROM_PROBS: return get_rows(input, "probs", &input->request.probs);
    default: return io_get_i32(input->file, "argmax", 1, &input->request.num_nodes, NULL, &input->request.argmax);
  }
}

/* [M], or [R][M]: R verifications. */
static bool get_uniforms(verify_input *input) {
  const io_tensor *tensor = io_find(input->file, "uniforms");
  input->num_runs = 1;
  if (tensor == NULL) {
    return true;
  }
  const int64_t shape[2] = {IO_FREE, IO_FREE};
  const int num_dims = tensor->num_dims == 2 ? 2 : 1;
  if (!io_get_f32(input->file, "uniforms", num_dims, shape, &tensor, &input->uniforms)) {
    return false;
  }
  input->num_runs = num_dims == 2 ? tensor->shape[0] : 1;
  input->num_uniforms = tensor->shape[num_dims - 1];
  return true;
}

bool verify_input_open(const char *path, verify_source source, verify_input *input) {
  if (!io_open(path, NULL, &input->file)) {
    return false;
  }
  treeattn_verify_request *request = &input->request;
  const io_tensor *tensor;
  const int64_t any = IO_FREE;
  if (!io_get_i32(input->file, "parents", 1, &any, &tensor, &request->parents)) {
    return false;
  }
  request->num_nodes = tensor->num_elements;
  if (!io_get_i32(input->file, "tokens", 1, &request->num_nodes, NULL, &request->tokens) ||
      !get_target(input, source)) {
    return false;
  }
  const bool drawn =
      request->method == TREEATTN_VERIFY_RESIDUAL || request->method == TREEATTN_VERIFY_WITHOUT_REPLACEMENT;
  if (drawn && request->temperature != 0 && !get_rows(input, "draft_probs", &request->draft_probs)) {
    return false;
  }
  return get_uniforms(input);
}

void verify_input_close(verify_input *input) {
  io_close(input->file);
  input->file = NULL;
}
