/* SPDX-License-Identifier: Apache-2.0 */
/* The device part of a plan: what the kernels need of it, as one flat piece of memory without pointers. */
#ifndef TA_METAL_DEVICE_PLAN_H
#define TA_METAL_DEVICE_PLAN_H

#include "../plan.h"
#include "params.h"

typedef struct ta_metal_counts {
  int64_t num_tiles, num_leaves, num_keys;
} ta_metal_counts;

/* What the device part of a plan will hold: its header, with header->bytes, and the lengths of its lists. */
TA_HIDDEN treeattn_status ta_metal_measure(const treeattn_plan *plan, ta_metal_counts *counts, ta_metal_plan *header,
                                           treeattn_error *error);
/* Writes it to memory that is aligned to 16 bytes and has room. */
TA_HIDDEN treeattn_status ta_metal_flatten(const treeattn_plan *plan, const ta_metal_counts *counts, void *memory,
                                           treeattn_error *error);

TA_HIDDEN ta_metal_params ta_metal_params_of(const treeattn_plan *plan, bool has_sinks, bool has_lse);

#endif
