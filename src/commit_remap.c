/* SPDX-License-Identifier: Apache-2.0 */
/* Commits and rewinds that change what rows are called, not where they are. */
#include <treeattn/tree.h>

#include "commit_plan.h"

treeattn_status treeattn_commit_remap(int64_t num_nodes, const int32_t *path, int64_t path_len, const int32_t *slots,
                                      int32_t *remapped, int32_t *scratch, treeattn_error *error) {
  if (num_nodes < 0 || num_nodes > TREEATTN_TREE_MAX_NODES) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_nodes is %lld: it must be from 0 to %lld",
                   (long long)num_nodes, (long long)TREEATTN_TREE_MAX_NODES);
  }
  if (path_len < 0 || path_len > num_nodes) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "path_len is %lld: it must be from 0 to num_nodes (%lld)",
                   (long long)path_len, (long long)num_nodes);
  }
  if (num_nodes == 0) {
    return TREEATTN_OK;
  }
  if (remapped == NULL || scratch == NULL || (path_len > 0 && path == NULL)) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is NULL: num_nodes is %lld, path_len %lld",
                   remapped == NULL ? "remapped" : (scratch == NULL ? "scratch" : "path"), (long long)num_nodes,
                   (long long)path_len);
  }
  int32_t *reader = scratch;
  const treeattn_status status = ta_commit_check_path(path, path_len, num_nodes, reader, -1, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  for (int64_t i = 0; i < path_len; i++) {
    remapped[i] = slots == NULL ? path[i] : slots[path[i]];
  }
  int64_t next = path_len;
  for (int64_t node = 0; node < num_nodes; node++) {
    if (reader[node] < 0) {
      remapped[next++] = slots == NULL ? (int32_t)node : slots[node];
    }
  }
  return TREEATTN_OK;
}

static int64_t pages_of(int64_t num_slots, int64_t page_size) {
  return num_slots == 0 ? 0 : (num_slots - 1) / page_size + 1;
}

treeattn_status treeattn_commit_rewind(int64_t kv_seq_len, int64_t num_tokens, int64_t page_size,
                                       treeattn_commit_rewound *rewound, treeattn_error *error) {
  if (kv_seq_len < 0 || page_size < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is %lld: it must not be negative",
                   kv_seq_len < 0 ? "kv_seq_len" : "page_size", (long long)(kv_seq_len < 0 ? kv_seq_len : page_size));
  }
  if (num_tokens < 0 || num_tokens > kv_seq_len) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_tokens is %lld: it must be from 0 to kv_seq_len (%lld)",
                   (long long)num_tokens, (long long)kv_seq_len);
  }
  if (rewound == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "rewound is NULL");
  }
  rewound->kv_seq_len = kv_seq_len - num_tokens;
  rewound->num_pages = 0;
  rewound->num_freed_pages = 0;
  if (page_size > 0) {
    rewound->num_pages = pages_of(rewound->kv_seq_len, page_size);
    rewound->num_freed_pages = pages_of(kv_seq_len, page_size) - rewound->num_pages;
  }
  return TREEATTN_OK;
}
