/* SPDX-License-Identifier: Apache-2.0 */
/* Our side of the protocol of bench/peers/peer.h: shared files, pipes and child processes. */
#define _GNU_SOURCE 1
#include "bench_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"

typedef struct shared_file {
  int file;
  void *data;
  size_t bytes;
} shared_file;

typedef struct peer {
  const char *command;
  char name[BENCH_PEER_NAME];
  pid_t process;
  FILE *to, *from;
} peer;

struct bench_peers {
  int num_peers;
  peer peers[BENCH_MAX_PEERS];
  shared_file q, k, v, seen, out;
  problem shape; /* sizes of what was set; num_nodes counts the rows that the peers see */
};

/* A file without a name, which children inherit. */
static bool create_file(shared_file *shared) {
#if defined(__linux__)
  shared->file = memfd_create("treeattn-bench", 0);
#else
  FILE *file = tmpfile();
  shared->file = file == NULL ? -1 : dup(fileno(file));
  if (file != NULL) {
    fclose(file);
  }
#endif
  return shared->file >= 0;
}

static bool resize(shared_file *shared, size_t bytes) {
  if (shared->data != NULL && shared->bytes == bytes) {
    return true;
  }
  if (shared->data != NULL) {
    munmap(shared->data, shared->bytes);
    shared->data = NULL;
  }
  if (ftruncate(shared->file, (off_t)bytes) != 0) {
    return cli_error("peers: %zu bytes cannot be shared: %s", bytes, strerror(errno)) == CLI_OK;
  }
  void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared->file, 0);
  if (data == MAP_FAILED) {
    return cli_error("peers: %zu bytes cannot be mapped: %s", bytes, strerror(errno)) == CLI_OK;
  }
  shared->data = data;
  shared->bytes = bytes;
  return true;
}

static void release(shared_file *shared) {
  if (shared->data != NULL) {
    munmap(shared->data, shared->bytes);
  }
  if (shared->file >= 0) {
    close(shared->file);
  }
}

/* A line without its end. False at the end of input. */
static bool read_line(peer *p, char *line, int bytes) {
  if (fgets(line, bytes, p->from) == NULL) {
    return cli_error("peer '%s' ended", p->command) == CLI_OK;
  }
  line[strcspn(line, "\n")] = '\0';
  return true;
}

static bool start(peer *p) {
  int down[2];
  int up[2];
  if (pipe2(down, O_CLOEXEC) != 0) {
    return cli_error("peers: %s", strerror(errno)) == CLI_OK;
  }
  if (pipe2(up, O_CLOEXEC) != 0) {
    close(down[0]);
    close(down[1]);
    return cli_error("peers: %s", strerror(errno)) == CLI_OK;
  }
  (void)fflush(NULL);
  p->process = fork();
  if (p->process == 0) {
    if (dup2(down[0], STDIN_FILENO) >= 0 && dup2(up[1], STDOUT_FILENO) >= 0) {
      execl("/bin/sh", "sh", "-c", p->command, (char *)NULL);
    }
    _exit(127);
  }
  close(down[0]);
  close(up[1]);
  p->to = fdopen(down[1], "w");
  p->from = fdopen(up[0], "r");
  if (p->process < 0 || p->to == NULL || p->from == NULL) {
    return cli_error("peer '%s' cannot be started: %s", p->command, strerror(errno)) == CLI_OK;
  }
  char line[256];
  if (!read_line(p, line, sizeof line)) {
    return false;
  }
  if (strncmp(line, "peer ", 5) != 0) {
    return cli_error("peer '%s' says '%s' where its name was expected", p->command, line) == CLI_OK;
  }
  (void)snprintf(p->name, sizeof p->name, "%.*s", (int)sizeof p->name - 1, line + 5);
  return true;
}

bench_peers *bench_peers_open(const char *const *commands, int num_commands) {
  bench_peers *peers = cli_malloc(sizeof *peers);
  if (peers == NULL) {
    (void)cli_out_of_memory();
    return NULL;
  }
  memset(peers, 0, sizeof *peers);
  (void)signal(SIGPIPE, SIG_IGN); /* a peer that ended is an error message, not our end */
  shared_file *files[] = {&peers->q, &peers->k, &peers->v, &peers->seen, &peers->out};
  bool ok = true;
  for (size_t n = 0; n < sizeof files / sizeof *files; n++) {
    ok = create_file(files[n]) && ok;
  }
  if (!ok) {
    (void)cli_error("peers: no shared memory: %s", strerror(errno));
  }
  for (int n = 0; n < num_commands && ok; n++) {
    peers->peers[n].command = commands[n];
    peers->num_peers = n + 1;
    ok = start(&peers->peers[n]);
  }
  if (!ok) {
    bench_peers_close(peers);
    return NULL;
  }
  return peers;
}

void bench_peers_close(bench_peers *peers) {
  if (peers == NULL) {
    return;
  }
  for (int n = 0; n < peers->num_peers; n++) {
    peer *p = &peers->peers[n];
    if (p->to != NULL) {
      fclose(p->to);
    }
    if (p->from != NULL) {
      fclose(p->from);
    }
    if (p->process > 0) {
      (void)waitpid(p->process, NULL, 0);
    }
  }
  release(&peers->q);
  release(&peers->k);
  release(&peers->v);
  release(&peers->seen);
  release(&peers->out);
  cli_free(peers);
}

int bench_peers_count(const bench_peers *peers) {
  return peers == NULL ? 0 : peers->num_peers;
}

const char *bench_peer_name(const bench_peers *peers, int n) {
  return peers->peers[n].name;
}

bool bench_peers_set_cache(bench_peers *peers, const problem *p) {
  const int64_t slots = p->prefix_len + p->num_nodes;
  const size_t row_bytes = (size_t)p->head_dim * treeattn_dtype_bytes(p->kv_dtype);
  const size_t bytes = (size_t)(p->num_kv_heads * slots) * row_bytes;
  peers->shape = *p;
  if (!resize(&peers->k, bytes) || !resize(&peers->v, bytes)) {
    return false;
  }
  for (int64_t g = 0; g < p->num_kv_heads; g++) {
    const size_t to = (size_t)(g * slots) * row_bytes;
    const size_t from = (size_t)(g * p->kv_capacity) * row_bytes;
    memcpy((unsigned char *)peers->k.data + to, (const unsigned char *)p->k + from, (size_t)slots * row_bytes);
    memcpy((unsigned char *)peers->v.data + to, (const unsigned char *)p->v + from, (size_t)slots * row_bytes);
  }
  return true;
}

void *bench_peers_values(bench_peers *peers) {
  return peers->v.data;
}

bool bench_peers_set_nodes(bench_peers *peers, const problem *p, const float *dense, const int64_t *nodes,
                           int64_t num_nodes) {
  const int64_t slots = p->prefix_len + p->num_nodes;
  const size_t row_bytes = (size_t)p->head_dim * sizeof(float);
  const size_t bytes = (size_t)(p->num_heads * num_nodes) * row_bytes;
  peers->shape.num_nodes = num_nodes;
  peers->shape.prefix_len = slots - num_nodes;
  if (!resize(&peers->q, bytes) || !resize(&peers->out, bytes) || !resize(&peers->seen, (size_t)(num_nodes * slots))) {
    return false;
  }
  float *q = peers->q.data;
  uint8_t *seen = peers->seen.data;
  for (int64_t n = 0; n < num_nodes; n++) {
    const int64_t node = nodes == NULL ? n : nodes[n];
    for (int64_t h = 0; h < p->num_heads; h++) {
      memcpy(q + (h * num_nodes + n) * p->head_dim, p->q + (h * p->num_nodes + node) * p->head_dim, row_bytes);
    }
    for (int64_t t = 0; t < slots; t++) {
      seen[n * slots + t] = dense[node * slots + t] > TREEATTN_MASK_HIDDEN;
    }
  }
  return true;
}

bench_peer_answer bench_peer_load(bench_peers *peers, int n, int64_t num_threads, char reason[BENCH_PEER_NAME]) {
  peer *p = &peers->peers[n];
  const problem *shape = &peers->shape;
  char line[256];
  (void)fprintf(p->to, "load %lld %lld %lld %lld %lld %s %.9g %lld %d %d %d %d %d\n", (long long)shape->num_heads,
                (long long)shape->num_kv_heads, (long long)shape->head_dim, (long long)shape->num_nodes,
                (long long)(shape->prefix_len + shape->num_nodes), treeattn_dtype_name(shape->kv_dtype),
                (double)shape->scale, (long long)num_threads, peers->q.file, peers->k.file, peers->v.file,
                peers->seen.file, peers->out.file);
  (void)fflush(p->to);
  if (!read_line(p, line, sizeof line)) {
    return BENCH_PEER_FAILED;
  }
  if (strcmp(line, "ready") == 0) {
    return BENCH_PEER_READY;
  }
  if (strncmp(line, "refused ", 8) == 0) {
    (void)snprintf(reason, BENCH_PEER_NAME, "%.*s", BENCH_PEER_NAME - 1, line + 8);
    return BENCH_PEER_REFUSED;
  }
  (void)cli_error("peer '%s' says '%s' instead of ready", p->command, line);
  return BENCH_PEER_FAILED;
}

bool bench_peer_run(bench_peers *peers, int n, double *seconds) {
  peer *p = &peers->peers[n];
  char line[256];
  (void)fputs("run\n", p->to);
  (void)fflush(p->to);
  if (!read_line(p, line, sizeof line)) {
    return false;
  }
  if (sscanf(line, "done %lf", seconds) != 1) {
    return cli_error("peer '%s' says '%s' instead of how long it took", p->command, line) == CLI_OK;
  }
  return true;
}

const float *bench_peers_out(const bench_peers *peers) {
  return peers->out.data;
}
