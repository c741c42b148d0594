/* SPDX-License-Identifier: Apache-2.0 */
/* Draft trees: making them, checking them, and everything that follows from their parents. */
#ifndef TREEATTN_TREE_H
#define TREEATTN_TREE_H

#include <treeattn/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A tree is int32_t parents[N]: parents[i] is -1 for a root and otherwise an earlier node, so parents[i] < i always
 * holds and a cycle cannot be written down. Several roots are a forest. N = 0 (no tree) and N = 1 are legal
 * everywhere; node 0 of a tree that is not empty is a root. By custom node 0 is the last committed token, whose keys
 * are not in the cache yet.
 *
 * The parents are the only truth. Everything else (depths, intervals, masks ...) is computed on demand by the
 * functions below into arrays of the caller.
 *
 *  - Every function that takes parents checks them first, in one pass, so that any input ends in an answer or in
 *    TREEATTN_ERROR_INVALID_TREE with the number of the offending node. More than TREEATTN_TREE_MAX_NODES nodes are
 *    an error too.
 *  - `capacity` counts the elements of the array before it (rows, where it says rows). Too few are
 *    TREEATTN_ERROR_BUFFER_TOO_SMALL, and the message says how many are needed.
 *  - The functions that make a tree of their own size tell it when `parents` is NULL: they then write *num_nodes alone.
 *  - Output arrays must not overlap inputs or each other. On failure nothing has been written.
 *  - Nothing allocates. Functions that need working memory take `scratch` (any alignment, content irrelevant before
 *    and after) and have a *_scratch_bytes query beside them, which answers 0 for arguments that are not legal.
 */

#define TREEATTN_TREE_MAX_NODES ((int64_t)1 << 20)

/* ---- what follows from the parents -------------------------------------------------------------------------- */

/* Only the check. */
TREEATTN_API treeattn_status treeattn_tree_check(int64_t num_nodes, const int32_t *parents, treeattn_error *error);

/* Sizes of a tree, for the arrays below. All are 0 for an empty tree. */
typedef struct treeattn_tree_counts {
  int64_t num_roots;
  int64_t num_leaves; /* nodes without children */
  int64_t num_levels; /* nodes on the longest root-to-leaf path */
  int64_t max_children;
} treeattn_tree_counts;

TREEATTN_API size_t treeattn_tree_counts_scratch_bytes(int64_t num_nodes);
TREEATTN_API treeattn_status treeattn_tree_get_counts(int64_t num_nodes, const int32_t *parents,
                                                      treeattn_tree_counts *counts, void *scratch, size_t scratch_bytes,
                                                      treeattn_error *error);

/* depths[N]: 0 for a root, one more than the parent's otherwise. */
TREEATTN_API treeattn_status treeattn_tree_get_depths(int64_t num_nodes, const int32_t *parents, int32_t *depths,
                                                      int64_t capacity, treeattn_error *error);

/* positions[N]: prefix_len + depth, the index in the sequence that RoPE is given. OVERFLOW if prefix_len + N does not
 * fit int32_t. */
TREEATTN_API treeattn_status treeattn_tree_get_positions(int64_t num_nodes, const int32_t *parents, int64_t prefix_len,
                                                         int32_t *positions, int64_t capacity, treeattn_error *error);

/* The children of all nodes, in ascending order: node i has children[begins[i]] .. children[begins[i+1] - 1], and the
 * roots come first, children[0] .. children[begins[0] - 1]. begins[N + 1], children[N]. */
TREEATTN_API treeattn_status treeattn_tree_get_children(int64_t num_nodes, const int32_t *parents, int32_t *begins,
                                                        int64_t begins_capacity, int32_t *children,
                                                        int64_t children_capacity, treeattn_error *error);

/* The same as links: first_child[N] and next_sibling[N], -1 where there is none. Siblings ascend; roots are
 * siblings. */
TREEATTN_API treeattn_status treeattn_tree_get_links(int64_t num_nodes, const int32_t *parents, int32_t *first_child,
                                                     int32_t *next_sibling, int64_t capacity, treeattn_error *error);

/* The nodes without children, ascending. leaves[N]: what follows the first num_leaves elements is working memory. */
TREEATTN_API treeattn_status treeattn_tree_get_leaves(int64_t num_nodes, const int32_t *parents, int32_t *leaves,
                                                      int64_t capacity, int64_t *num_leaves, treeattn_error *error);

/* The path from the root to `node`, both included. */
TREEATTN_API treeattn_status treeattn_tree_get_path(int64_t num_nodes, const int32_t *parents, int64_t node,
                                                    int32_t *path, int64_t capacity, int64_t *path_len,
                                                    treeattn_error *error);

/* The same for several nodes (the leaves, say), a row for each: paths[num_rows][row_stride], filled up with -1. With
 * the leaves this is the retrieval table of other systems. capacity counts elements; a row_stride below the longest
 * path is BUFFER_TOO_SMALL. */
TREEATTN_API treeattn_status treeattn_tree_get_paths(int64_t num_nodes, const int32_t *parents, const int32_t *nodes,
                                                     int64_t num_rows, int32_t *paths, int64_t row_stride,
                                                     int64_t capacity, treeattn_error *error);

/* ---- masks -------------------------------------------------------------------------------------------------- */

/* intervals[N][2] = {begin, end} of a depth-first walk that visits children in ascending order, as in
 * TREEATTN_MASK_INTERVALS: begin is the node's place in the walk, end - begin the size of its subtree. capacity_rows
 * counts pairs. */
TREEATTN_API treeattn_status treeattn_tree_get_intervals(int64_t num_nodes, const int32_t *parents, int32_t *intervals,
                                                         int64_t capacity_rows, treeattn_error *error);

/*
 * Masks of N rows and prefix_len + N columns: a row sees the prefix_len first columns, its own node and its ancestors.
 * prefix_len 0 gives the square tree mask (mask_columns = N in treeattn_request), the real P full rows. Rows are
 * row_stride elements apart and are written in full: columns after the last are hidden. row_stride 0 packs them.
 *
 *   bits   uint8_t, one bit a column, low bit first, as in TREEATTN_MASK_BITS. row_stride counts bytes; a multiple of
 *          4 or 8 makes rows of 32- or 64-bit words on little-endian machines.
 *   bool   uint8_t, 0 or 1
 *   f32    0 or -65504 (TREEATTN_MASK_HIDDEN)
 */
TREEATTN_API treeattn_status treeattn_tree_get_mask_bits(int64_t num_nodes, const int32_t *parents, int64_t prefix_len,
                                                         uint8_t *bits, int64_t row_stride, size_t bits_bytes,
                                                         treeattn_error *error);
TREEATTN_API treeattn_status treeattn_tree_get_mask_bool(int64_t num_nodes, const int32_t *parents, int64_t prefix_len,
                                                         uint8_t *mask, int64_t row_stride, size_t mask_bytes,
                                                         treeattn_error *error);
TREEATTN_API treeattn_status treeattn_tree_get_mask_f32(int64_t num_nodes, const int32_t *parents, int64_t prefix_len,
                                                        float *mask, int64_t row_stride, size_t mask_bytes,
                                                        treeattn_error *error);

/* Back from intervals. The begins must differ and intervals must nest, the outer one having the smaller index; they
 * need not be the ones that treeattn_tree_get_intervals writes. INVALID_TREE names the node otherwise. */
TREEATTN_API size_t treeattn_tree_from_intervals_scratch_bytes(int64_t num_nodes);
TREEATTN_API treeattn_status treeattn_tree_from_intervals(int64_t num_nodes, const int32_t *intervals, int32_t *parents,
                                                          int64_t capacity, void *scratch, size_t scratch_bytes,
                                                          treeattn_error *error);

/* Back from bits with prefix_len prefix columns, all of them seen. INVALID_TREE names the first node whose row is not
 * its parent's row and itself, the parent being the last earlier node that it sees. */
TREEATTN_API treeattn_status treeattn_tree_from_mask_bits(int64_t num_nodes, int64_t prefix_len, const uint8_t *bits,
                                                          int64_t row_stride, size_t bits_bytes, int32_t *parents,
                                                          int64_t capacity, treeattn_error *error);

/* ---- fixed shapes ------------------------------------------------------------------------------------------- */

/* Node i's parent is i - 1. */
TREEATTN_API treeattn_status treeattn_tree_make_chain(int64_t num_nodes, int32_t *parents, int64_t capacity,
                                                      treeattn_error *error);

/* One root and `num_levels` levels below it: every node of level d has branching[d] children (0 or more; what follows
 * a 0 is ignored). Nodes are numbered level by level. */
TREEATTN_API treeattn_status treeattn_tree_make_branching(const int32_t *branching, int64_t num_levels,
                                                          int32_t *parents, int64_t capacity, int64_t *num_nodes,
                                                          treeattn_error *error);

/* The same with `arity` children for every node above the last of `depth` levels below the root. */
TREEATTN_API treeattn_status treeattn_tree_make_kary(int64_t arity, int64_t depth, int32_t *parents, int64_t capacity,
                                                     int64_t *num_nodes, treeattn_error *error);

/*
 * A list of choices as Medusa (arXiv 2401.10774) and EAGLE (arXiv 2401.15077) publish their trees: each entry is the
 * path of child ranks from the root to a node, [0] the root's likeliest child, [0, 2] the third child of that. The
 * entries come in any order and may repeat; every entry's ancestors must be in the list, else INVALID_TREE names the
 * entry. The root (the empty path, which may be listed) is node 0; then come the distinct paths by length, equal
 * lengths in lexicographic order. Ranks may have gaps: a rank says which of the draft's candidates a node takes.
 *
 *   ranks[num_ranks]       the paths, one after another
 *   lengths[num_choices]   the ranks in each
 */
typedef struct treeattn_tree_choices {
  const int32_t *ranks;
  int64_t num_ranks;
  const int32_t *lengths;
  int64_t num_choices;
} treeattn_tree_choices;

TREEATTN_API size_t treeattn_tree_choices_scratch_bytes(int64_t num_choices);
/* node_ranks[N] (may be NULL): the last rank of each node's path, -1 for the root. */
TREEATTN_API treeattn_status treeattn_tree_make_choices(const treeattn_tree_choices *choices, int32_t *parents,
                                                        int32_t *node_ranks, int64_t capacity, int64_t *num_nodes,
                                                        void *scratch, size_t scratch_bytes, treeattn_error *error);

/*
 * Well-known choice lists by name, e.g. "medusa-mc_sim_7b_63" (63 choices, 64 nodes with the root) and
 * "eagle-mc_sim_7b_63" (25 choices). Their ranks have no gaps, so a node's rank is its place among its siblings.
 * treeattn_tree_named_at(index) gives the names, NULL after the last.
 */
TREEATTN_API const char *treeattn_tree_named_at(int64_t index);
TREEATTN_API treeattn_status treeattn_tree_make_named(const char *name, int32_t *parents, int64_t capacity,
                                                      int64_t *num_nodes, treeattn_error *error);

/* ---- tries of token sequences ------------------------------------------------------------------------------- */

/*
 * Candidate sequences (n-gram look-ups, lookahead, several drafters) become one tree in which equal prefixes are one
 * path. Sequences are taken in order, earlier ones first in rank, and each token that has no node yet gets the next
 * number. At max_nodes nodes no more are made: a sequence that needs another is cut there, and later ones may still
 * run along nodes that exist. Empty sequences are legal. Token ids are 0 or more.
 */
typedef struct treeattn_trie_args {
  size_t struct_size;
  const int32_t *tokens; /* [num_tokens]: the sequences, one after another */
  int64_t num_tokens;
  const int32_t *lengths; /* [num_sequences] */
  int64_t num_sequences;
  int32_t root_token; /* node 0, above all sequences; TREEATTN_NO_TOKEN: a forest whose roots are the first tokens */
  int64_t max_nodes;  /* node 0 included; 0: TREEATTN_TREE_MAX_NODES, and needing more is an error instead of a cut */
} treeattn_trie_args;

#define TREEATTN_NO_TOKEN (-1)
#define TREEATTN_TRIE_ARGS_INIT \
  { sizeof(treeattn_trie_args), 0, 0, 0, 0, TREEATTN_NO_TOKEN, 0 }

/* Bytes of scratch for these arguments, 0 if they are not legal. */
TREEATTN_API size_t treeattn_trie_scratch_bytes(const treeattn_trie_args *args);
/* parents[N], tokens[N] and, if not NULL, last_nodes[num_sequences]: the last node of each sequence that was kept, -1
 * for none (in a tree with a root: at least node 0). parents NULL: tells the size (tokens and last_nodes are then
 * ignored). */
TREEATTN_API treeattn_status treeattn_tree_make_trie(const treeattn_trie_args *args, int32_t *parents, int32_t *tokens,
                                                     int64_t capacity, int32_t *last_nodes, int64_t *num_nodes,
                                                     void *scratch, size_t scratch_bytes, treeattn_error *error);

/*
 * Merges siblings that carry the same token (roots are siblings), and then their children, into the first of them:
 * several trees, joined into one forest, become one tree in which no two children of a node have the same token. The
 * nodes that remain keep their order. merged_parents[N'], merged_tokens[N'], N' <= N; merged_nodes[N] (may be NULL):
 * where each node went.
 */
TREEATTN_API size_t treeattn_tree_merge_scratch_bytes(int64_t num_nodes);
TREEATTN_API treeattn_status treeattn_tree_merge_duplicates(int64_t num_nodes, const int32_t *parents,
                                                            const int32_t *tokens, int32_t *merged_parents,
                                                            int32_t *merged_tokens, int64_t capacity,
                                                            int32_t *merged_nodes, int64_t *num_merged, void *scratch,
                                                            size_t scratch_bytes, treeattn_error *error);

/* ---- dynamic growth ----------------------------------------------------------------------------------------- */

/*
 * A tree that follows the draft model's confidence, as EAGLE-2 (arXiv 2406.16858, also used by EAGLE-3) defines it. A
 * node's value is the sum of the log-probabilities on its path, in float64.
 *
 *   Growth      Level by level: of the newest level only the top_k nodes of highest value are expanded, that is,
 *               given to the draft model, which proposes up to max_children children for each.
 *   Selection   Of all nodes ever proposed, expanded or not, the num_nodes of highest value are kept, root included.
 *
 * Ties go to the lower index. A child's value is never above its parent's and its index is higher, so the nodes that
 * are kept have their parents with them. This is not the tree of a best-first queue that admits the children of every
 * node it pops: such a queue expands nodes that no draft step ever expanded.
 *
 *     treeattn_growth_bytes, treeattn_growth_init             node 0 is the root, and the only node of the frontier
 *     repeat  treeattn_growth_get_frontier                    the nodes to expand next, best first; none: done
 *             (draft: run these nodes, take the likeliest children of each)
 *             treeattn_growth_add_level
 *     treeattn_growth_select                                  the tree to verify
 *
 * Proposed nodes are numbered from 1 as they come: by level, by their parent's place in the frontier, by their place
 * in its row. Nodes are expanded in rows of the frontier, so expansion e of the draft (0: the root) is the e-th node
 * that ever was in a frontier; treeattn_growth_get_drafted gives the tree of these, which is what the draft model's
 * own cache holds.
 */
typedef struct treeattn_growth treeattn_growth;

typedef struct treeattn_growth_args {
  size_t struct_size;
  int32_t root_token;
  int64_t top_k;        /* nodes expanded at each level, 1 or more */
  int64_t max_children; /* of one node, 1 or more; 0: top_k */
  int64_t max_levels;   /* levels below the root, 0 or more */
} treeattn_growth_args;

#define TREEATTN_GROWTH_ARGS_INIT \
  { sizeof(treeattn_growth_args), 0, 0, 0, 0 }

/* INVALID_TREE if the nodes that may be proposed exceed TREEATTN_TREE_MAX_NODES. */
TREEATTN_API treeattn_status treeattn_growth_bytes(const treeattn_growth_args *args, size_t *bytes,
                                                   treeattn_error *error);
/* Starts inside `memory` (any alignment), which must outlive the growth and not move. *growth points into it; there is
 * nothing to destroy, and calling init again starts over. */
TREEATTN_API treeattn_status treeattn_growth_init(const treeattn_growth_args *args, void *memory, size_t memory_bytes,
                                                  treeattn_growth **growth, treeattn_error *error);

/* The proposed nodes to expand next, at most top_k; *num_nodes is 0 once max_levels levels are there or none was
 * proposed. */
TREEATTN_API treeattn_status treeattn_growth_get_frontier(const treeattn_growth *growth, int32_t *nodes,
                                                          int64_t capacity, int64_t *num_nodes, treeattn_error *error);

/* A level: row f holds the children of the frontier's node f, tokens[F][row_stride] and log_probs[F][row_stride], of
 * which the first counts[f] are read, or max_children if counts is NULL. row_stride 0: max_children. log_probs are
 * natural logarithms, at most 0; -infinity is legal. NaN and values above 0 are INVALID_VALUE, with the number of the
 * node it would have been. */
TREEATTN_API treeattn_status treeattn_growth_add_level(treeattn_growth *growth, const int32_t *tokens,
                                                       const float *log_probs, const int32_t *counts,
                                                       int64_t row_stride, treeattn_error *error);

/* All nodes that were proposed, the root first: parents, tokens and values, each of which may be NULL. */
TREEATTN_API treeattn_status treeattn_growth_get_proposed(const treeattn_growth *growth, int32_t *parents,
                                                          int32_t *tokens, double *values, int64_t capacity,
                                                          int64_t *num_nodes, treeattn_error *error);

/* The nodes that were expanded or are in the frontier, in order of expansion: their parents among themselves (so that
 * drafting level by level is attention with query_nodes) and their proposed numbers, each of which may be NULL. */
TREEATTN_API treeattn_status treeattn_growth_get_drafted(const treeattn_growth *growth, int32_t *parents,
                                                         int32_t *proposed, int64_t capacity, int64_t *num_nodes,
                                                         treeattn_error *error);

/* The kept tree of at most max_nodes nodes (0 or more, fewer if fewer were proposed), in order of their proposed
 * numbers: parents, tokens, values and proposed numbers; all but parents may be NULL. The growth can go on
 * afterwards. */
TREEATTN_API treeattn_status treeattn_growth_select(treeattn_growth *growth, int64_t max_nodes, int32_t *parents,
                                                    int32_t *tokens, double *values, int32_t *proposed,
                                                    int64_t capacity, int64_t *num_nodes, treeattn_error *error);

/* ---- the size that pays ------------------------------------------------------------------------------------- */

/*
 * The tree of most expected tokens per unit of cost, as in Sequoia (arXiv 2402.12374, sections 3.1 and 3.3).
 * acceptance[d][r] is the probability that verification, having accepted a node of depth d, goes on to its child of
 * rank r; the ranks exclude each other. A step emits the accepted drafts and one token more, so a tree is worth the
 * sum over its nodes of the product of the rates on their paths, the root counting 1. Over all n <= max_nodes and
 * depths D <= num_levels it maximises
 *
 *     expected_tokens(best tree of n nodes and depth at most D) / (verify_cost[n - 1] + draft_cost[D])
 *
 * by dynamic programming over the levels. Each level's gain from one node more never grows, so the best division of
 * nodes among children is a merge, and the whole costs num_levels^2 * max_nodes * log(num_ranks). Ties go to fewer
 * levels, then fewer nodes, and nodes to the lower rank.
 */
typedef struct treeattn_budget_args {
  size_t struct_size;
  const double *acceptance;  /* [num_levels][num_ranks], each in [0, 1]; a rate of 0 makes no node */
  int64_t num_levels;        /* levels below the root, 0 or more */
  int64_t num_ranks;         /* children of a node, at most */
  const double *verify_cost; /* [max_nodes]: of a step with 1, 2, ... nodes, root included. Finite, above 0; any unit */
  int64_t max_nodes;         /* 1 or more */
  const double *draft_cost;  /* [num_levels + 1]: of drafting 0, 1, ... levels. Finite, never falling. NULL: free */
} treeattn_budget_args;

#define TREEATTN_BUDGET_ARGS_INIT \
  { sizeof(treeattn_budget_args), 0, 0, 0, 0, 0, 0 }

typedef struct treeattn_budget_result {
  int64_t num_nodes;
  int64_t num_levels; /* below the root */
  double expected_tokens;
  double cost;
  double tokens_per_cost;
} treeattn_budget_result;

TREEATTN_API treeattn_status treeattn_budget_scratch_bytes(const treeattn_budget_args *args, size_t *bytes,
                                                           treeattn_error *error);
/* parents[N] and node_ranks[N] (-1 for the root; may be NULL), level by level, the children of a node in the order of
 * their rates, which is that of their ranks where the rates fall. capacity: max_nodes always suffices. */
TREEATTN_API treeattn_status treeattn_tree_make_budget(const treeattn_budget_args *args, int32_t *parents,
                                                       int32_t *node_ranks, int64_t capacity,
                                                       treeattn_budget_result *result, void *scratch,
                                                       size_t scratch_bytes, treeattn_error *error);

#ifdef __cplusplus
}
#endif
#endif
