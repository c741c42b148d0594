/* SPDX-License-Identifier: Apache-2.0 */
/* The step's entry points in a build without the CUDA back end: each says so. */
#include <treeattn/treeattn_cuda_step.h>

#include "../common.h"

#define ABSENT ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "this build has no CUDA back end (TREEATTN_CUDA is off)")

treeattn_status treeattn_cuda_outcome_explain(const treeattn_cuda_outcome *outcome, int64_t request,
                                              treeattn_error *error) {
  (void)outcome;
  (void)request;
  return ABSENT;
}

treeattn_status treeattn_cuda_expand(const treeattn_cuda_expand_args *args, treeattn_error *error) {
  (void)args;
  return ABSENT;
}

treeattn_status treeattn_cuda_verify_scratch_bytes(const treeattn_cuda_verify_args *args, size_t *scratch_bytes,
                                                   treeattn_error *error) {
  (void)args;
  (void)scratch_bytes;
  return ABSENT;
}

treeattn_status treeattn_cuda_verify(const treeattn_cuda_verify_args *args, treeattn_error *error) {
  (void)args;
  return ABSENT;
}

treeattn_status treeattn_cuda_commit(const treeattn_cuda_commit_args *args, treeattn_error *error) {
  (void)args;
  return ABSENT;
}
