/* SPDX-License-Identifier: Apache-2.0 */
/* Stage 1 of the fast mode for head_dim 64, head_dim_v 64. */
#include "fast_finish_instance.cuh"

TA_FAST_FINISH_INSTANCE(64, 64)
