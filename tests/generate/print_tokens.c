/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the tokens of texts, for compare_tokenizer.py: each text is a line of its hexadecimal bytes on standard input. */
#include <cli.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "tokenizer.h"

enum { MAX_LINE = 1 << 20 };

static int print_all(const gen_tokenizer *tokenizer) {
  static char line[MAX_LINE];
  static char text[MAX_LINE / 2];
  static char back[MAX_LINE];
  static int32_t tokens[MAX_LINE / 2];
  while (fgets(line, sizeof line, stdin) != NULL) {
    const size_t length = strcspn(line, "\n") / 2;
    for (size_t b = 0; b < length; ++b) {
      const char digits[3] = {line[2 * b], line[2 * b + 1], '\0'};
      text[b] = (char)strtoul(digits, NULL, 16);
    }
    int64_t num = 0;
    treeattn_error error;
    if (gen_tokenizer_encode(tokenizer, text, length, false, tokens, MAX_LINE / 2, &num, &error) != TREEATTN_OK) {
      return cli_library_error(NULL, &error);
    }
    size_t bytes = 0;
    for (int64_t t = 0; t < num; ++t) {
      (void)printf(t == 0 ? "%" PRId32 : " %" PRId32, tokens[t]);
      bytes += gen_tokenizer_decode(tokenizer, tokens[t], back + bytes, sizeof back - bytes);
    }
    (void)putchar('\n');
    if (bytes != length || memcmp(back, text, length) != 0) {
      return cli_error("a text of %zu bytes does not come back from its tokens", length);
    }
  }
  return CLI_OK;
}

int main(int argc, char **argv) {
  cli_set_command("print-tokens");
  if (argc != 2) {
    return cli_usage_error("a model file is needed");
  }
  gen_model *model = NULL;
  gen_tokenizer *tokenizer = NULL;
  treeattn_error error;
  int status = CLI_OK;
  if (gen_model_open(argv[1], &model, &error) != TREEATTN_OK ||
      gen_tokenizer_from_file(model->file, &tokenizer, &error) != TREEATTN_OK) {
    status = cli_library_error(argv[1], &error);
  } else {
    status = print_all(tokenizer);
  }
  gen_tokenizer_destroy(tokenizer);
  gen_model_close(model);
  return cli_finish(status);
}
