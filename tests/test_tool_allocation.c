/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: an allocation that fails in the tensor readers and writers crashes, leaks, or leaves a half-written file. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* mkdtemp, dup2 under -std=c11 */
#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tools/treeattn/cli.h"
#include "../tools/treeattn/io.h"

#if !defined(TREEATTN_TESTING)
#error "this test needs a build with TREEATTN_TESTING, where allocations can be made to fail"
#endif

/* More than any case here makes; reaching it means that a case never succeeds. */
static const uint64_t too_many = 2000;

static char folder[64];
static char path_text[3][128]; /* .safetensors, .npy, .npz */
static const char *const extensions[3] = {"safetensors", "npy", "npz"};

static const float numbers[6] = {0, 1, 2, 3, 4, 5};
static const int32_t parents[3] = {-1, 0, 0};
static const int64_t wide[2] = {7, -1};
static const uint8_t flags[5] = {1, 0, 1, 1, 0};

/* The messages are expected here, hundreds of them. */
static int silence(void) {
  (void)fflush(stderr);
  const int saved = dup(STDERR_FILENO);
  const int nothing = open("/dev/null", O_WRONLY);
  assert_true(saved >= 0 && nothing >= 0 && dup2(nothing, STDERR_FILENO) >= 0);
  (void)close(nothing);
  return saved;
}

static void speak(int saved) {
  (void)fflush(stderr);
  assert_true(dup2(saved, STDERR_FILENO) >= 0);
  (void)close(saved);
}

static bool write_file(const char *path, bool one_tensor) {
  const int64_t shape[] = {1, 2, 3}, three[] = {3}, two[] = {2}, five[] = {5};
  io_writer *writer = io_writer_create();
  bool good = writer != NULL && io_writer_add(writer, "q", IO_F32, 3, shape, numbers);
  if (!one_tensor) {
    good = good && io_writer_add(writer, "flags", IO_BOOL, 1, five, flags) &&
           io_writer_add(writer, "parents", IO_I32, 1, three, parents) &&
           io_writer_add(writer, "wide", IO_I64, 1, two, wide) && io_writer_set_metadata(writer, "key", "value") &&
           io_writer_set_metadata(writer, "other", "text");
  }
  good = good && io_writer_save(writer, path);
  io_writer_destroy(writer);
  return good;
}

static bool read_file(const char *path, bool one_tensor) {
  io_file *file;
  if (!io_open(path, "q", &file)) {
    assert_null(file);
    return false;
  }
  const io_tensor *q;
  const int64_t shape[] = {1, IO_FREE, 3};
  assert_true(io_get(file, "q", IO_F32, 3, shape, &q));
  assert_memory_equal(q->data, numbers, sizeof numbers);
  const int32_t *narrow = NULL;
  const int64_t two[] = {2};
  const bool good = one_tensor || io_get_i32(file, "wide", 1, two, NULL, &narrow);
  assert_true(one_tensor || !good || (narrow[0] == 7 && narrow[1] == -1));
  io_close(file);
  return good;
}

static bool replace_file(const char *path, bool one_tensor) {
  (void)one_tensor;
  io_file *file;
  if (!io_open(path, "q", &file)) {
    return false;
  }
  const io_replacement same = {io_find(file, "q"), numbers};
  const bool good = io_save_replaced(file, &same, 1, path);
  io_close(file);
  return good;
}

static size_t count_files(void) {
  size_t count = 0;
  DIR *listing = opendir(folder);
  assert_non_null(listing);
  for (const struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
    count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
  }
  (void)closedir(listing);
  return count;
}

/* Runs `step` with its first allocation failing, its second, and so on until it makes fewer than that. */
static void fail_each(bool (*step)(const char *path, bool one_tensor), const char *path, bool one_tensor) {
  const size_t files_before = count_files();
  uint64_t failures = 0;
  for (uint64_t n = 1;; ++n) {
    assert_true(n < too_many);
    const int64_t live_before = cli_live_allocations();
    const int saved = silence();
    cli_fail_allocation(n);
    const uint64_t failed_before = cli_num_failed_allocations();
    const bool good = step(path, one_tensor);
    const bool reached = cli_num_failed_allocations() != failed_before;
    cli_fail_allocation(0);
    speak(saved);
    if (cli_live_allocations() != live_before) {
      fail_msg("%s: allocation %llu failed and %lld were not freed", path, (unsigned long long)n,
               (long long)(cli_live_allocations() - live_before));
    }
    /* A step may do without a best-effort allocation, but one that fails must leave what was there. */
    assert_true(good || reached);
    assert_int_equal(count_files(), files_before);
    assert_true(read_file(path, one_tensor));
    failures += reached;
    if (!reached) {
      break;
    }
  }
  assert_true(failures > 3);
  print_message("%s: %llu allocations failed once each\n", path, (unsigned long long)failures);
}

static void test_reading(void **state) {
  (void)state;
  for (int f = 0; f < 3; ++f) {
    fail_each(read_file, path_text[f], f == 1);
  }
}

static void test_writing(void **state) {
  (void)state;
  for (int f = 0; f < 3; ++f) {
    fail_each(write_file, path_text[f], f == 1);
  }
}

static void test_replacing(void **state) {
  (void)state;
  for (int f = 0; f < 3; ++f) {
    fail_each(replace_file, path_text[f], f == 1);
  }
}

static void test_option_list(void **state) {
  (void)state;
  const int saved = silence();
  int64_t *values = NULL;
  size_t num_values = 0;
  cli_fail_allocation(1);
  const bool refused = !cli_parse_i64_list("path", "0,2,5", 0, 9, &values, &num_values);
  cli_fail_allocation(0);
  const bool parsed = cli_parse_i64_list("path", "0,2,5", 0, 9, &values, &num_values);
  speak(saved);
  assert_true(refused && parsed && num_values == 3);
  assert_true(values[0] == 0 && values[1] == 2 && values[2] == 5);
  cli_free(values);
}

static int make_files(void **state) {
  (void)state;
  cli_hook_json();
  const char *base = getenv("TMPDIR");
  (void)snprintf(folder, sizeof folder, "%.40s/treeattn.XXXXXX", base != NULL ? base : P_tmpdir);
  if (mkdtemp(folder) == NULL) {
    return -1;
  }
  for (int f = 0; f < 3; ++f) {
    (void)snprintf(path_text[f], sizeof path_text[f], "%s/file.%s", folder, extensions[f]);
    if (!write_file(path_text[f], f == 1)) {
      return -1;
    }
  }
  return 0;
}

static int remove_files(void **state) {
  (void)state;
  for (int f = 0; f < 3; ++f) {
    (void)unlink(path_text[f]);
  }
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_reading),
      cmocka_unit_test(test_writing),
      cmocka_unit_test(test_replacing),
      cmocka_unit_test(test_option_list),
  };
  return cmocka_run_group_tests(tests, make_files, remove_files);
}
