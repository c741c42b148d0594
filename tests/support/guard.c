/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers between two unmapped pages. */
#define _GNU_SOURCE 1
#include "guard.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

enum { CANARY = 0xa5 };

guarded guarded_new(size_t bytes, bool at_begin) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  size_t inner = (bytes + page - 1) / page * page;
  guarded buffer = {NULL, bytes, NULL, inner + 2 * page};
  void *mapping = mmap(NULL, buffer.mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(mapping != MAP_FAILED, "mmap of %zu bytes failed", buffer.mapping_bytes);
  buffer.mapping = mapping;
  if (inner != 0) {
    CHECK(mprotect(buffer.mapping + page, inner, PROT_READ | PROT_WRITE) == 0, "mprotect of %zu bytes failed", inner);
    memset(buffer.mapping + page, CANARY, inner);
  }
  buffer.data = buffer.mapping + page + (at_begin ? 0 : inner - bytes);
  memset(buffer.data, 0xff, bytes);
  return buffer;
}

bool guarded_intact(const guarded *buffer) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const unsigned char *end = buffer->mapping + buffer->mapping_bytes - page;
  for (const unsigned char *p = buffer->mapping + page; p < buffer->data; p++) {
    if (*p != CANARY) {
      return false;
    }
  }
  for (const unsigned char *p = buffer->data + buffer->bytes; p < end; p++) {
    if (*p != CANARY) {
      return false;
    }
  }
  return true;
}

void guarded_protect(const guarded *buffer, bool read_only) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  if (buffer->mapping_bytes > 2 * page) {
    int access = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
    CHECK(mprotect(buffer->mapping + page, buffer->mapping_bytes - 2 * page, access) == 0, "mprotect failed");
  }
}

void guarded_free(guarded *buffer) {
  if (buffer->mapping != NULL) {
    (void)munmap(buffer->mapping, buffer->mapping_bytes);
  }
  *buffer = (guarded){NULL, 0, NULL, 0};
}
