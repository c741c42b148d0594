/* SPDX-License-Identifier: Apache-2.0 */
/* The contract in float64, written as naively as it reads and sharing nothing with the library. */
#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H

#include "problem.h"

/* One row. sees [num_slots] says which slots; bias [num_slots] or NULL. out [DV]. */
void oracle_row(const problem *p, const request_data *request, int node, int head, const uint8_t *sees,
                const float *bias, double *out, double *lse);

/* All rows of a problem of trees: out [T][H][DV], lse [T][H]. */
void oracle_all(const problem *p, double *out, double *lse);

/* ||actual - expected|| / ||expected||; NaN or infinity on either side gives +infinity. Both zero give 0. */
double relative_error(const float *actual, const double *expected, int64_t count);

/* The largest magnitude of a score in the problem (of trees): scale * q.k, capped. */
double largest_score(const problem *p);

#endif
