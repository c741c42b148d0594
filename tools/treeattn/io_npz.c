/* SPDX-License-Identifier: Apache-2.0 */
/* The .npz format: a zip archive of .npy members, read with the sizes it declares held against the sizes it can
 * have. */
#include "io_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zip.h>

/* A deflate stream cannot grow by more than this; an entry that says so is a bomb or broken. */
static const uint64_t max_deflate_ratio = 1032;
static const size_t end_record_bytes = 22;

/* An archive over bytes that outlive it. */
static zip_t *open_archive(const unsigned char *bytes, size_t num_bytes, int flags, zip_source_t **source,
                           io_reason *reason) {
  zip_error_t error;
  zip_error_init(&error);
  *source = zip_source_buffer_create(bytes, num_bytes, 0, &error);
  zip_t *archive = *source != NULL ? zip_open_from_source(*source, flags, &error) : NULL;
  if (archive == NULL) {
    (void)io_refuse(reason, "not a zip archive: %s", zip_error_strerror(&error));
    if (*source != NULL) {
      zip_source_free(*source);
    }
  }
  zip_error_fini(&error);
  return archive;
}

static bool check_stat(const zip_stat_t *stat, uint64_t *packed_left, io_reason *reason) {
  const zip_uint64_t needed =
      ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
  if ((stat->valid & needed) != needed) {
    return io_refuse(reason, "a zip entry lacks its name, size or method");
  }
  if (stat->encryption_method != ZIP_EM_NONE) {
    return io_refuse(reason, "member '%s' is encrypted", stat->name);
  }
  if (stat->comp_method != ZIP_CM_STORE && stat->comp_method != ZIP_CM_DEFLATE) {
    return io_refuse(reason, "member '%s': compression method %u is not supported: stored and deflated are", stat->name,
                     (unsigned)stat->comp_method);
  }
  /* Entries that share their bytes would let a small file ask for any amount of memory. */
  if (stat->comp_size > *packed_left) {
    return io_refuse(reason, "member '%s': %" PRIu64 " packed bytes are more than the file has left for it", stat->name,
                     (uint64_t)stat->comp_size);
  }
  *packed_left -= stat->comp_size;
  const uint64_t most = stat->comp_method == ZIP_CM_STORE                  ? stat->comp_size
                        : stat->comp_size > UINT64_MAX / max_deflate_ratio ? UINT64_MAX
                                                                           : stat->comp_size * max_deflate_ratio;
  if (stat->size > most || stat->size > SIZE_MAX / 2) {
    return io_refuse(reason, "member '%s': %" PRIu64 " bytes cannot come out of %" PRIu64 " packed ones", stat->name,
                     (uint64_t)stat->size, (uint64_t)stat->comp_size);
  }
  return true;
}

/* All of a member into `bytes`; libzip checks the CRC on reaching the end. */
static bool read_member(zip_t *archive, const zip_stat_t *stat, unsigned char *bytes, io_reason *reason) {
  zip_file_t *member = zip_fopen_index(archive, stat->index, 0);
  if (member == NULL) {
    return io_refuse(reason, "member '%s': %s", stat->name, zip_strerror(archive));
  }
  uint64_t done = 0;
  bool good = true;
  while (good && done < stat->size) {
    const zip_int64_t got = zip_fread(member, bytes + done, stat->size - done);
    if (got <= 0) {
      good = io_refuse(reason, "member '%s': %s", stat->name, got < 0 ? zip_file_strerror(member) : "ends early");
    } else {
      done += (uint64_t)got;
    }
  }
  unsigned char beyond;
  if (good) {
    const zip_int64_t got = zip_fread(member, &beyond, 1);
    if (got != 0) {
      good = io_refuse(reason, "member '%s': %s", stat->name,
                       got < 0 ? zip_file_strerror(member) : "is longer than it declares");
    }
  }
  (void)zip_fclose(member);
  return good;
}

static bool parse_member(io_file *file, zip_t *archive, uint64_t index, uint64_t *packed_left, io_reason *reason) {
  zip_stat_t stat;
  zip_stat_init(&stat);
  if (zip_stat_index(archive, index, 0, &stat) != 0) {
    return io_refuse(reason, "zip entry %" PRIu64 ": %s", index, zip_strerror(archive));
  }
  if (!check_stat(&stat, packed_left, reason)) {
    return false;
  }
  const size_t name_bytes = strlen(stat.name);
  if (name_bytes < 4 || strcmp(stat.name + name_bytes - 4, ".npy") != 0) {
    return io_refuse(reason, "member '%s' is not an .npy array", stat.name);
  }
  char *name = io_own(file, name_bytes - 4 + 1);
  unsigned char *bytes = name != NULL ? io_own(file, (size_t)stat.size) : NULL;
  if (bytes == NULL) {
    return io_refuse(reason, "out of memory for the %" PRIu64 " bytes of member '%s'", (uint64_t)stat.size, stat.name);
  }
  memcpy(name, stat.name, name_bytes - 4);
  name[name_bytes - 4] = '\0';
  if (!read_member(archive, &stat, bytes, reason)) {
    return false;
  }
  io_tensor *tensor = &file->tensors[file->num_tensors];
  *tensor = (io_tensor){.name = name};
  size_t data_start = 0;
  io_reason inner = {""};
  if (!io_parse_npy_array(bytes, (size_t)stat.size, tensor, &data_start, &inner)) {
    return io_refuse(reason, "member '%s': %.600s", stat.name, inner.text);
  }
  ++file->num_tensors;
  return true;
}

static int compare_names(const void *left, const void *right) {
  const io_tensor *a = *(const io_tensor *const *)left;
  const io_tensor *b = *(const io_tensor *const *)right;
  return strcmp(a->name, b->name);
}

static bool check_names_differ(const io_file *file, io_reason *reason) {
  const io_tensor **order = cli_malloc_array(file->num_tensors, sizeof(const io_tensor *));
  if (order == NULL) {
    return io_refuse(reason, "out of memory");
  }
  for (size_t t = 0; t < file->num_tensors; ++t) {
    order[t] = &file->tensors[t];
  }
  qsort(order, file->num_tensors, sizeof(const io_tensor *), compare_names);
  bool good = true;
  for (size_t t = 1; t < file->num_tensors && good; ++t) {
    good = strcmp(order[t - 1]->name, order[t]->name) != 0 ||
           io_refuse(reason, "member '%s.npy' is twice in the archive", order[t]->name);
  }
  cli_free(order);
  return good;
}

bool io_parse_npz(io_file *file, io_reason *reason) {
  /* libzip takes no bytes at all for an archive that is still to be filled. */
  if (file->num_bytes < end_record_bytes) {
    return io_refuse(reason, "not a zip archive: %zu bytes are too few", file->num_bytes);
  }
  zip_source_t *source = NULL;
  zip_t *archive = open_archive(file->bytes, file->num_bytes, ZIP_RDONLY, &source, reason);
  if (archive == NULL) {
    return false;
  }
  const zip_int64_t num_members = zip_get_num_entries(archive, 0);
  file->tensors = cli_malloc_array((size_t)num_members, sizeof *file->tensors);
  bool good = file->tensors != NULL || io_refuse(reason, "out of memory");
  uint64_t packed_left = file->num_bytes;
  for (zip_int64_t m = 0; m < num_members && good; ++m) {
    good = parse_member(file, archive, (uint64_t)m, &packed_left, reason);
  }
  zip_discard(archive);
  return good && check_names_differ(file, reason);
}

/* ---- writing ---------------------------------------------------------------------------------------------- */

/* One member's bytes, header and data together. */
static bool member_bytes(const io_tensor *tensor, const void *data, unsigned char **bytes, size_t *num_bytes,
                         io_reason *reason) {
  unsigned char *header = NULL;
  size_t header_bytes = 0;
  if (!io_npy_header(tensor, &header, &header_bytes, reason)) {
    return false;
  }
  *num_bytes = header_bytes + tensor->bytes;
  *bytes = cli_malloc(*num_bytes);
  if (*bytes == NULL) {
    cli_free(header);
    return io_refuse(reason, "out of memory");
  }
  memcpy(*bytes, header, header_bytes);
  memcpy(*bytes + header_bytes, data, tensor->bytes);
  cli_free(header);
  return true;
}

/* Adds a member, or exchanges the one at `index` (>= 0), stored and with a fixed time, so that equal data gives equal
 * files. The bytes must live until the archive is closed. */
static bool put_member(zip_t *archive, const char *name, int64_t index, const unsigned char *bytes, size_t num_bytes,
                       io_reason *reason) {
  zip_source_t *source = zip_source_buffer(archive, bytes, num_bytes, 0);
  if (source == NULL) {
    return io_refuse(reason, "zip: %s", zip_strerror(archive));
  }
  if (index >= 0) {
    if (zip_file_replace(archive, (zip_uint64_t)index, source, 0) != 0) {
      zip_source_free(source);
      return io_refuse(reason, "zip: %s", zip_strerror(archive));
    }
  } else {
    char *member = cli_format("%s.npy", name);
    index = member != NULL ? zip_file_add(archive, member, source, ZIP_FL_ENC_UTF_8) : -1;
    if (index < 0) {
      (void)io_refuse(reason, "tensor '%s': zip: %s", name, member != NULL ? zip_strerror(archive) : "out of memory");
      cli_free(member);
      zip_source_free(source);
      return false;
    }
    cli_free(member);
  }
  const zip_uint16_t first_of_1980 = 1 << 5 | 1;
  if (zip_set_file_compression(archive, (zip_uint64_t)index, ZIP_CM_STORE, 0) != 0 ||
      zip_file_set_dostime(archive, (zip_uint64_t)index, 0, first_of_1980, 0) != 0) {
    return io_refuse(reason, "zip: %s", zip_strerror(archive));
  }
  return true;
}

/* Closes the archive, which writes it into `source`, and takes the bytes out of there. */
static bool finish_archive(zip_t *archive, zip_source_t *source, unsigned char **bytes, size_t *num_bytes,
                           io_reason *reason) {
  zip_source_keep(source);
  if (zip_close(archive) != 0) {
    (void)io_refuse(reason, "zip: %s", zip_strerror(archive));
    zip_discard(archive);
    zip_source_free(source);
    return false;
  }
  zip_stat_t stat;
  zip_stat_init(&stat);
  bool good = zip_source_stat(source, &stat) == 0 && (stat.valid & ZIP_STAT_SIZE) != 0 && zip_source_open(source) == 0;
  if (!good) {
    zip_source_free(source);
    return io_refuse(reason, "zip: %s", zip_error_strerror(zip_source_error(source)));
  }
  *num_bytes = (size_t)stat.size;
  *bytes = cli_malloc(*num_bytes);
  good = *bytes != NULL || io_refuse(reason, "out of memory");
  uint64_t done = 0;
  while (good && done < stat.size) {
    const zip_int64_t got = zip_source_read(source, *bytes + done, stat.size - done);
    good = got > 0 || io_refuse(reason, "zip: the archive cannot be read back");
    done += got > 0 ? (uint64_t)got : 0;
  }
  (void)zip_source_close(source);
  zip_source_free(source);
  if (!good) {
    cli_free(*bytes);
    *bytes = NULL;
  }
  return good;
}

static void free_members(unsigned char **members, size_t num_members) {
  for (size_t m = 0; members != NULL && m < num_members; ++m) {
    cli_free(members[m]);
  }
  cli_free(members);
}

bool io_npz_pack(const io_writer *writer, unsigned char **bytes, size_t *num_bytes, io_reason *reason) {
  zip_source_t *source = NULL;
  zip_t *archive = open_archive(NULL, 0, ZIP_CREATE | ZIP_TRUNCATE, &source, reason);
  if (archive == NULL) {
    return false;
  }
  unsigned char **members = cli_malloc_array(writer->num_items, sizeof *members);
  bool good = members != NULL || io_refuse(reason, "out of memory");
  size_t num_members = 0;
  for (size_t n = 0; n < writer->num_items && good; ++n) {
    const io_tensor *tensor = &writer->items[n].tensor;
    size_t member_size = 0;
    good = member_bytes(tensor, tensor->data, &members[n], &member_size, reason);
    num_members += good;
    good = good && put_member(archive, tensor->name, -1, members[n], member_size, reason);
  }
  if (good) {
    good = finish_archive(archive, source, bytes, num_bytes, reason);
  } else {
    zip_discard(archive);
  }
  free_members(members, num_members);
  return good;
}

bool io_npz_replace(const io_file *file, const io_replacement *replacements, size_t num_replacements,
                    unsigned char **bytes, size_t *num_bytes, io_reason *reason) {
  zip_source_t *source = NULL;
  zip_t *archive = open_archive(file->bytes, file->num_bytes, 0, &source, reason);
  if (archive == NULL) {
    return false;
  }
  unsigned char **members = cli_malloc_array(num_replacements, sizeof *members);
  bool good = members != NULL || io_refuse(reason, "out of memory");
  size_t num_members = 0;
  for (size_t r = 0; r < num_replacements && good; ++r) {
    const io_tensor *tensor = replacements[r].tensor;
    size_t member_size = 0;
    good = member_bytes(tensor, replacements[r].data, &members[r], &member_size, reason);
    num_members += good;
    good = good && put_member(archive, tensor->name, tensor - file->tensors, members[r], member_size, reason);
  }
  if (good) {
    good = finish_archive(archive, source, bytes, num_bytes, reason);
  } else {
    zip_discard(archive);
  }
  free_members(members, num_members);
  return good;
}
