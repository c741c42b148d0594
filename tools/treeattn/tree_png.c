/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures of four colours as PNG files, two bits a pixel, stored without compression. */
#include "tree_png.h"

#include <stdbool.h>
#include <string.h>

typedef struct writer {
  FILE *out;
  uint32_t crc;
  uint32_t adler_a;
  uint32_t adler_b;
  uint64_t raw_left;   /* bytes of picture still to come */
  uint32_t block_left; /* of them in the deflate block that is open */
} writer;

enum { MAX_BLOCK = 65535, COLOUR_TYPE_PALETTE = 3, BIT_DEPTH = 2 };

static void put_byte(writer *w, uint8_t byte) {
  w->crc ^= byte;
  for (int bit = 0; bit < 8; bit++) {
    w->crc = (w->crc & 1) != 0 ? (w->crc >> 1) ^ UINT32_C(0xedb88320) : w->crc >> 1;
  }
  (void)fputc(byte, w->out);
}

static void put_be32(writer *w, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    put_byte(w, (uint8_t)(value >> shift));
  }
}

/* A chunk's length is not part of its checksum, its name is. */
static void chunk_begin(writer *w, const char *name, uint32_t length) {
  put_be32(w, length);
  w->crc = UINT32_MAX;
  for (int k = 0; k < 4; k++) {
    put_byte(w, (uint8_t)name[k]);
  }
}

static void chunk_end(writer *w) {
  put_be32(w, w->crc ^ UINT32_MAX);
}

static void put_raw(writer *w, uint8_t byte) {
  if (w->block_left == 0) {
    w->block_left = w->raw_left < MAX_BLOCK ? (uint32_t)w->raw_left : MAX_BLOCK;
    put_byte(w, w->block_left == w->raw_left ? 1 : 0); /* the last block; type 0, stored */
    put_byte(w, (uint8_t)w->block_left);
    put_byte(w, (uint8_t)(w->block_left >> 8));
    put_byte(w, (uint8_t)~w->block_left);
    put_byte(w, (uint8_t)(~w->block_left >> 8));
  }
  w->adler_a = (w->adler_a + byte) % 65521;
  w->adler_b = (w->adler_b + w->adler_a) % 65521;
  w->block_left--;
  w->raw_left--;
  put_byte(w, byte);
}

static void put_picture(writer *w, const tree_png *png, uint8_t *pixels) {
  for (uint32_t y = 0; y < png->height; y++) {
    png->row(png->context, y, pixels);
    put_raw(w, 0); /* the row's filter: none */
    for (uint32_t x = 0; x < png->width; x += 4) {
      unsigned byte = 0;
      for (uint32_t k = 0; k < 4; k++) {
        byte = byte << 2 | (x + k < png->width ? pixels[x + k] & 3u : 0u);
      }
      put_raw(w, (uint8_t)byte);
    }
  }
}

void tree_png_write(FILE *out, const tree_png *png, uint8_t *pixels) {
  writer w = {out, 0, 1, 0, 0, 0};
  static const uint8_t signature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  (void)fwrite(signature, 1, sizeof signature, out);

  chunk_begin(&w, "IHDR", 13);
  put_be32(&w, png->width);
  put_be32(&w, png->height);
  put_byte(&w, BIT_DEPTH);
  put_byte(&w, COLOUR_TYPE_PALETTE);
  put_byte(&w, 0); /* compression: deflate */
  put_byte(&w, 0); /* filters: one a row */
  put_byte(&w, 0); /* no interlacing */
  chunk_end(&w);

  chunk_begin(&w, "PLTE", 12);
  for (int k = 0; k < 12; k++) {
    put_byte(&w, png->palette[k / 3][k % 3]);
  }
  chunk_end(&w);

  w.raw_left = (uint64_t)png->height * (1 + (png->width + 3) / 4);
  const uint64_t num_blocks = (w.raw_left + MAX_BLOCK - 1) / MAX_BLOCK;
  chunk_begin(&w, "IDAT", (uint32_t)(2 + num_blocks * 5 + w.raw_left + 4));
  put_byte(&w, 0x78); /* deflate with a window of 32 KiB */
  put_byte(&w, 0x01); /* makes the two bytes a multiple of 31 */
  put_picture(&w, png, pixels);
  put_be32(&w, w.adler_b << 16 | w.adler_a);
  chunk_end(&w);

  chunk_begin(&w, "IEND", 0);
  chunk_end(&w);
}
