/* SPDX-License-Identifier: Apache-2.0 */
/* A tree and what is known about its nodes, as `treeattn tree` passes it around. */
#ifndef TREEATTN_TOOL_TREE_DATA_H
#define TREEATTN_TOOL_TREE_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

typedef struct tree_data {
  int64_t num_nodes;
  int32_t *parents;     /* checked */
  int32_t *ranks;       /* of choices; NULL: not known */
  int32_t *tokens;      /* NULL: not known */
  const char **texts;   /* of tokens, owned by `document`; NULL: not known */
  unsigned char *marks; /* nodes of an accepted path; NULL: not known */
  json_t *document;
} tree_data;

/*
 * All functions report what went wrong through cli.h and return false; *data can be freed either way if it was zeroed
 * before. The makers begin with an empty *data.
 */
void tree_data_free(tree_data *data);

/* A .safetensors, .npz or .npy file with `parents`, otherwise JSON; "-": JSON from standard input. */
bool tree_data_read(const char *path, tree_data *data);
/* A JSON file with a list of paths of child ranks. */
bool tree_data_read_choices(const char *path, tree_data *data);

bool tree_data_make_chain(int64_t num_nodes, tree_data *data);
bool tree_data_make_kary(int64_t arity, int64_t depth, tree_data *data);
bool tree_data_make_branching(const int64_t *branching, size_t num_levels, tree_data *data);
bool tree_data_make_named(const char *name, tree_data *data);
/* The parent of each node is one of the earlier ones, all alike; splitmix64 from the seed. */
bool tree_data_make_random(int64_t num_nodes, uint64_t seed, tree_data *data);

/* Marks the nodes of a path, which may end anywhere but must lead from parent to child. `subject` is named in
 * errors. */
bool tree_data_mark(tree_data *data, const char *subject, const int64_t *path, size_t path_len);

#endif
