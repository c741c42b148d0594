/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a plan on a pool of threads while a progress bar shows how far it is. */
#ifndef TREEATTN_TOOL_ATTEND_RUN_H
#define TREEATTN_TOOL_ATTEND_RUN_H

#include <treeattn/attention.h>

/* As treeattn_attend, which cannot tell how far it is. `pool` may be NULL: the calling thread does everything. */
treeattn_status attend_run(const treeattn_plan *plan, const treeattn_run_args *run, treeattn_pool *pool,
                           treeattn_error *error);

#endif
