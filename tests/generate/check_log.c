/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a long comparison: one line a case, appended as soon as the case has been counted. */
#include "check_log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void check_tally_add(check_tally *sum, const check_tally *one) {
  sum->num_tokens += one->num_tokens;
  sum->num_steps += one->num_steps;
  sum->num_nodes += one->num_nodes;
  sum->wrong_tokens += one->wrong_tokens;
  sum->num_logits += one->num_logits;
  sum->wrong_logits += one->wrong_logits;
  sum->seconds += one->seconds;
}

static const char *filling(const check_case *about) {
  return about->unfilled ? "unfilled" : "full";
}

bool check_log_find(const char *path, const check_case *about, check_tally *tally) {
  FILE *file = path == NULL ? NULL : fopen(path, "r");
  bool found = false;
  char line[512];
  while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
    char prompt[128];
    char attention[16];
    char kind[16];
    int64_t threads = 0;
    int64_t tree = 0;
    int64_t num_tokens = 0;
    check_tally read;
    int length = 0;
    /* A line that was cut by an end of the program has no newline behind its last number. */
    const int fields =
        sscanf(line,
               "%127s %15s %15s n=%" SCNd64 " threads=%" SCNd64 " tree=%" SCNd64 " tokens=%" SCNd64 " differ=%" SCNd64
               " logits=%" SCNd64 " differ=%" SCNd64 " steps=%" SCNd64 " nodes=%" SCNd64 " seconds=%lf%n",
               prompt, attention, kind, &num_tokens, &threads, &tree, &read.num_tokens, &read.wrong_tokens,
               &read.num_logits, &read.wrong_logits, &read.num_steps, &read.num_nodes, &read.seconds, &length);
    found = fields == 13 && line[length] == '\n' && strcmp(prompt, about->prompt) == 0 &&
            strcmp(attention, about->attention) == 0 && strcmp(kind, filling(about)) == 0 &&
            num_tokens == about->num_tokens && threads == about->threads && tree == about->tree;
    if (found) {
      *tally = read;
    }
  }
  if (file != NULL) {
    (void)fclose(file);
  }
  return found;
}

bool check_log_append(const char *path, const check_case *about, const check_tally *tally) {
  if (path == NULL) {
    return true;
  }
  FILE *file = fopen(path, "a");
  if (file == NULL) {
    return false;
  }
  const int printed =
      fprintf(file,
              "%s %s %s n=%" PRId64 " threads=%" PRId64 " tree=%" PRId64 " tokens=%" PRId64 " differ=%" PRId64
              " logits=%" PRId64 " differ=%" PRId64 " steps=%" PRId64 " nodes=%" PRId64 " seconds=%.1f\n",
              about->prompt, about->attention, filling(about), about->num_tokens, about->threads, about->tree,
              tally->num_tokens, tally->wrong_tokens, tally->num_logits, tally->wrong_logits, tally->num_steps,
              tally->num_nodes, tally->seconds);
  return fclose(file) == 0 && printed > 0;
}
