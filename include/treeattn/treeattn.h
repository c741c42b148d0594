/* SPDX-License-Identifier: Apache-2.0 */
/*
 * treeattn: tree attention for speculative decoding. This header is the whole C API; the parts can also be included
 * alone.
 *
 *   base.h       status, errors, element types                       conventions of the whole API
 *   tree.h       draft trees: building, checking, deriving           parent[] is the only truth
 *   attention.h  the operator: plan once per step, run per layer
 *   verify.h     which drafts are accepted                           greedy, stochastic, typical
 *   commit.h     moving an accepted path to where decoding goes on   contiguous and paged caches
 */
#ifndef TREEATTN_TREEATTN_H
#define TREEATTN_TREEATTN_H

#include <treeattn/attention.h>
#include <treeattn/base.h>
#include <treeattn/commit.h>
#include <treeattn/tree.h>
#include <treeattn/verify.h>

#endif
