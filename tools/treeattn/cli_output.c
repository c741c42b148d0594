/* SPDX-License-Identifier: Apache-2.0 */
/* What a command shows while and after it works: the clock, the progress bar, JSON. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* clock_gettime and TIOCGWINSZ under -std=c11 */
#endif

#include "cli.h"

#include <math.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli_internal.h"

/* The one bar that is on the terminal, if any. */
static cli_progress *visible_progress;

double cli_seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static const double first_shown_after = 1.0;
static const double shown_every = 0.1;

void cli_progress_hide(void) {
  if (visible_progress != NULL) {
    (void)fputs("\r\033[K", stderr);
    visible_progress->visible = false;
    visible_progress = NULL;
  }
}

void cli_progress_start(cli_progress *progress, const char *label, double total) {
  const double now = cli_seconds();
  *progress = (cli_progress){.label = label, .total = total, .started = now, .shown = now};
  progress->terminal = isatty(STDERR_FILENO) == 1;
}

static int terminal_columns(void) {
  struct winsize size;
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return size.ws_col;
  }
  return 80;
}

static void draw(const cli_progress *progress, double done, double elapsed) {
  const double share = progress->total > 0.0 ? fmin(fmax(done / progress->total, 0.0), 1.0) : 0.0;
  char left[32] = "";
  if (share > 0.01) {
    const double seconds = elapsed * (1.0 - share) / share;
    (void)snprintf(left, sizeof left, " %.0f s left", ceil(seconds));
  }
  /* Label, percent and time around the bar take up to 40 columns; the bar gets what is over. */
  int width = terminal_columns() - 40;
  width = width < 0 ? 0 : width > 50 ? 50 : width;
  const int filled = (int)(share * (double)width);
  (void)fprintf(stderr, "\r\033[K%.16s ", progress->label);
  for (int c = 0; c < width; ++c) {
    (void)fputc(c < filled ? '#' : '.', stderr);
  }
  (void)fprintf(stderr, " %3.0f %%%s", 100.0 * share, left);
  (void)fflush(stderr);
}

void cli_progress_update(cli_progress *progress, double done) {
  if (!progress->terminal) {
    return;
  }
  const double now = cli_seconds();
  if (now - progress->started < first_shown_after || now - progress->shown < shown_every) {
    return;
  }
  if (visible_progress != progress) {
    cli_progress_hide();
  }
  progress->shown = now;
  progress->visible = true;
  visible_progress = progress;
  draw(progress, done, now - progress->started);
}

void cli_progress_end(cli_progress *progress) {
  if (visible_progress == progress && progress->visible) {
    cli_progress_hide();
  }
  progress->terminal = false;
}

json_t *cli_json_real(double value) {
  if (isnan(value)) {
    return json_string("nan");
  }
  if (isinf(value)) {
    return json_string(value > 0 ? "inf" : "-inf");
  }
  return json_real(value);
}

int cli_json_print(json_t *json, int indent) {
  if (json == NULL) {
    return cli_out_of_memory();
  }
  const size_t flags = JSON_PRESERVE_ORDER | JSON_ENCODE_ANY | (indent > 0 ? (size_t)JSON_INDENT(indent) : 0);
  const int failed = json_dumpf(json, stdout, flags);
  json_decref(json);
  if (failed != 0) {
    return ferror(stdout) ? cli_finish(CLI_OK) : cli_out_of_memory();
  }
  (void)fputc('\n', stdout);
  return CLI_OK;
}
