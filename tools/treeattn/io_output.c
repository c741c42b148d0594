/* SPDX-License-Identifier: Apache-2.0 */
/* Files that appear whole or not at all: a temporary one in the same folder, synced, then renamed. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* realpath, fsync, sigaction under -std=c11 */
#endif

#include "io_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct io_output {
  char *path;      /* as given, for messages */
  char *target;    /* links resolved, so that the file behind a link is replaced and not the link */
  char *temporary; /* NULL: the target is a device or a pipe and is written directly */
  int descriptor;
  cli_progress progress;
  size_t num_written;
};

/* What the signal handler takes away; the handler may read nothing else. */
static const char *volatile pending_temporary;

static const int fatal_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

static void remove_pending(void) {
  const char *path = pending_temporary;
  if (path != NULL) {
    (void)unlink(path);
  }
}

static void on_fatal_signal(int number) {
  remove_pending();
  /* SA_RESETHAND has put the default action back: dying by the signal tells the parent the truth. */
  (void)raise(number);
}

static void catch_fatal_signals(void) {
  static bool caught;
  if (caught) {
    return;
  }
  caught = true;
  for (size_t s = 0; s < sizeof fatal_signals / sizeof fatal_signals[0]; ++s) {
    struct sigaction action, old;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_fatal_signal;
    action.sa_flags = (int)SA_RESETHAND | SA_NODEFER;
    /* A signal that the parent had ignored (nohup) stays ignored. */
    if (sigaction(fatal_signals[s], NULL, &old) == 0 && old.sa_handler == SIG_DFL) {
      (void)sigaction(fatal_signals[s], &action, NULL);
    }
  }
}

/* The pages of a mapped file that are no longer there cannot be read by anybody; words are better than a core. */
static void on_bus_error(int number) {
  static const char message[] = "treeattn: an input file became shorter while it was read\n";
  (void)number;
  remove_pending();
  if (write(STDERR_FILENO, message, sizeof message - 1) < 0) {
    _exit(CLI_FAILURE);
  }
  _exit(CLI_FAILURE);
}

void io_guard_signals(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  (void)sigemptyset(&action.sa_mask);
  action.sa_handler = on_bus_error;
  (void)sigaction(SIGBUS, &action, NULL);
  /* A file size limit is then an error of write(), which is reported and cleaned up after. */
  action.sa_handler = SIG_IGN;
  (void)sigaction(SIGXFSZ, &action, NULL);
}

static void release(io_output *output) {
  cli_progress_end(&output->progress);
  if (output->descriptor >= 0) {
    (void)close(output->descriptor);
  }
  pending_temporary = NULL;
  cli_free(output->path);
  cli_free(output->target);
  cli_free(output->temporary);
  cli_free(output);
}

void io_output_abandon(io_output *output) {
  if (output != NULL) {
    if (output->temporary != NULL) {
      (void)unlink(output->temporary);
    }
    release(output);
  }
}

static bool report(const io_output *output, const char *doing) {
  const int failure = errno;
  (void)cli_error("%s: %s: %s", output->path, doing, strerror(failure));
  return false;
}

/* "dir/.out.npz.1a2b3c.tmp": hidden, in the same folder so that the rename stays on one file system. */
static bool open_temporary(io_output *output, const struct stat *existing) {
  const char *slash = strrchr(output->target, '/');
  const int folder_length = slash != NULL ? (int)(slash - output->target + 1) : 0;
  for (unsigned attempt = 0; attempt < 100; ++attempt) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    const uint64_t tag = (uint64_t)now.tv_nsec * 1000003u + (uint64_t)getpid() * 65537u + attempt;
    cli_free(output->temporary);
    output->temporary = cli_format("%.*s.%.200s.%08" PRIx64 ".tmp", folder_length, output->target,
                                   output->target + folder_length, tag & 0xffffffffu);
    if (output->temporary == NULL) {
      (void)cli_out_of_memory();
      return false;
    }
    output->descriptor = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (output->descriptor >= 0) {
      pending_temporary = output->temporary;
      if (existing != NULL) {
        (void)fchmod(output->descriptor, existing->st_mode & 07777);
      }
      return true;
    }
    if (errno != EEXIST) {
      break;
    }
  }
  const int failure = errno;
  cli_free(output->temporary);
  output->temporary = NULL;
  errno = failure;
  return report(output, "cannot create");
}

static bool open_target(io_output *output) {
  struct stat existing;
  if (stat(output->path, &existing) != 0) {
    output->target = cli_strdup(output->path);
    if (output->target == NULL) {
      (void)cli_out_of_memory();
      return false;
    }
    return open_temporary(output, NULL);
  }
  if (S_ISDIR(existing.st_mode)) {
    errno = EISDIR;
    return report(output, "cannot write");
  }
  if (!S_ISREG(existing.st_mode)) {
    output->descriptor = open(output->path, O_WRONLY | O_CLOEXEC);
    return output->descriptor >= 0 || report(output, "cannot write");
  }
  /* A rename would replace a file that is write-protected; that is not what its owner asked for. */
  if (access(output->path, W_OK) != 0) {
    return report(output, "cannot write");
  }
  char *resolved = realpath(output->path, NULL);
  output->target = resolved != NULL ? cli_strdup(resolved) : NULL;
  free(resolved);
  if (output->target == NULL) {
    (void)cli_out_of_memory();
    return false;
  }
  return open_temporary(output, &existing);
}

bool io_output_open(const char *path, io_output **output) {
  *output = NULL;
  io_output *fresh = cli_malloc(sizeof *fresh);
  if (fresh == NULL) {
    (void)cli_out_of_memory();
    return false;
  }
  *fresh = (io_output){.path = cli_strdup(path), .descriptor = -1};
  catch_fatal_signals();
  if (fresh->path == NULL) {
    (void)cli_out_of_memory();
  }
  if (fresh->path == NULL || !open_target(fresh)) {
    io_output_abandon(fresh);
    return false;
  }
  *output = fresh;
  return true;
}

void io_output_expect(io_output *output, size_t num_bytes) {
  cli_progress_start(&output->progress, "writing", (double)num_bytes);
}

bool io_output_write(io_output *output, const void *data, size_t num_bytes) {
  static const size_t most_at_once = (size_t)8 << 20;
  const unsigned char *bytes = data;
  size_t done = 0;
  bool good = true;
  while (good && done < num_bytes) {
    const size_t left = num_bytes - done;
    const ssize_t written = write(output->descriptor, bytes + done, left < most_at_once ? left : most_at_once);
    if (written < 0 && errno != EINTR) {
      good = report(output, "cannot write");
    }
    done += written > 0 ? (size_t)written : 0;
    output->num_written += written > 0 ? (size_t)written : 0;
    cli_progress_update(&output->progress, (double)output->num_written);
  }
  return good;
}

/* The rename itself should survive a power cut. Some file systems cannot do this, which is no reason to fail. */
static void sync_folder(const char *target) {
  const char *slash = strrchr(target, '/');
  char *folder = slash == NULL ? cli_strdup(".") : cli_format("%.*s", (int)(slash - target + 1), target);
  const int descriptor = folder != NULL ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  if (descriptor >= 0) {
    (void)fsync(descriptor);
    (void)close(descriptor);
  }
  cli_free(folder);
}

bool io_output_commit(io_output *output) {
  const bool direct = output->temporary == NULL;
  bool good =
      direct || fsync(output->descriptor) == 0 || errno == EINVAL || errno == ENOTSUP || report(output, "cannot write");
  const int closed = close(output->descriptor);
  output->descriptor = -1;
  good = good && (closed == 0 || report(output, "cannot write"));
  if (good && !direct) {
    good = rename(output->temporary, output->target) == 0 || report(output, "cannot replace");
  }
  if (!good) {
    io_output_abandon(output);
    return false;
  }
  if (!direct) {
    sync_folder(output->target);
  }
  release(output);
  return true;
}

bool io_write_bytes(const char *path, const void *data, size_t bytes) {
  io_output *output;
  if (!io_output_open(path, &output)) {
    return false;
  }
  if (!io_output_write(output, data, bytes)) {
    io_output_abandon(output);
    return false;
  }
  return io_output_commit(output);
}
