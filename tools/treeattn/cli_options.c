/* SPDX-License-Identifier: Apache-2.0 */
/* Values of options, parsed whole: what strtol lets pass (blanks, trailing text, overflow) is refused here. */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum parse_result { PARSE_OK, PARSE_NOT_A_NUMBER, PARSE_OUT_OF_RANGE } parse_result;

/* Up to `end`, which need not be a NUL. */
static parse_result parse_i64(const char *text, const char *end, int64_t minimum, int64_t maximum, int64_t *value) {
  const char *at = text;
  bool negative = false;
  if (at < end && (*at == '-' || *at == '+')) {
    negative = *at == '-';
    ++at;
  }
  if (at == end) {
    return PARSE_NOT_A_NUMBER;
  }
  for (const char *digit = at; digit < end; ++digit) {
    if (!isdigit((unsigned char)*digit)) {
      return PARSE_NOT_A_NUMBER;
    }
  }
  /* The negative side has room for one more value than the positive side. */
  int64_t result = 0;
  for (; at < end; ++at) {
    const int64_t digit = *at - '0';
    if (result < (INT64_MIN + digit) / 10) {
      return PARSE_OUT_OF_RANGE;
    }
    result = result * 10 - digit;
  }
  if (!negative) {
    if (result == INT64_MIN) {
      return PARSE_OUT_OF_RANGE;
    }
    result = -result;
  }
  if (result < minimum || result > maximum) {
    return PARSE_OUT_OF_RANGE;
  }
  *value = result;
  return PARSE_OK;
}

static bool report_i64(const char *option, const char *text, int length, parse_result result, int64_t minimum,
                       int64_t maximum) {
  if (result == PARSE_NOT_A_NUMBER) {
    (void)cli_usage_error("option --%s: '%.*s' is not a whole number", option, length, text);
  } else if (maximum == INT64_MAX && minimum != INT64_MIN) {
    (void)cli_usage_error("option --%s: %.*s is out of range: at least %" PRId64 " is needed, below 2^63", option,
                          length, text, minimum);
  } else {
    (void)cli_usage_error("option --%s: %.*s is out of range: from %" PRId64 " to %" PRId64 " is possible", option,
                          length, text, minimum, maximum);
  }
  return false;
}

/* Precision of "%.*s" for as much of a text as a message should show. */
static int shown_length(size_t length) {
  return length > 200 ? 200 : (int)length;
}

bool cli_parse_i64(const char *option, const char *text, int64_t minimum, int64_t maximum, int64_t *value) {
  const size_t length = strlen(text);
  const parse_result result = parse_i64(text, text + length, minimum, maximum, value);
  return result == PARSE_OK || report_i64(option, text, shown_length(length), result, minimum, maximum);
}

bool cli_parse_f64(const char *option, const char *text, double minimum, double maximum, double *value) {
  char *end = NULL;
  errno = 0;
  const double result = strtod(text, &end);
  /* strtod skips blanks and knows hexadecimal and "nan(...)"; what people type has none of these. */
  const bool plain = text[0] != '\0' && strspn(text, "+-.0123456789eE") == strlen(text);
  const bool infinite = strcmp(text, "inf") == 0 || strcmp(text, "-inf") == 0;
  if ((!plain && !infinite) || end == text || *end != '\0' || isnan(result)) {
    (void)cli_usage_error("option --%s: '%s' is not a number", option, text);
    return false;
  }
  const bool overflowed = errno == ERANGE && isinf(result);
  if (overflowed || result < minimum || result > maximum) {
    (void)cli_usage_error("option --%s: %s is out of range: from %g to %g is possible", option, text, minimum, maximum);
    return false;
  }
  *value = result;
  return true;
}

bool cli_parse_choice(const char *option, const char *text, const char *const *choices, int *index) {
  char list[256] = "";
  size_t used = 0;
  for (int c = 0; choices[c] != NULL; ++c) {
    if (strcmp(text, choices[c]) == 0) {
      *index = c;
      return true;
    }
    const char *joint = c == 0 ? "" : choices[c + 1] == NULL ? " or " : ", ";
    const int written = snprintf(list + used, sizeof list - used, "%s%s", joint, choices[c]);
    if (written > 0) {
      used += (size_t)written < sizeof list - used ? (size_t)written : sizeof list - used - 1;
    }
  }
  (void)cli_usage_error("option --%s: '%s' is not one of %s", option, text, list);
  return false;
}

bool cli_parse_i64_list(const char *option, const char *text, int64_t minimum, int64_t maximum, int64_t **values,
                        size_t *num_values) {
  size_t count = 1;
  for (const char *c = text; *c != '\0'; ++c) {
    count += *c == ',';
  }
  int64_t *list = cli_malloc_array(count, sizeof *list);
  if (list == NULL) {
    (void)cli_out_of_memory();
    return false;
  }
  const char *item = text;
  for (size_t n = 0; n < count; ++n) {
    const size_t length = strcspn(item, ",");
    const parse_result result = parse_i64(item, item + length, minimum, maximum, &list[n]);
    if (result != PARSE_OK) {
      cli_free(list);
      return report_i64(option, item, shown_length(length), result, minimum, maximum);
    }
    item += length + 1;
  }
  *values = list;
  *num_values = count;
  return true;
}
