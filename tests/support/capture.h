/* SPDX-License-Identifier: Apache-2.0 */
/* Captured attention inputs: a layer of a .safetensors file as a problem. For trusted files; the tool has the careful reader. */
#ifndef TESTS_CAPTURE_H
#define TESTS_CAPTURE_H

#include "problem.h"

typedef struct capture {
  unsigned char *file;
  size_t bytes;
  int num_nodes;
  const int32_t *parents, *positions; /* [N] */
} capture;

/* false when the file cannot be opened; a file that is no capture fails the test. */
bool capture_open(capture *c, const char *path);
/* false when the file has no such layer. */
bool capture_layer(const capture *c, int layer, problem *p);
void capture_close(capture *c);

#endif
