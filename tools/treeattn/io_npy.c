/* SPDX-License-Identifier: Apache-2.0 */
/* The .npy format, versions 1 to 3: its header is a Python dictionary, of which only the one shape it can have is
 * read. */
#include "io_internal.h"

#include <inttypes.h>
#include <string.h>

static const unsigned char magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
static const size_t max_header_bytes = 1 << 20;

/* What is left of the dictionary. */
typedef struct cursor {
  const char *at, *end;
} cursor;

static void skip_blanks(cursor *text) {
  while (text->at < text->end && strchr(" \t\r\n", *text->at) != NULL && *text->at != '\0') {
    ++text->at;
  }
}

static bool accept(cursor *text, char wanted) {
  skip_blanks(text);
  if (text->at < text->end && *text->at == wanted) {
    ++text->at;
    return true;
  }
  return false;
}

static bool accept_word(cursor *text, const char *word) {
  skip_blanks(text);
  const size_t length = strlen(word);
  if ((size_t)(text->end - text->at) >= length && memcmp(text->at, word, length) == 0) {
    text->at += length;
    return true;
  }
  return false;
}

/* A quoted string without escapes into `value`. */
static bool parse_string(cursor *text, char *value, size_t capacity) {
  skip_blanks(text);
  if (text->at == text->end || (*text->at != '\'' && *text->at != '"')) {
    return false;
  }
  const char quote = *text->at++;
  size_t length = 0;
  while (text->at < text->end && *text->at != quote) {
    const char c = *text->at++;
    if (c == '\\' || (unsigned char)c < 0x20 || length + 1 >= capacity) {
      return false;
    }
    value[length++] = c;
  }
  value[length] = '\0';
  return accept(text, quote);
}

static bool parse_length(cursor *text, int64_t *value, io_reason *reason) {
  skip_blanks(text);
  int64_t length = 0;
  const char *start = text->at;
  for (; text->at < text->end && *text->at >= '0' && *text->at <= '9'; ++text->at) {
    const int64_t digit = *text->at - '0';
    if (length > (INT64_MAX - digit) / 10) {
      return io_refuse(reason, "shape holds a number above 2^63 - 1");
    }
    length = length * 10 + digit;
  }
  if (text->at == start) {
    return io_refuse(reason, "shape holds something that is not a length");
  }
  *value = length;
  (void)accept(text, 'L'); /* written by Python 2 */
  return true;
}

static bool parse_shape(cursor *text, io_tensor *tensor, io_reason *reason) {
  if (!accept(text, '(')) {
    return io_refuse(reason, "shape is not a tuple");
  }
  tensor->num_dims = 0;
  bool comma = true;
  while (!accept(text, ')')) {
    if (!comma) {
      return io_refuse(reason, "shape is not a tuple of lengths");
    }
    if (tensor->num_dims == IO_MAX_DIMS) {
      return io_refuse(reason, "shape has more than the %d dimensions that are supported", (int)IO_MAX_DIMS);
    }
    if (!parse_length(text, &tensor->shape[tensor->num_dims], reason)) {
      return false;
    }
    ++tensor->num_dims;
    comma = accept(text, ',');
  }
  if (tensor->num_dims == 1 && !comma) {
    return io_refuse(reason, "shape is a number in brackets, not a tuple");
  }
  return true;
}

static bool parse_descr(cursor *text, io_tensor *tensor, unsigned *bits, io_reason *reason) {
  char descr[64];
  if (accept(text, '[')) {
    return io_refuse(reason, "structured types are not supported");
  }
  if (!parse_string(text, descr, sizeof descr)) {
    return io_refuse(reason, "descr is not the name of a type");
  }
  for (const io_dtype_row *row = io_dtype_rows; row->name != NULL; ++row) {
    const bool single_byte = row->bits == 8 && row->npy_descr != NULL;
    if (row->npy_descr != NULL && (strcmp(descr, row->npy_descr) == 0 ||
                                   (single_byte && descr[0] == '<' && strcmp(descr + 1, row->npy_descr + 1) == 0))) {
      tensor->dtype = row->dtype;
      tensor->dtype_name = row->name;
      *bits = row->bits;
      return true;
    }
  }
  if (descr[0] == '>') {
    return io_refuse(reason, "type '%s' is big-endian: only little-endian arrays are supported", descr);
  }
  if (strcmp(descr + (descr[0] != '\0'), "V2") == 0) {
    return io_refuse(reason, "type '%s' has no meaning (bf16 has no .npy type: use .safetensors)", descr);
  }
  return io_refuse(reason, "type '%s' is not supported", descr);
}

enum { KEY_DESCR = 1, KEY_ORDER = 2, KEY_SHAPE = 4, ALL_KEYS = 7 };

static bool parse_item(cursor *text, const char *key, int *seen, io_tensor *tensor, unsigned *bits, io_reason *reason) {
  const int this_key = strcmp(key, "descr") == 0           ? KEY_DESCR
                       : strcmp(key, "fortran_order") == 0 ? KEY_ORDER
                       : strcmp(key, "shape") == 0         ? KEY_SHAPE
                                                           : 0;
  if (this_key == 0) {
    return io_refuse(reason, "unknown key '%s' in the header", key);
  }
  if ((*seen & this_key) != 0) {
    return io_refuse(reason, "key '%s' is twice in the header", key);
  }
  *seen |= this_key;
  if (this_key == KEY_DESCR) {
    return parse_descr(text, tensor, bits, reason);
  }
  if (this_key == KEY_SHAPE) {
    return parse_shape(text, tensor, reason);
  }
  if (accept_word(text, "True")) {
    return io_refuse(reason, "the array is in Fortran order: only C order is supported (numpy.ascontiguousarray)");
  }
  return accept_word(text, "False") || io_refuse(reason, "fortran_order is neither True nor False");
}

static bool parse_dictionary(cursor text, io_tensor *tensor, unsigned *bits, io_reason *reason) {
  if (!accept(&text, '{')) {
    return io_refuse(reason, "the header is not a dictionary");
  }
  int seen = 0;
  bool comma = true;
  while (!accept(&text, '}')) {
    char key[32];
    if (!comma || !parse_string(&text, key, sizeof key) || !accept(&text, ':')) {
      return io_refuse(reason, "the header is not a dictionary of descr, fortran_order and shape");
    }
    if (!parse_item(&text, key, &seen, tensor, bits, reason)) {
      return false;
    }
    comma = accept(&text, ',');
  }
  skip_blanks(&text);
  if (text.at != text.end) {
    return io_refuse(reason, "text follows the dictionary in the header");
  }
  if (seen != ALL_KEYS) {
    return io_refuse(reason, "the header lacks %s",
                     (seen & KEY_DESCR) == 0   ? "descr"
                     : (seen & KEY_ORDER) == 0 ? "fortran_order"
                                               : "shape");
  }
  return true;
}

bool io_parse_npy_array(const unsigned char *bytes, size_t num_bytes, io_tensor *tensor, size_t *data_start,
                        io_reason *reason) {
  if (num_bytes < sizeof magic || memcmp(bytes, magic, sizeof magic) != 0) {
    return io_refuse(reason, "not an .npy array: the magic bytes are missing");
  }
  if (num_bytes < 12) {
    return io_refuse(reason, "truncated in the first 12 bytes");
  }
  const unsigned major = bytes[6], minor = bytes[7];
  if (major < 1 || major > 3 || minor != 0) {
    return io_refuse(reason, ".npy version %u.%u is not supported: 1.0, 2.0 and 3.0 are", major, minor);
  }
  uint32_t header_bytes = 0;
  memcpy(&header_bytes, bytes + 8, major == 1 ? 2 : 4);
  const size_t header_start = major == 1 ? 10 : 12;
  if (header_bytes > max_header_bytes) {
    return io_refuse(reason, "a header length of %" PRIu32 " is above the limit of %zu", header_bytes,
                     max_header_bytes);
  }
  if (header_bytes > num_bytes - header_start) {
    return io_refuse(reason,
                     "a header length of %" PRIu32 " exceeds the %zu bytes that follow (is the file truncated?)",
                     header_bytes, num_bytes - header_start);
  }
  const char *text = (const char *)bytes + header_start;
  unsigned bits = 0;
  if (!parse_dictionary((cursor){text, text + header_bytes}, tensor, &bits, reason)) {
    return false;
  }
  char shape[IO_MAX_DIMS * 24];
  io_format_shape(shape, sizeof shape, tensor->num_dims, tensor->shape);
  if (!io_shape_size(tensor->num_dims, tensor->shape, bits, &tensor->num_elements, &tensor->bytes)) {
    return io_refuse(reason, "%s %s has a size in bytes that overflows", tensor->dtype_name, shape);
  }
  *data_start = header_start + header_bytes;
  if (tensor->bytes != num_bytes - *data_start) {
    return io_refuse(reason, "%s %s needs %zu bytes of data, found %zu%s", tensor->dtype_name, shape, tensor->bytes,
                     num_bytes - *data_start,
                     tensor->bytes > num_bytes - *data_start ? " (is the file truncated?)" : "");
  }
  tensor->data = bytes + *data_start;
  return true;
}

bool io_parse_npy(io_file *file, const char *name, io_reason *reason) {
  const size_t name_bytes = strlen(name) + 1;
  char *own_name = io_own(file, name_bytes);
  file->tensors = cli_malloc_array(1, sizeof *file->tensors);
  if (own_name == NULL || file->tensors == NULL) {
    return io_refuse(reason, "out of memory");
  }
  memcpy(own_name, name, name_bytes);
  file->tensors[0] = (io_tensor){.name = own_name};
  if (!io_parse_npy_array(file->bytes, file->num_bytes, &file->tensors[0], &file->data_start, reason)) {
    return false;
  }
  file->tensors[0].file_offset = file->data_start;
  file->num_tensors = 1;
  return true;
}

bool io_npy_header(const io_tensor *tensor, unsigned char **header, size_t *num_bytes, io_reason *reason) {
  const io_dtype_row *row = io_dtype_rows;
  while (row->name != NULL && strcmp(row->name, tensor->dtype_name) != 0) {
    ++row;
  }
  if (row->npy_descr == NULL) {
    return io_refuse(reason, "tensor '%s': %s has no .npy type: write .safetensors", tensor->name, tensor->dtype_name);
  }
  char text[128 + IO_MAX_DIMS * 24];
  int used = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (", row->npy_descr);
  for (int d = 0; d < tensor->num_dims; ++d) {
    used += snprintf(text + used, sizeof text - (size_t)used, "%s%" PRId64 "%s", d > 0 ? ", " : "", tensor->shape[d],
                     tensor->num_dims == 1 ? "," : "");
  }
  used += snprintf(text + used, sizeof text - (size_t)used, "), }");
  /* Blanks and a newline up to a multiple of 64, as NumPy writes it, so that the data can be mapped. */
  const size_t total = (10 + (size_t)used + 1 + 63) / 64 * 64;
  unsigned char *bytes = cli_malloc(total);
  if (bytes == NULL) {
    return io_refuse(reason, "out of memory");
  }
  const uint16_t text_bytes = (uint16_t)(total - 10);
  memcpy(bytes, magic, sizeof magic);
  bytes[6] = 1;
  bytes[7] = 0;
  memcpy(bytes + 8, &text_bytes, 2);
  memset(bytes + 10, ' ', total - 10);
  memcpy(bytes + 10, text, (size_t)used);
  bytes[total - 1] = '\n';
  *header = bytes;
  *num_bytes = total;
  return true;
}
