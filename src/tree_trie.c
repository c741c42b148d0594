/* SPDX-License-Identifier: Apache-2.0 */
/* Trees in which siblings carry different tokens: tries of candidate sequences, and forests merged into one. */
#include "tree.h"

/*
 * The nodes so far, found by (parent, token). Open addressing with at least as many free places as nodes, so that
 * a search ends after one look at each place at worst.
 */
typedef struct node_table {
  int32_t *parents; /* of the nodes so far */
  int32_t *tokens;
  int32_t *places; /* [num_places], a power of two: node or -1 */
  int64_t num_places;
  int64_t num_nodes;
  int64_t max_nodes;
} node_table;

#define TABLE_FULL ((int64_t)-2)

static int64_t num_places_for(int64_t max_nodes) {
  int64_t num_places = 8;
  while (num_places < 2 * max_nodes) {
    num_places *= 2;
  }
  return num_places;
}

/* The finaliser of MurmurHash3: every bit of the key reaches every bit of the result. */
static uint64_t mix(uint64_t key) {
  key = (key ^ (key >> 33)) * UINT64_C(0xff51afd7ed558ccd);
  key = (key ^ (key >> 33)) * UINT64_C(0xc4ceb9fe1a85ec53);
  return key ^ (key >> 33);
}

static void table_clear(node_table *table) {
  for (int64_t place = 0; place < table->num_places; place++) {
    table->places[place] = -1;
  }
  table->num_nodes = 0;
}

/* The child of `parent` (-1: the root) with this token, made if there is none; TABLE_FULL if that is not possible. */
static int64_t table_find_or_add(node_table *table, int32_t parent, int32_t token) {
  const uint64_t key = (uint64_t)(uint32_t)parent << 32 | (uint32_t)token;
  const uint64_t mask = (uint64_t)table->num_places - 1;
  uint64_t place = mix(key) & mask;
  while (table->places[place] >= 0) {
    const int32_t node = table->places[place];
    if (table->parents[node] == parent && table->tokens[node] == token) {
      return node;
    }
    place = (place + 1) & mask;
  }
  if (table->num_nodes == table->max_nodes) {
    return TABLE_FULL;
  }
  const int32_t node = (int32_t)table->num_nodes++;
  table->parents[node] = parent;
  table->tokens[node] = token;
  table->places[place] = node;
  return node;
}

static bool add_table(size_t *total, int64_t max_nodes) {
  return ta_scratch_add(total, max_nodes, sizeof(int32_t)) && ta_scratch_add(total, max_nodes, sizeof(int32_t)) &&
         ta_scratch_add(total, num_places_for(max_nodes), sizeof(int32_t));
}

static node_table take_table(unsigned char **next, int64_t max_nodes) {
  node_table table;
  table.max_nodes = max_nodes;
  table.num_places = num_places_for(max_nodes);
  table.parents = ta_scratch_take(next, max_nodes, sizeof(int32_t));
  table.tokens = ta_scratch_take(next, max_nodes, sizeof(int32_t));
  table.places = ta_scratch_take(next, table.num_places, sizeof(int32_t));
  table_clear(&table);
  return table;
}

static treeattn_status check_trie_args(const treeattn_trie_args *args, treeattn_error *error) {
  if (args == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "args is NULL");
  }
  if (args->struct_size < sizeof *args) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "struct_size is %zu: set it with TREEATTN_TRIE_ARGS_INIT",
                   args->struct_size);
  }
  if (args->num_tokens < 0 || (args->num_tokens > 0 && args->tokens == NULL)) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_tokens is %lld and tokens is %s",
                   (long long)args->num_tokens, args->tokens == NULL ? "NULL" : "given");
  }
  if (args->num_sequences < 0 || (args->num_sequences > 0 && args->lengths == NULL)) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_sequences is %lld and lengths is %s",
                   (long long)args->num_sequences, args->lengths == NULL ? "NULL" : "given");
  }
  if (args->root_token < TREEATTN_NO_TOKEN) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "root_token is %ld: a token is 0 or more, none is %d",
                   (long)args->root_token, TREEATTN_NO_TOKEN);
  }
  if (args->max_nodes < 0 || args->max_nodes > TREEATTN_TREE_MAX_NODES) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "max_nodes is %lld: it must be from 0 to %lld",
                   (long long)args->max_nodes, (long long)TREEATTN_TREE_MAX_NODES);
  }
  return TREEATTN_OK;
}

static treeattn_status check_sequences(const treeattn_trie_args *args, treeattn_error *error) {
  int64_t begin = 0;
  for (int64_t sequence = 0; sequence < args->num_sequences; sequence++) {
    const int32_t length = args->lengths[sequence];
    if (length < 0 || length > args->num_tokens - begin) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "lengths[%lld] is %ld: %lld of num_tokens %lld are left",
                     (long long)sequence, (long)length, (long long)(args->num_tokens - begin),
                     (long long)args->num_tokens);
    }
    begin += length;
  }
  if (begin != args->num_tokens) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_tokens is %lld: the lengths add up to %lld",
                   (long long)args->num_tokens, (long long)begin);
  }
  for (int64_t place = 0; place < args->num_tokens; place++) {
    if (args->tokens[place] < 0) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "tokens[%lld] is %ld: a token is 0 or more",
                     (long long)place, (long)args->tokens[place]);
    }
  }
  return TREEATTN_OK;
}

/* No more nodes than tokens are possible, whatever the limit. */
static int64_t trie_max_nodes(const treeattn_trie_args *args) {
  const int64_t limit = args->max_nodes == 0 ? TREEATTN_TREE_MAX_NODES : args->max_nodes;
  const int64_t num_roots = args->root_token != TREEATTN_NO_TOKEN;
  return args->num_tokens >= limit ? limit : ta_min_i64(limit, args->num_tokens + num_roots);
}

size_t treeattn_trie_scratch_bytes(const treeattn_trie_args *args) {
  size_t total = TA_SCRATCH_ALIGN;
  if (check_trie_args(args, NULL) != TREEATTN_OK || !add_table(&total, trie_max_nodes(args))) {
    return 0;
  }
  return total;
}

/* Inserts every sequence and, if last_nodes is not NULL, notes where each ends. False: the table is full and must not
 * be. */
static bool insert_sequences(const treeattn_trie_args *args, node_table *table, int32_t *last_nodes) {
  const int32_t root =
      args->root_token == TREEATTN_NO_TOKEN ? -1 : (int32_t)table_find_or_add(table, -1, args->root_token);
  int64_t begin = 0;
  for (int64_t sequence = 0; sequence < args->num_sequences; sequence++) {
    int32_t node = root;
    for (int32_t place = 0; place < args->lengths[sequence]; place++) {
      const int64_t child = table_find_or_add(table, node, args->tokens[begin + place]);
      if (child == TABLE_FULL) {
        if (args->max_nodes == 0) {
          return false;
        }
        break;
      }
      node = (int32_t)child;
    }
    begin += args->lengths[sequence];
    if (last_nodes != NULL) {
      last_nodes[sequence] = node;
    }
  }
  return true;
}

treeattn_status treeattn_tree_make_trie(const treeattn_trie_args *args, int32_t *parents, int32_t *tokens,
                                        int64_t capacity, int32_t *last_nodes, int64_t *num_nodes, void *scratch,
                                        size_t scratch_bytes, treeattn_error *error) {
  treeattn_status status = check_trie_args(args, error);
  if (status == TREEATTN_OK) {
    status = check_sequences(args, error);
  }
  if (status == TREEATTN_OK && num_nodes == NULL) {
    status = ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_nodes is NULL");
  }
  if (status == TREEATTN_OK) {
    status = ta_tree_check_scratch(scratch, scratch_bytes, treeattn_trie_scratch_bytes(args), error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  unsigned char *next = scratch;
  node_table table = take_table(&next, trie_max_nodes(args));
  if (!insert_sequences(args, &table, NULL)) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_TREE, "the sequences need more than %lld nodes: set max_nodes",
                   (long long)TREEATTN_TREE_MAX_NODES);
  }
  if (parents != NULL) {
    status = ta_tree_check_array("parents", parents, capacity, table.num_nodes, error);
    if (status == TREEATTN_OK) {
      status = ta_tree_check_array("tokens", tokens, capacity, table.num_nodes, error);
    }
    if (status != TREEATTN_OK) {
      return status;
    }
    for (int64_t i = 0; i < table.num_nodes; i++) {
      parents[i] = table.parents[i];
      tokens[i] = table.tokens[i];
    }
    if (last_nodes != NULL) {
      (void)insert_sequences(args, &table, last_nodes);
    }
  }
  *num_nodes = table.num_nodes;
  return TREEATTN_OK;
}

/* ---- merging ---- */

size_t treeattn_tree_merge_scratch_bytes(int64_t num_nodes) {
  size_t total = TA_SCRATCH_ALIGN;
  if (ta_tree_check_num_nodes(num_nodes, NULL) != TREEATTN_OK || !add_table(&total, num_nodes) ||
      !ta_scratch_add(&total, num_nodes, sizeof(int32_t))) {
    return 0;
  }
  return total;
}

treeattn_status treeattn_tree_merge_duplicates(int64_t num_nodes, const int32_t *parents, const int32_t *tokens,
                                               int32_t *merged_parents, int32_t *merged_tokens, int64_t capacity,
                                               int32_t *merged_nodes, int64_t *num_merged, void *scratch,
                                               size_t scratch_bytes, treeattn_error *error) {
  treeattn_status status = ta_tree_check_parents(num_nodes, parents, "parents", error);
  if (status == TREEATTN_OK) {
    status = ta_tree_check_array("tokens", tokens, num_nodes, num_nodes, error);
  }
  if (status == TREEATTN_OK && num_merged == NULL) {
    status = ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_merged is NULL");
  }
  if (status == TREEATTN_OK) {
    status = ta_tree_check_scratch(scratch, scratch_bytes, treeattn_tree_merge_scratch_bytes(num_nodes), error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  for (int64_t i = 0; i < num_nodes; i++) {
    if (tokens[i] < 0) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "tokens[%lld] is %ld: a token is 0 or more", (long long)i,
                     (long)tokens[i]);
    }
  }
  unsigned char *next = scratch;
  node_table table = take_table(&next, num_nodes);
  int32_t *merged = ta_scratch_take(&next, num_nodes, sizeof(int32_t));
  for (int64_t i = 0; i < num_nodes; i++) {
    merged[i] = (int32_t)table_find_or_add(&table, parents[i] < 0 ? -1 : merged[parents[i]], tokens[i]);
  }
  if (merged_parents != NULL) {
    status = ta_tree_check_array("merged_parents", merged_parents, capacity, table.num_nodes, error);
    if (status == TREEATTN_OK) {
      status = ta_tree_check_array("merged_tokens", merged_tokens, capacity, table.num_nodes, error);
    }
    if (status != TREEATTN_OK) {
      return status;
    }
    for (int64_t i = 0; i < table.num_nodes; i++) {
      merged_parents[i] = table.parents[i];
      merged_tokens[i] = table.tokens[i];
    }
    for (int64_t i = 0; i < num_nodes && merged_nodes != NULL; i++) {
      merged_nodes[i] = merged[i];
    }
  }
  *num_merged = table.num_nodes;
  return TREEATTN_OK;
}
