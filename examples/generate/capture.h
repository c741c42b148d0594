/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what attention was given in one step, for the command line's attend, check and bench. */
#ifndef GENERATE_CAPTURE_H
#define GENERATE_CAPTURE_H

#include "session.h"
#include "tokenizer.h"

typedef struct gen_capture {
  const char *path; /* a .safetensors file */
  const char *model_name;
  const int64_t *layers;
  size_t num_layers;
  int64_t at_step; /* -1: the step that accepts most */
  bool with_logits;
  const gen_tokenizer *tokenizer;
  const gen_session *session;

  int64_t best_path; /* of what has been written so far */
  bool written;
} gen_capture;

/* Called before compaction; forward->kept_queries must be set. Reports its own failures through cli_error. */
bool gen_capture_step(gen_capture *capture, const gen_step *step);

#endif
