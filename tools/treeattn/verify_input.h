/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a verification step, from a file to a request. */
#ifndef TREEATTN_TOOL_VERIFY_INPUT_H
#define TREEATTN_TOOL_VERIFY_INPUT_H

#include <treeattn/verify.h>

#include "io.h"

typedef enum verify_source { VERIFY_FROM_ANY, VERIFY_FROM_ARGMAX, VERIFY_FROM_LOGITS, VERIFY_FROM_PROBS } verify_source;

typedef struct verify_input {
  io_file *file;
  treeattn_verify_request request; /* without uniforms */
  int64_t vocab_size;
  const float *uniforms; /* [num_runs][num_uniforms]; NULL: none in the file */
  int64_t num_runs, num_uniforms;
} verify_input;

/* Opens the file and fills request, whose method and temperature are set. False after reporting. */
bool verify_input_open(const char *path, verify_source source, verify_input *input);
void verify_input_close(verify_input *input);

#endif
