/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers between two unmapped pages, with a canary in the slack. */
#ifndef TESTS_GUARD_H
#define TESTS_GUARD_H

#include <stdbool.h>
#include <stddef.h>

typedef struct guarded {
  unsigned char *data;
  size_t bytes;
  unsigned char *mapping; /* the unmapped page before */
  size_t mapping_bytes;
} guarded;

/* The buffer's end touches an unmapped page, or with at_begin its start does. Filled with 0xff (NaN as a float). 0 bytes are legal. */
guarded guarded_new(size_t bytes, bool at_begin);
/* 1 if the bytes between the buffer and the pages around it are as guarded_new left them. */
bool guarded_intact(const guarded *buffer);
/* Makes the pages of the buffer read-only, or writable again: a write then ends the test. */
void guarded_protect(const guarded *buffer, bool read_only);
void guarded_free(guarded *buffer);

#endif
