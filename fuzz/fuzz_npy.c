/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as an .npy file: refused with a reason, or read, written again and read back the same. */
#include "reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  void *bytes = fuzz_copy(data, num_bytes);
  io_file *file = fuzz_parse(bytes, num_bytes, IO_FORMAT_NPY);
  if (file != NULL) {
    FUZZ_REQUIRE(io_num_tensors(file) == 1);
    const io_tensor *tensor = io_tensor_at(file, 0);
    unsigned char *header = NULL;
    size_t header_bytes = 0;
    io_reason reason = {""};
    FUZZ_REQUIRE(io_npy_header(tensor, &header, &header_bytes, &reason));
    unsigned char *whole = malloc(header_bytes + tensor->bytes);
    FUZZ_REQUIRE(whole != NULL);
    memcpy(whole, header, header_bytes);
    memcpy(whole + header_bytes, tensor->data, tensor->bytes);
    io_file *again = fuzz_parse(whole, header_bytes + tensor->bytes, IO_FORMAT_NPY);
    FUZZ_REQUIRE(again != NULL);
    fuzz_compare(tensor, io_tensor_at(again, 0));
    io_close(again);
    cli_free(header);
    free(whole);
  }
  io_close(file);
  free(bytes);
  return 0;
}
