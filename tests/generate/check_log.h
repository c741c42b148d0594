/* SPDX-License-Identifier: Apache-2.0 */
/* What a comparison has counted, and the file that keeps it line by line, so that hours of work survive an end. */
#ifndef TESTS_CHECK_LOG_H
#define TESTS_CHECK_LOG_H

#include <stdbool.h>
#include <stdint.h>

typedef struct check_tally {
  int64_t num_tokens, num_steps, num_nodes, wrong_tokens, num_logits, wrong_logits;
  double seconds;
} check_tally;

/* One prompt decoded one way. */
typedef struct check_case {
  const char *prompt;
  int64_t num_tokens, threads, tree;
  const char *attention;
  bool unfilled;
} check_case;

void check_tally_add(check_tally *sum, const check_tally *one);

/* False if the file (NULL: none) has no line of this case. */
bool check_log_find(const char *path, const check_case *about, check_tally *tally);
/* Appends a line; false if it cannot be written whole. Nothing to do without a path. */
bool check_log_append(const char *path, const check_case *about, const check_tally *tally);

#endif
