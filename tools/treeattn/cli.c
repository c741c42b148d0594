/* SPDX-License-Identifier: Apache-2.0 */
/* Messages and exit statuses, so that every subcommand fails in the same words. */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "cli_internal.h"

static char command_name[32];

void cli_set_command(const char *name) {
  (void)snprintf(command_name, sizeof command_name, "%s", name);
}

/* Names from files and arguments end up in messages; they must not be able to drive the terminal. */
static void put_escaped(const char *text, FILE *stream) {
  for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; ++c) {
    if (*c == '\n') {
      (void)fputs("\\n", stream);
    } else if (*c < 0x20 || *c == 0x7f) {
      (void)fprintf(stream, "\\x%02x", (unsigned)*c);
    } else {
      (void)fputc(*c, stream);
    }
  }
}

static void report(const char *format, va_list arguments) {
  char message[4096];
  (void)vsnprintf(message, sizeof message, format, arguments);
  cli_progress_hide();
  (void)fflush(stdout);
  (void)fprintf(stderr, "treeattn%s%s: ", command_name[0] != '\0' ? " " : "", command_name);
  put_escaped(message, stderr);
  (void)fputc('\n', stderr);
}

int cli_error(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  report(format, arguments);
  va_end(arguments);
  return CLI_FAILURE;
}

int cli_try_help(void) {
  const char *space = command_name[0] != '\0' ? " " : "";
  (void)fprintf(stderr, "Try 'treeattn%s%s --help' for more information.\n", space, command_name);
  return CLI_USAGE;
}

int cli_usage_error(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  report(format, arguments);
  va_end(arguments);
  return cli_try_help();
}

int cli_library_error(const char *subject, const treeattn_error *error) {
  if (subject != NULL) {
    return cli_error("%s: %s", subject, error->message);
  }
  return cli_error("%s", error->message);
}

int cli_out_of_memory(void) {
  return cli_error("out of memory");
}

int cli_finish(int status) {
  errno = 0;
  if ((fflush(stdout) != 0 || ferror(stdout)) && status == CLI_OK) {
    return cli_error("standard output: %s", errno != 0 ? strerror(errno) : "write error");
  }
  return status;
}
