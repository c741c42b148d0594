/* SPDX-License-Identifier: Apache-2.0 */
/* `treeattn attend --backend cuda`: from host memory to host memory on one GPU. */
#ifndef TREEATTN_TOOL_ATTEND_CUDA_H
#define TREEATTN_TOOL_ATTEND_CUDA_H

#include <treeattn/treeattn_cuda.h>

/* Looks for the device that a run would use, the first one; reports why there is none. Returns an exit status. */
int attend_cuda_find_device(treeattn_cuda_device *device);

/* Copies what `run` points to, attends, and copies out and lse back. *seconds: of the kernels alone, the launch
 * included. Reports what goes wrong. Returns an exit status. */
int attend_cuda_run(const treeattn_plan *plan, const treeattn_run_args *run, double *seconds);

#endif
