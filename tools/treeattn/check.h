/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of `treeattn check` share: the machine's executors and ISAs, counts for each promise, and one way to
 * attend. */
#ifndef TREEATTN_TOOL_CHECK_H
#define TREEATTN_TOOL_CHECK_H

#include "cli.h"
#include "problem.h"

/* One line of the report. */
typedef struct check_line {
  const char *name;
  char what[160];
  const char *unit; /* what is counted: "rows" */
  int64_t compared;
  int64_t differing;
  char first[200]; /* the first difference in words */
} check_line;

enum {
  CHECK_P1,
  CHECK_P2,
  CHECK_P3,
  CHECK_P4,
  CHECK_P5,
  CHECK_P6,
  CHECK_P7,
  CHECK_P8,
  CHECK_ACCURACY,
  CHECK_NUM_LINES
};
enum { CHECK_NUM_TEAMS = 3, CHECK_MAX_ISAS = 4 };

typedef struct check_context {
  bool quick;
  uint64_t random;                     /* state of problem_random */
  int64_t team_sizes[CHECK_NUM_TEAMS]; /* 1, 2, 7 */
  treeattn_executor teams[CHECK_NUM_TEAMS];
  treeattn_isa isa;                  /* the one under test */
  treeattn_isa isas[CHECK_MAX_ISAS]; /* all that this machine runs, scalar first */
  size_t num_isas;
  check_line lines[CHECK_NUM_LINES];
  double worst_error, worst_bound; /* of the output whose error comes closest to its bound */
  const char *trial;               /* which request is being checked, for messages */
  cli_progress progress;
} check_context;

/* Counts one comparison; the first failure of a line keeps its words. */
void check_count(check_context *c, int line, bool same, const char *format, ...) CLI_PRINTF(4, 5);

/* ---- attending one request in some way --------------------------------------------------------------------- */

typedef enum check_encoding {
  CHECK_PARENTS,
  CHECK_CHAIN, /* only for a problem that is one */
  CHECK_INTERVALS,
  CHECK_DENSE,
  CHECK_BOOL,
  CHECK_BITS,
  CHECK_DENSE_SQUARE, /* the last N columns only */
  CHECK_BOOL_SQUARE,
  CHECK_BITS_SQUARE,
  CHECK_NUM_ENCODINGS
} check_encoding;

/* Fills the mask's fields of `request`; returns the memory behind them for cli_free, or NULL when out of memory. */
void *check_encode_mask(const problem *p, check_encoding encoding, treeattn_request *request);

/* How a request is handed to the library. Zeros: alone, contiguous, parents, one thread. */
typedef struct check_way {
  treeattn_isa isa;
  int team; /* index of check_context.teams */
  check_encoding encoding;
  int64_t page_size;  /* 0: contiguous */
  int64_t num_before; /* other requests of the batch, random ones */
  int64_t num_after;
  const int32_t *query_nodes; /* rows that are not asked for are left alone in `out` */
  int64_t num_queries;
  /* Written over K and V of these nodes' slots, over their query rows, and over prefix slots below poison_prefix. */
  const unsigned char *poison_nodes; /* [N] or NULL */
  int64_t poison_prefix;
  float poison;
} check_way;

/*
 * Attends `p` and gathers out [N][H][DV] and lse [N][H]. Slots that hold no data and pages that no request owns are
 * filled with NaN, and outputs lie between canaries; a canary that died counts as a difference of P4. An exit status.
 */
int check_attend(check_context *c, const problem *p, const check_way *way, float *out, float *lse);

/* Counts the rows of node `i` (or of all nodes, for -1) that carry the same bits in both answers. */
void check_compare(check_context *c, int line, const problem *p, int64_t node, const float *out, const float *lse,
                   const float *expected_out, const float *expected_lse, const char *what);

/* ---- the promises ------------------------------------------------------------------------------------------ */

/* Exit statuses: not CLI_OK only where something broke that is no difference. */
int check_request(check_context *c, const problem *p); /* P2 to P6 and accuracy */
int check_parity(check_context *c);                    /* P1 */
int check_refusals(check_context *c);                  /* P7 */
int check_verification(check_context *c);              /* P8 */

#endif
