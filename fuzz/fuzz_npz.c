/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as an .npz archive: refused with a reason, or read, packed again and read back the same. */
#include "reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  void *bytes = fuzz_copy(data, num_bytes);
  io_file *file = fuzz_parse(bytes, num_bytes, IO_FORMAT_NPZ);
  if (file != NULL && io_num_tensors(file) > 0 && io_num_tensors(file) <= 16) {
    io_writer *writer = io_writer_create();
    FUZZ_REQUIRE(writer != NULL);
    for (size_t t = 0; t < io_num_tensors(file); ++t) {
      FUZZ_REQUIRE(io_writer_add_tensor(writer, io_tensor_at(file, t)));
    }
    unsigned char *archive = NULL;
    size_t archive_bytes = 0;
    io_reason reason = {""};
    /* Names that are not UTF-8 cannot be packed; anything that can must come back. */
    if (io_npz_pack(writer, &archive, &archive_bytes, &reason)) {
      io_file *again = fuzz_parse(archive, archive_bytes, IO_FORMAT_NPZ);
      FUZZ_REQUIRE(again != NULL && io_num_tensors(again) == io_num_tensors(file));
      for (size_t t = 0; t < io_num_tensors(file); ++t) {
        fuzz_compare(io_tensor_at(file, t), io_tensor_at(again, t));
      }
      io_close(again);
      cli_free(archive);
    }
    io_writer_destroy(writer);
  }
  io_close(file);
  free(bytes);
  return 0;
}
