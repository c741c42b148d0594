/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: an allocation that fails in `treeattn tree` crashes, leaks, or leaves a picture half written. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* mkdtemp, dup2 under -std=c11 */
#endif

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../tools/treeattn/cli.h"
#include "support/check.h"

#if !defined(TREEATTN_TESTING)
#error "this test needs a build with TREEATTN_TESTING, which counts live allocations"
#endif

enum { MAX_ARGUMENTS = 12, TOO_MANY = 5000 };

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);

static long countdown; /* allocations until the one that fails; 0: none does */
static bool has_failed;

void *__wrap_malloc(size_t bytes) {
  if (countdown > 0 && --countdown == 0) {
    has_failed = true;
    return NULL;
  }
  return __real_malloc(bytes);
}

static char folder[64];

static const char input[] = "{\"parents\": [-1, 0, 0, 1, 1], \"texts\": [\"a\", \"b\", \"c\", \"d\", \"e\"],"
                            " \"tokens\": [1, 2, 3, 4, 5], \"path\": [0, 1, 4]}";
/* Without texts: jansson ends the program by an assertion when its buffer cannot grow inside a string with escapes, as
 * texts in the metadata of a tensor file are. */
static const char plain[] = "{\"parents\": [-1, 0, 0, 1, 1], \"tokens\": [1, 2, 3, 4, 5]}";
static const char choices[] = "[[0], [1], [0, 0]]";

static void write_text(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

/* Both streams away, and back. */
static void redirect(int saved[2]) {
  const int nothing = open("/dev/null", O_WRONLY);
  for (int stream = 0; stream < 2; stream++) {
    (void)fflush(stream == 0 ? stdout : stderr);
    saved[stream] = dup(STDOUT_FILENO + stream);
    assert_true(saved[stream] >= 0 && dup2(nothing, STDOUT_FILENO + stream) >= 0);
  }
  (void)close(nothing);
}

static void restore(const int saved[2]) {
  for (int stream = 0; stream < 2; stream++) {
    (void)fflush(stream == 0 ? stdout : stderr);
    assert_true(dup2(saved[stream], STDOUT_FILENO + stream) >= 0);
    (void)close(saved[stream]);
  }
}

/* getopt moves arguments about, so each call gets its own list. */
static int run(const char *const *arguments) {
  char *list[MAX_ARGUMENTS + 2] = {"treeattn tree"};
  int count = 1;
  while (arguments[count - 1] != NULL) {
    list[count] = (char *)(uintptr_t)arguments[count - 1];
    count++;
  }
  return cmd_tree(count, list);
}

/* Fails the first allocation, the second and so on. The drawing has a plain form that needs none, so status 0 is legal too. */
static void fail_each(const char *const *arguments, const char *output) {
  long n = 0;
  do {
    n++;
    CHECK(n < TOO_MANY, "%s never succeeds", arguments[0]);
    int saved[2];
    redirect(saved);
    const int64_t live_before = cli_live_allocations();
    has_failed = false;
    countdown = n;
    const int status = run(arguments);
    countdown = 0;
    restore(saved);
    CHECK(cli_live_allocations() == live_before, "%s: allocation %ld leaks", arguments[0], n);
    CHECK(status == CLI_OK || (has_failed && (status == CLI_FAILURE || status == CLI_USAGE)),
          "%s: allocation %ld: status %d", arguments[0], n, status);
    if (output != NULL) {
      const bool written = access(output, F_OK) == 0;
      CHECK(written == (status == CLI_OK), "%s: allocation %ld: status %d, and a file %d", arguments[0], n, status,
            written);
      (void)unlink(output);
    }
  } while (has_failed);
  CHECK(n > 3, "%s: %ld allocations", arguments[0], n - 1);
}

static void each_allocation_fails_once(void **state) {
  (void)state;
  fail_each((const char *const[]){"tree.json", NULL}, NULL);
  fail_each((const char *const[]){"tree.json", "--json", NULL}, NULL);
  fail_each((const char *const[]){"tree.json", "--words", "32", "--mark", "0,2", NULL}, NULL);
  fail_each((const char *const[]){"--choices", "choices.json", "--json", NULL}, NULL);
  fail_each((const char *const[]){"--branching", "2,1", "--json", NULL}, NULL);
  fail_each((const char *const[]){"--random", "20", "--json", NULL}, NULL);
  fail_each((const char *const[]){"--medusa", "--json", NULL}, NULL);
  fail_each((const char *const[]){"tree.json", "--svg", "out.svg", NULL}, "out.svg");
  fail_each((const char *const[]){"tree.json", "--dot", "out.dot", NULL}, "out.dot");
  fail_each((const char *const[]){"tree.json", "--mask", "out.png", NULL}, "out.png");
  fail_each((const char *const[]){"tree.json", "--mask", "out.svg", NULL}, "out.svg");
  fail_each((const char *const[]){"tree.json", "-o", "out.json", NULL}, "out.json");
  fail_each((const char *const[]){"tree.json", "-o", "out.safetensors", NULL}, "out.safetensors");
  fail_each((const char *const[]){"kept.safetensors", "--json", NULL}, NULL);
}

static int make_folder(void **state) {
  (void)state;
  cli_hook_json();
  cli_set_command("tree");
  const char *base = getenv("TMPDIR");
  (void)snprintf(folder, sizeof folder, "%.40s/treeattn.XXXXXX", base != NULL ? base : P_tmpdir);
  if (mkdtemp(folder) == NULL || chdir(folder) != 0) {
    return -1;
  }
  write_text("tree.json", input);
  write_text("choices.json", choices);
  write_text("plain.json", plain);
  return run((const char *const[]){"plain.json", "-o", "kept.safetensors", NULL});
}

static int remove_folder(void **state) {
  (void)state;
  (void)unlink("tree.json");
  (void)unlink("plain.json");
  (void)unlink("choices.json");
  (void)unlink("kept.safetensors");
  return chdir("/") == 0 ? rmdir(folder) : -1;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(each_allocation_fails_once)};
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
