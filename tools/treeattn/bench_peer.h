/* SPDX-License-Identifier: Apache-2.0 */
/* Other implementations beside ours: programs that speak the protocol of bench/peers/peer.h. */
#ifndef TREEATTN_TOOL_BENCH_PEER_H
#define TREEATTN_TOOL_BENCH_PEER_H

#include <stdbool.h>

#include "problem.h"

enum { BENCH_MAX_PEERS = 8, BENCH_PEER_NAME = 96 };

typedef struct bench_peers bench_peers;

/* Starts the commands (in a shell). NULL after an error message. */
bench_peers *bench_peers_open(const char *const *commands, int num_commands);
/* Ends the programs. NULL is fine. */
void bench_peers_close(bench_peers *peers);

int bench_peers_count(const bench_peers *peers);
const char *bench_peer_name(const bench_peers *peers, int peer);

/* Copies K and V to where the peers see them. False after an error message. */
bool bench_peers_set_cache(bench_peers *peers, const problem *p);
/* V as the peers see it, [G][P + N][DV]. */
void *bench_peers_values(bench_peers *peers);
/*
 * Gives the peers the queries and the rows of `dense` [N][P + N] of these nodes; nodes NULL: all. False after an error
 * message.
 */
bool bench_peers_set_nodes(bench_peers *peers, const problem *p, const float *dense, const int64_t *nodes,
                           int64_t num_nodes);

typedef enum bench_peer_answer { BENCH_PEER_READY, BENCH_PEER_REFUSED, BENCH_PEER_FAILED } bench_peer_answer;
/* Lets one peer prepare what was set. `reason` gets why it refused; FAILED comes after an error message. */
bench_peer_answer bench_peer_load(bench_peers *peers, int peer, int64_t num_threads, char reason[BENCH_PEER_NAME]);
/* Runs what was loaded; the peer measures the time. The result is at bench_peers_out, [nodes][H][D]. */
bool bench_peer_run(bench_peers *peers, int peer, double *seconds);
const float *bench_peers_out(const bench_peers *peers);

#endif
