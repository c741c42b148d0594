/* SPDX-License-Identifier: Apache-2.0 */
/* The exact mode over f16 caches. */
#include "exact_launch.cuh"

template cudaError_t ta_exact::launch<TREEATTN_F16>(const ta_cuda_params &params, int num_multiprocessors,
                                                   int64_t num_rows, cudaStream_t stream);
