/* SPDX-License-Identifier: Apache-2.0 */
/* What verification can refuse before it reads a row. */
#include <float.h>
#include <stdio.h>

#include "tree.h"
#include "verify.h"

void ta_verify_prefix(char prefix[TA_VERIFY_PREFIX_BYTES], int64_t index) {
  (void)snprintf(prefix, TA_VERIFY_PREFIX_BYTES, "requests[%lld].", (long long)index);
}

treeattn_status ta_rows_check(const treeattn_verify_rows *rows, int64_t num_rows, int64_t vocab_size, const char *name,
                              treeattn_error *error) {
  const treeattn_dtype dtype = ta_rows_dtype(rows);
  const size_t element_bytes = treeattn_dtype_bytes(dtype);
  if (element_bytes == 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s.dtype is %d: f32, f16 and bf16 are served", name,
                   (int)dtype);
  }
  if (vocab_size < 1 || vocab_size > INT32_MAX) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "vocab_size is %lld: it lies in 1 to 2147483647",
                   (long long)vocab_size);
  }
  if (rows->row_stride != 0 && rows->row_stride < vocab_size) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                   "%s.row_stride is %lld: it must be at least vocab_size, %lld", name, (long long)rows->row_stride,
                   (long long)vocab_size);
  }
  if (num_rows == 0) {
    return TREEATTN_OK;
  }
  const int64_t stride = rows->row_stride == 0 ? vocab_size : rows->row_stride;
  int64_t elements;
  if (!ta_mul_i64(num_rows - 1, stride, &elements) || !ta_add_i64(elements, vocab_size, &elements) ||
      (uint64_t)elements > (uint64_t)(SIZE_MAX / element_bytes)) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "%s: %lld rows with a stride of %lld do not fit in 64 bits", name,
                   (long long)num_rows, (long long)stride);
  }
  const size_t needed = (size_t)elements * element_bytes;
  if (rows->bytes < needed) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "%s.bytes is %zu: %lld rows of %lld %s need %zu", name,
                   rows->bytes, (long long)num_rows, (long long)vocab_size, treeattn_dtype_name(dtype), needed);
  }
  if ((uintptr_t)rows->data % element_bytes != 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s.data is not aligned to its element size, %zu", name,
                   element_bytes);
  }
  return TREEATTN_OK;
}

/* "requests[3].parents" */
enum { FIELD_BYTES = TA_VERIFY_PREFIX_BYTES + 16 };

static treeattn_status fail_field(const char *prefix, const char *text, treeattn_error *error) {
  return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s%s", prefix, text);
}

static treeattn_status check_parameters(const treeattn_verify_request *request, const char *prefix,
                                        treeattn_error *error) {
  if ((int)request->method < TREEATTN_VERIFY_GREEDY || (int)request->method > TREEATTN_VERIFY_TYPICAL_LOSSY) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%smethod is %d: there is no such method", prefix,
                   (int)request->method);
  }
  const float temperature = request->temperature;
  if (request->method == TREEATTN_VERIFY_GREEDY) {
    return TREEATTN_OK;
  }
  if (!(temperature >= 0 && temperature <= FLT_MAX)) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%stemperature is %g: it is 0 or more, and finite", prefix,
                   (double)temperature);
  }
  if (request->probs.data != NULL && temperature != 0 && temperature != 1) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                   "%stemperature is %g: probs already have one, so that it is 0 or 1", prefix, (double)temperature);
  }
  if (request->method == TREEATTN_VERIFY_TYPICAL_LOSSY) {
    const float epsilon = request->typical_epsilon;
    const float delta = request->typical_delta;
    if (!(epsilon >= 0 && epsilon <= FLT_MAX && delta >= 0 && delta <= FLT_MAX)) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                     "%stypical_epsilon is %g and typical_delta %g: both are 0 or more, and finite", prefix,
                     (double)epsilon, (double)delta);
    }
  }
  return TREEATTN_OK;
}

static treeattn_status check_rows(const treeattn_verify_request *request, int64_t vocab_size, const char *prefix,
                                  treeattn_error *error) {
  const treeattn_verify_method method = ta_verify_effective_method(request);
  const int num_sources = (request->argmax != NULL) + (request->logits.data != NULL) + (request->probs.data != NULL);
  if (num_sources != 1) {
    return fail_field(prefix,
                      num_sources == 0 ? "argmax, logits and probs are all absent: one of them is needed"
                                       : "argmax, logits and probs: exactly one of them may be given",
                      error);
  }
  char field[FIELD_BYTES];
  if (request->argmax != NULL) {
    if (method != TREEATTN_VERIFY_GREEDY) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%smethod is %s: it needs logits or probs, not argmax",
                     prefix, treeattn_verify_method_name(method));
    }
    return TREEATTN_OK;
  }
  const bool has_logits = request->logits.data != NULL;
  (void)snprintf(field, sizeof field, "%s%s", prefix, has_logits ? "logits" : "probs");
  treeattn_status status =
      ta_rows_check(has_logits ? &request->logits : &request->probs, request->num_nodes, vocab_size, field, error);
  const ta_verify_rule *rule = ta_verify_rule_of(method);
  if (status != TREEATTN_OK || rule == NULL || !rule->uses_draft) {
    return status;
  }
  if (request->draft_probs.data == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%sdraft_probs.data is NULL: method %s needs it", prefix,
                   treeattn_verify_method_name(method));
  }
  (void)snprintf(field, sizeof field, "%sdraft_probs", prefix);
  return ta_rows_check(&request->draft_probs, request->num_nodes, vocab_size, field, error);
}

static treeattn_status check_tokens(const treeattn_verify_request *request, int64_t vocab_size, const char *prefix,
                                    treeattn_error *error) {
  if (request->tokens == NULL) {
    return fail_field(prefix, "tokens is NULL", error);
  }
  for (int64_t i = 1; i < request->num_nodes; i++) {
    const int32_t token = request->tokens[i];
    if (token < 0 || (vocab_size > 0 && token >= vocab_size)) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                     vocab_size > 0 ? "%stokens[%lld] is %ld: it lies in 0 to vocab_size - 1, %lld"
                                    : "%stokens[%lld] is %ld: it is 0 or more",
                     prefix, (long long)i, (long)token, (long long)(vocab_size - 1));
    }
  }
  return TREEATTN_OK;
}

static treeattn_status check_request(const treeattn_verify_request *request, int64_t vocab_size, const char *prefix,
                                     treeattn_error *error) {
  char field[FIELD_BYTES];
  (void)snprintf(field, sizeof field, "%sparents", prefix);
  treeattn_status status = ta_tree_check_parents(request->num_nodes, request->parents, field, error);
  if (status != TREEATTN_OK || request->num_nodes == 0) {
    return status;
  }
  status = check_parameters(request, prefix, error);
  if (status == TREEATTN_OK) {
    status = check_rows(request, vocab_size, prefix, error);
  }
  if (status == TREEATTN_OK) {
    status = check_tokens(request, vocab_size, prefix, error);
  }
  if (status == TREEATTN_OK && ta_verify_rule_of(ta_verify_effective_method(request)) != NULL &&
      (request->num_uniforms < 0 || (request->num_uniforms > 0 && request->uniforms == NULL))) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%snum_uniforms is %lld%s", prefix,
                   (long long)request->num_uniforms,
                   request->num_uniforms < 0 ? ": it must not be negative" : " and uniforms NULL");
  }
  return status;
}

static treeattn_status check_result(const treeattn_verify_result *result, int64_t num_nodes, int64_t index,
                                    treeattn_error *error) {
  if (num_nodes > 0 && (result->path == NULL || result->tokens == NULL)) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "results[%lld].%s is NULL", (long long)index,
                   result->path == NULL ? "path" : "tokens");
  }
  if (result->capacity < num_nodes) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "results[%lld].capacity is %lld: %lld nodes need as many",
                   (long long)index, (long long)result->capacity, (long long)num_nodes);
  }
  if (result->decisions != NULL && result->decisions_capacity < num_nodes) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL,
                   "results[%lld].decisions_capacity is %lld: %lld nodes need as many", (long long)index,
                   (long long)result->decisions_capacity, (long long)num_nodes);
  }
  return TREEATTN_OK;
}

static treeattn_status check_struct_size(const char *name, size_t bytes, size_t expected, treeattn_error *error) {
  if (bytes < expected) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is %zu: this version needs %zu", name, bytes, expected);
  }
  return TREEATTN_OK;
}

treeattn_status ta_verify_check_args(const treeattn_verify_args *args, treeattn_error *error) {
  if (args == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "args is NULL");
  }
  treeattn_status status = check_struct_size("struct_size", args->struct_size, sizeof *args, error);
  if (status == TREEATTN_OK) {
    status = check_struct_size("request_bytes", args->request_bytes, sizeof(treeattn_verify_request), error);
  }
  if (status == TREEATTN_OK) {
    status = check_struct_size("result_bytes", args->result_bytes, sizeof(treeattn_verify_result), error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  if (args->vocab_size < 0 || args->vocab_size > INT32_MAX) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "vocab_size is %lld: it lies in 0 to 2147483647",
                   (long long)args->vocab_size);
  }
  if (args->num_workers < 0 || args->num_workers > 1024) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_workers is %lld: it lies in 0 to 1024",
                   (long long)args->num_workers);
  }
  if (args->num_requests < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_requests is %lld: it must not be negative",
                   (long long)args->num_requests);
  }
  if (args->num_requests > 0 && (args->requests == NULL || args->results == NULL)) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is NULL: num_requests is %lld",
                   args->requests == NULL ? "requests" : "results", (long long)args->num_requests);
  }
  for (int64_t index = 0; index < args->num_requests && status == TREEATTN_OK; index++) {
    const treeattn_verify_request *request = ta_verify_request_at(args, index);
    char prefix[TA_VERIFY_PREFIX_BYTES];
    ta_verify_prefix(prefix, index);
    status = check_request(request, args->vocab_size, prefix, error);
    if (status == TREEATTN_OK) {
      status = check_result(ta_verify_result_at(args, index), request->num_nodes, index, error);
    }
  }
  return status;
}
