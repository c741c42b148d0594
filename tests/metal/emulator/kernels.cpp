/* SPDX-License-Identifier: Apache-2.0 */
/* The library's kernels, the files that a GPU gets, compiled for the executor. */
#include "register.h"

#include "../../../src/metal/attend.metal"
#include "../../../src/metal/combine.metal"

REGISTER_CONSTANT(head_dim);
REGISTER_CONSTANT(head_dim_v);
REGISTER_CONSTANT(kv_type);
REGISTER_KERNEL(treeattn_attend);
REGISTER_KERNEL(treeattn_combine);
