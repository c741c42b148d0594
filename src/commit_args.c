/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of a commit plan, field by field: sizes and ranges, not yet the content of paths and tables. */
#include <string.h>

#include <treeattn/tree.h>

#include "commit_plan.h"

treeattn_status ta_commit_copy_struct(void *copy, size_t copy_bytes, const void *given, size_t given_bytes,
                                      const char *field, treeattn_error *error) {
  if (given_bytes < copy_bytes) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is %zu: it must be at least %zu", field, given_bytes,
                   copy_bytes);
  }
  const unsigned char *bytes = given;
  for (size_t b = copy_bytes; b < given_bytes; b++) {
    if (bytes[b] != 0) {
      return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "%s is %zu and byte %zu is set: this version knows %zu bytes",
                     field, given_bytes, b, copy_bytes);
    }
  }
  memcpy(copy, given, copy_bytes);
  return TREEATTN_OK;
}

treeattn_status ta_commit_check_args(treeattn_commit_args *args, const treeattn_commit_args *given,
                                     treeattn_error *error) {
  if (given == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "args is NULL");
  }
  treeattn_status status =
      ta_commit_copy_struct(args, sizeof *args, given, given->struct_size, "args.struct_size", error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (args->num_requests < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_requests is %lld: it must not be negative",
                   (long long)args->num_requests);
  }
  if (args->num_requests > 0 && args->requests == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "requests is NULL: num_requests is %lld",
                   (long long)args->num_requests);
  }
  if (args->page_size < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "page_size is %lld: it must not be negative",
                   (long long)args->page_size);
  }
  if (args->page_size == 0 && args->kv_capacity < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "kv_capacity is %lld: it must not be negative",
                   (long long)args->kv_capacity);
  }
  if (args->page_size == 0 && args->num_sequences < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_sequences is %lld: it must not be negative",
                   (long long)args->num_sequences);
  }
  if (args->page_size > 0 && args->num_pages < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_pages is %lld: it must not be negative",
                   (long long)args->num_pages);
  }
  if (args->request_bytes == 0) {
    args->request_bytes = sizeof(treeattn_commit_request);
  }
  if (args->num_sequences == 0) {
    args->num_sequences = args->num_requests;
  }
  return TREEATTN_OK;
}

/* The requests may be larger than this version's, but not beyond what it knows. */
treeattn_status ta_commit_get_request(const treeattn_commit_args *args, int64_t r, treeattn_commit_request *request,
                                      treeattn_error *error) {
  const unsigned char *base = (const unsigned char *)args->requests;
  return ta_commit_copy_struct(request, sizeof *request, base + (size_t)r * args->request_bytes, args->request_bytes,
                               "request_bytes", error);
}

treeattn_status ta_commit_check_request(const treeattn_commit_args *args, int64_t r,
                                        const treeattn_commit_request *request, treeattn_error *error) {
  const long long id = (long long)r;
  if (request->prefix_len < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "requests[%lld].prefix_len is %lld: it must not be negative",
                   id, (long long)request->prefix_len);
  }
  if (request->num_nodes < 0 || request->num_nodes > TREEATTN_TREE_MAX_NODES) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                   "requests[%lld].num_nodes is %lld: it must be from 0 to %lld", id, (long long)request->num_nodes,
                   (long long)TREEATTN_TREE_MAX_NODES);
  }
  if (request->path_len < 0 || request->path_len > request->num_nodes) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                   "requests[%lld].path_len is %lld: it must be from 0 to num_nodes (%lld)", id,
                   (long long)request->path_len, (long long)request->num_nodes);
  }
  if (request->path_len > 0 && request->path == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "requests[%lld].path is NULL: path_len is %lld", id,
                   (long long)request->path_len);
  }
  int64_t num_slots = 0;
  if (!ta_add_i64(request->prefix_len, request->num_nodes, &num_slots)) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "requests[%lld].prefix_len is %lld: with %lld nodes it overflows",
                   id, (long long)request->prefix_len, (long long)request->num_nodes);
  }
  if (request->num_nodes == 0) {
    return TREEATTN_OK;
  }
  if (args->page_size == 0) {
    if (num_slots > args->kv_capacity) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                     "requests[%lld] has %lld slots (prefix_len %lld + num_nodes %lld): kv_capacity is %lld", id,
                     (long long)num_slots, (long long)request->prefix_len, (long long)request->num_nodes,
                     (long long)args->kv_capacity);
    }
    if (request->cache_index < 0 || request->cache_index >= args->num_sequences) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                     "requests[%lld].cache_index is %lld: it must be at least 0 and less than num_sequences (%lld)", id,
                     (long long)request->cache_index, (long long)args->num_sequences);
    }
    return TREEATTN_OK;
  }
  const int64_t num_pages = (num_slots - 1) / args->page_size + 1;
  if (request->page_table_len < num_pages) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                   "requests[%lld].page_table_len is %lld: %lld slots in pages of %lld need %lld", id,
                   (long long)request->page_table_len, (long long)num_slots, (long long)args->page_size,
                   (long long)num_pages);
  }
  if (request->page_table == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "requests[%lld].page_table is NULL: page_size is %lld", id,
                   (long long)args->page_size);
  }
  return TREEATTN_OK;
}
