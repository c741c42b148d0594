/* SPDX-License-Identifier: Apache-2.0 */
/* Stage 0 of the fast mode for head_dim 576, head_dim_v 512. */
#include "fast_shared_instance.cuh"

TA_FAST_SHARED_INSTANCE(576, 512)
