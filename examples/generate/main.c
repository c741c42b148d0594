/* SPDX-License-Identifier: Apache-2.0 */
/* The generator as a program of its own. */
#include "command.h"

int main(int argc, char **argv) {
  char name[] = "treeattn generate";
  cli_hook_json();
  cli_set_command("generate");
  if (argc > 0) {
    argv[0] = name;
  }
  return cmd_generate(argc, argv);
}
