/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as a .safetensors file: refused with a reason, or read, written again and read back the same. */
#include "reader.h"

/* The writer looks for equal names one by one; more tensors than this only cost time. */
static const size_t most_written = 64;

static void write_and_compare(const io_file *file) {
  io_writer *writer = io_writer_create();
  FUZZ_REQUIRE(writer != NULL);
  const size_t num_tensors = io_num_tensors(file);
  for (size_t t = 0; t < num_tensors; ++t) {
    FUZZ_REQUIRE(io_writer_add_tensor(writer, io_tensor_at(file, t)));
  }
  for (size_t m = 0; m < io_num_metadata(file); ++m) {
    FUZZ_REQUIRE(io_writer_set_metadata(writer, io_metadata_key(file, m), io_metadata_value(file, m)));
  }
  size_t data_bytes = 0, header_bytes = 0;
  unsigned char *header = NULL;
  io_reason reason = {""};
  FUZZ_REQUIRE(io_writer_place(writer, &data_bytes));
  FUZZ_REQUIRE(io_safetensors_header(writer, &header, &header_bytes, &reason));
  unsigned char *bytes = malloc(header_bytes + data_bytes);
  FUZZ_REQUIRE(bytes != NULL);
  memcpy(bytes, header, header_bytes);
  for (size_t n = 0; n < num_tensors; ++n) {
    memcpy(bytes + header_bytes + writer->items[n].offset, writer->items[n].tensor.data, writer->items[n].tensor.bytes);
  }
  io_file *again = fuzz_parse(bytes, header_bytes + data_bytes, IO_FORMAT_SAFETENSORS);
  FUZZ_REQUIRE(again != NULL && io_num_tensors(again) == num_tensors);
  FUZZ_REQUIRE(io_num_metadata(again) == io_num_metadata(file));
  for (size_t t = 0; t < num_tensors; ++t) {
    fuzz_compare(io_tensor_at(file, t), io_tensor_at(again, t));
  }
  for (size_t m = 0; m < io_num_metadata(file); ++m) {
    FUZZ_REQUIRE(strcmp(io_metadata_value(file, m), io_metadata(again, io_metadata_key(file, m))) == 0);
  }
  io_close(again);
  io_writer_destroy(writer);
  cli_free(header);
  free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  void *bytes = fuzz_copy(data, num_bytes);
  io_file *file = fuzz_parse(bytes, num_bytes, IO_FORMAT_SAFETENSORS);
  if (file != NULL && io_num_tensors(file) <= most_written) {
    write_and_compare(file);
  }
  io_close(file);
  free(bytes);
  return 0;
}
