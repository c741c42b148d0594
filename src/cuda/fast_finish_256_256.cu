/* SPDX-License-Identifier: Apache-2.0 */
/* Stage 1 of the fast mode for head_dim 256, head_dim_v 256. */
#include "fast_finish_instance.cuh"

TA_FAST_FINISH_INSTANCE(256, 256)
