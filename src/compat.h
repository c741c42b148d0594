/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of the two one-call operators and the plan arguments that they amount to, for every back end. */
#ifndef TA_COMPAT_H
#define TA_COMPAT_H

#include <treeattn/attention.h>

#include "common.h"

typedef struct ta_compat_tensors {
  const treeattn_tensor *q, *k, *v, *mask, *output, *tmp; /* flash_attn_vec: mask is not looked at */
} ta_compat_tensors;

/* Checks everything and fills *request and *args, which points to it; num_workers is left at its default. */
TA_HIDDEN treeattn_status ta_compat_tree(const treeattn_tree_attention_params *params, const ta_compat_tensors *t,
                                         treeattn_request *request, treeattn_plan_args *args, treeattn_error *error);
TA_HIDDEN treeattn_status ta_compat_flash(const treeattn_flash_attn_vec_params *params, const ta_compat_tensors *t,
                                          treeattn_request *request, treeattn_plan_args *args, treeattn_error *error);

#endif
