/* SPDX-License-Identifier: Apache-2.0 */
/* Stage 1 of the fast mode for head_dim 512, head_dim_v 512. */
#include "fast_finish_instance.cuh"

TA_FAST_FINISH_INSTANCE(512, 512)
