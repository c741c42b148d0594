/* SPDX-License-Identifier: Apache-2.0 */
/* What every subcommand needs: errors in one voice, option parsing with range checks, memory, progress, output. */
#ifndef TREEATTN_TOOL_CLI_H
#define TREEATTN_TOOL_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <treeattn/base.h>

/* ---- exit statuses ---------------------------------------------------------------------------------------- */

enum {
  CLI_OK = 0,
  CLI_FAILURE = 1, /* the input is bad, a file cannot be read or written, a check failed */
  CLI_USAGE = 2    /* the command line is wrong */
};

/*
 * A subcommand is `int cmd_<name>(int argc, char **argv)` and returns an exit status. argv[0] is "treeattn <name>",
 * so that getopt_long's own messages come out right; after one of them ('?' or ':') return cli_try_help().
 */
int cmd_attend(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_compact(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_tree(int argc, char **argv);
int cmd_verify(int argc, char **argv);

/* ---- messages --------------------------------------------------------------------------------------------- */

#if defined(__GNUC__)
#define CLI_PRINTF(format_index, first) __attribute__((format(printf, format_index, first)))
#else
#define CLI_PRINTF(format_index, first)
#endif

/* Names the subcommand for the messages below, e.g. "attend"; "" outside of one. Called by main. */
void cli_set_command(const char *name);

/* "treeattn attend: message" on stderr, after clearing a progress bar. Returns CLI_FAILURE: `return cli_error("...")`.
 * Control characters in the message come out escaped, since names from files end up in it. */
int cli_error(const char *format, ...) CLI_PRINTF(1, 2);

/* The same followed by a hint to --help. Returns CLI_USAGE. */
int cli_usage_error(const char *format, ...) CLI_PRINTF(1, 2);

/* Only the hint, for after a message of getopt_long. Returns CLI_USAGE. */
int cli_try_help(void);

/* "treeattn attend: IN: message", the message being the library's; `subject` may be NULL. Returns CLI_FAILURE. */
int cli_library_error(const char *subject, const treeattn_error *error);

/* Flushes stdout and turns a failed write (a full disk, a closed pipe) into an error. Every command that prints
 * ends with `return cli_finish(CLI_OK)`; a status other than CLI_OK passes through. */
int cli_finish(int status);

/* ---- options ---------------------------------------------------------------------------------------------- */

/* Each parses the whole of `text` or reports "option --name: ..." as a usage error and returns false, leaving *value
 * alone. `option` is the option's name without dashes. Decimal only; blanks, empty text, overflow and NaN are
 * errors. */
bool cli_parse_i64(const char *option, const char *text, int64_t minimum, int64_t maximum, int64_t *value);
bool cli_parse_f64(const char *option, const char *text, double minimum, double maximum, double *value);
/* `choices` ends with NULL; *index becomes the place of the choice that equals `text`. */
bool cli_parse_choice(const char *option, const char *text, const char *const *choices, int *index);
/* "0,2,5": *values is from cli_malloc (release with cli_free), at least one number. */
bool cli_parse_i64_list(const char *option, const char *text, int64_t minimum, int64_t maximum, int64_t **values,
                        size_t *num_values);

/* ---- memory ----------------------------------------------------------------------------------------------- */

/* As malloc, but a size of 0 gives a valid pointer, and num * size cannot wrap. NULL when out of memory, without a
 * message. */
void *cli_malloc(size_t bytes);
void *cli_malloc_array(size_t num, size_t size);
void *cli_realloc_array(void *pointer, size_t num, size_t size);
char *cli_strdup(const char *text);
/* printf into memory from cli_malloc; NULL when out of memory. */
char *cli_format(const char *format, ...) CLI_PRINTF(1, 2);
void cli_free(void *pointer);
/* How many of the allocations above have failed so far: where a library reports memory and nonsense alike. */
uint64_t cli_num_failed_allocations(void);
/* "out of memory", as an error. Returns CLI_FAILURE. */
int cli_out_of_memory(void);

#if defined(TREEATTN_TESTING)
/* The n-th allocation from now on fails, once (1: the next one; 0: none). jansson allocates through the same gate
 * after cli_hook_json(). Test builds only. */
void cli_fail_allocation(uint64_t n);
/* Allocations not yet freed. */
int64_t cli_live_allocations(void);
#endif
/* Makes jansson allocate with cli_malloc. Called by main. */
void cli_hook_json(void);

/* ---- progress and time ------------------------------------------------------------------------------------ */

/* Seconds on a clock that only moves forward. */
double cli_seconds(void);

/* A bar on stderr: only when stderr is a terminal, and only once a second has passed since the start. */
typedef struct cli_progress {
  const char *label;
  double total;
  double started, shown;
  bool terminal, visible;
} cli_progress;

void cli_progress_start(cli_progress *progress, const char *label, double total);
/* Cheap enough to call often. Call it from one thread. */
void cli_progress_update(cli_progress *progress, double done);
/* Takes the bar away again. Safe to call twice, or without a start on a zeroed struct. */
void cli_progress_end(cli_progress *progress);

/* ---- JSON ------------------------------------------------------------------------------------------------- */

/* Prints `json` and a newline on stdout and releases it; indent 0 gives one line. NULL reports out of memory.
 * Returns CLI_OK or CLI_FAILURE. Key order is the order of insertion; reals print so that they read back the same. */
int cli_json_print(json_t *json, int indent);
/* A number; NaN and infinities, which JSON lacks, become strings "nan", "inf", "-inf". */
json_t *cli_json_real(double value);

#endif
