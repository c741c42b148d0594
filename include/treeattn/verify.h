/* SPDX-License-Identifier: Apache-2.0 */
/* Verification: which drafts of a tree are kept, and which token follows them. */
#ifndef TREEATTN_VERIFY_H
#define TREEATTN_VERIFY_H

#include <treeattn/attention.h>
#include <treeattn/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The walk
 *
 * Node 0 is the last committed token, and the drafts are below it. Row i of `argmax`, `logits` or `probs` says what the
 * target model expects to follow node i, so the children of node i are the candidates for row i. Verification starts
 * at node 0. It looks at the children of the node where it stands in order of their index, moves to the first that is
 * accepted, and goes on from there; where none is accepted, or there are none, the last token comes from the row of
 * the node where it stands (after a rejection, from what the rejection leaves of that row). The result is
 *
 *     path     node 0, then the accepted nodes            num_path entries, at least 1
 *     tokens   the tokens of the accepted nodes, then the last token      num_path entries as well
 *
 * so every step emits at least one token. `path` is what treeattn commits (commit.h); the last token is node 0 of the
 * next step. Roots other than node 0, and what hangs below them, are never reached.
 *
 * Only rows on the walked path are read. What stands in other rows, NaN included, changes nothing.
 *
 * What is guaranteed
 *
 *  - GREEDY emits exactly the tokens that decoding one by one with argmax would. Equal maxima go to the lowest index.
 *  - TARGET_ONLY, RESIDUAL and WITHOUT_REPLACEMENT emit tokens with exactly the target's distribution, if the drafter
 *    did what the method states. Tokens of probability zero are never emitted.
 *  - At temperature 0 every method is GREEDY, and no uniform is read.
 *  - A NaN logit or probability in a row that is read is TREEATTN_ERROR_INVALID_VALUE and names the node and the
 *    vocabulary index; it never becomes a token. -infinity is a logit that forbids a token, and a row of nothing else
 *    is an error. Tokens with a logit of +infinity, if there are any, share the whole probability equally.
 *  - The result of a request depends on that request alone: not on the others, num_workers or the executor. It is
 *    the same on every machine: exponentials are the library's own, and sums have one order. The caller's
 *    floating-point environment neither changes it nor is changed.
 *
 * What is not guaranteed: TYPICAL_LOSSY does not keep the target's distribution. Uniforms have 24 bits, so that an
 * event of probability a happens with ceil(a * 2^24) / 2^24; the laws above hold exactly for real-valued uniforms.
 */

/* ---- methods ---------------------------------------------------------------------------------------------- */

/*
 * p is the row of the node where the walk stands, a distribution over the vocabulary; q is the distribution that its
 * children were drawn from, as the drafter used it (after its own temperature and filters). Rejections change both as
 * stated, and the next sibling meets the changed ones. norm() divides by the sum; coins accept where uniform < a.
 */
typedef enum treeattn_verify_method {
  /* Accept the first child whose token is the row's argmax; the last token is the last row's argmax. No uniforms. */
  TREEATTN_VERIFY_GREEDY = 0,

  /*
   * Drafts that were chosen, not drawn: prompt lookup, the best k, a beam, a dynamic tree. q is one-hot.
   *     a = p(x);  after a rejection  p <- norm(p without x)
   * Lossless whatever the drafter did, as long as it did not look at these uniforms. A duplicate of a
   * rejected sibling has p = 0 and is rejected. It is the rule of Leviathan et al. (arXiv 2211.17192) and Chen et
   * al. (arXiv 2302.01318) for a one-hot q, sibling after sibling.
   */
  TREEATTN_VERIFY_TARGET_ONLY = 1,

  /*
   * Siblings drawn independently from one q, duplicates kept as nodes of their own.
   *     a = min(1, p(x) / q(x));  after a rejection  p <- norm(max(p - q, 0))
   * The multi-step rule of SpecInfer (Miao et al., arXiv 2305.09781). Lossless if the number of a node's children was
   * fixed before they were drawn and none was merged, dropped or moved because of its token.
   */
  TREEATTN_VERIFY_RESIDUAL = 2,

  /*
   * Siblings drawn one after another from q without those before them; their order of index is the order of drawing
   * (for Gumbel top-k: descending perturbed score). draft_probs holds q before any removal.
   *     a = min(1, p(x) / q(x));  after a rejection  p <- norm(max(p - q, 0)),  then  q <- norm(q without x)
   * Recursive rejection sampling (Jeon et al., arXiv 2402.14160; also Sequoia, Chen et al., arXiv 2402.12374, and
   * EAGLE, Li et al., arXiv 2401.15077). Lossless under the same condition as RESIDUAL, and for draws with replacement
   * too: a token that comes again after its rejection is passed over.
   */
  TREEATTN_VERIFY_WITHOUT_REPLACEMENT = 3,

  /*
   * LOSSY. Typical acceptance of Medusa (Cai et al., arXiv 2401.10774): a child is acceptable if its parent is and
   *     p(x) > min(epsilon, delta * exp(-H(p)))            H(p) = -sum p ln p
   * The walk ends at the deepest acceptable node (among equally deep ones that of the most probable path, then the
   * lowest index), and the last token is the argmax of its row. No uniforms. Reads the rows of all acceptable nodes
   * that have children.
   */
  TREEATTN_VERIFY_TYPICAL_LOSSY = 4
} treeattn_verify_method;

/* "greedy", "target-only", "residual", "without-replacement", "typical"; "unknown" for any other value. */
TREEATTN_API const char *treeattn_verify_method_name(treeattn_verify_method method);

/*
 * In RESIDUAL and WITHOUT_REPLACEMENT a child with q(x) = 0 cannot have been drawn from q: it is treated as TARGET_ONLY
 * treats it (a = p(x), p <- norm(p without x), q stays), which is lossless however the child came about. So a row of
 * zeros in draft_probs marks children that were chosen, and a sampler may go on by any rule once q is exhausted.
 * A rejection that would leave nothing of p is a rounding error of a = 1: the child is accepted.
 *
 * Uniforms are consumed in the order of decisions: one for each child that is considered, whatever its probability,
 * then one for the last token. A request never needs more than num_nodes; those left over are not read.
 * The last token is the smallest t with  p(0) + ... + p(t) > uniform.
 */

/* ---- one batch -------------------------------------------------------------------------------------------- */

/* A matrix [num_nodes][vocab_size]. data NULL: absent. */
typedef struct treeattn_verify_rows {
  const void *data;
  size_t bytes;         /* size of the buffer from data on */
  treeattn_dtype dtype; /* 0: F32 */
  int64_t row_stride;   /* elements between rows, at least vocab_size; 0: vocab_size */
} treeattn_verify_rows;

typedef struct treeattn_verify_request {
  treeattn_verify_method method;
  float temperature; /* of logits: p = softmax(logits / temperature). 0: greedy. With probs 0 or 1. GREEDY ignores it */

  int64_t num_nodes;      /* 0: nothing to verify, and num_path is 0 */
  const int32_t *parents; /* [num_nodes]; as in attention.h */
  const int32_t *tokens;  /* [num_nodes], 0 <= token < vocab_size. tokens[0] is not read */

  /* Exactly one of the three. probs: 0 or more, finite, not all 0; rows are divided by their sums. */
  const int32_t *argmax; /* [num_nodes], 0 or more: GREEDY, or temperature 0 */
  treeattn_verify_rows logits;
  treeattn_verify_rows probs;

  /* RESIDUAL and WITHOUT_REPLACEMENT, unless temperature is 0: row i is what the children of node i were drawn from.
   * 0 or more and finite; rows are divided by their sums. Rows of nodes without children are not read. */
  treeattn_verify_rows draft_probs;

  const float *uniforms; /* [num_uniforms], 0 <= uniform < 1; num_nodes always suffice */
  int64_t num_uniforms;

  float typical_epsilon; /* TYPICAL_LOSSY: 0: 0.09 */
  float typical_delta;   /* TYPICAL_LOSSY: 0: 0.3 */
} treeattn_verify_request;

#define TREEATTN_VERIFY_ROWS_INIT \
  { 0, 0, TREEATTN_F32, 0 }
#define TREEATTN_VERIFY_REQUEST_INIT                                                                \
  {                                                                                                 \
    TREEATTN_VERIFY_GREEDY, 1.0f, 0, 0, 0, 0, TREEATTN_VERIFY_ROWS_INIT, TREEATTN_VERIFY_ROWS_INIT, \
        TREEATTN_VERIFY_ROWS_INIT, 0, 0, 0, 0                                                       \
  }

/* One decision of a walk, for those who want to see how a result came about. */
typedef struct treeattn_verify_decision {
  int32_t row;        /* the node whose row decided */
  int32_t node;       /* the candidate, a child of `row`; -1: the last token was taken */
  int32_t token;      /* of the candidate, or the last token */
  int32_t accepted;   /* 1 or 0; 1 for the last token */
  double probability; /* that a coin accepts the candidate, or of the last token in what was left. GREEDY: 1 or 0.
                         TYPICAL_LOSSY: p(x) */
  double threshold;   /* TYPICAL_LOSSY: what p(x) had to exceed. Otherwise 0 */
  double uniform;     /* the coin; NaN where none was thrown */
} treeattn_verify_decision;

typedef struct treeattn_verify_result {
  /* Set by the caller. */
  int32_t *path;
  int32_t *tokens;
  int64_t capacity;                    /* entries in path and in tokens: at least num_nodes */
  treeattn_verify_decision *decisions; /* or NULL */
  int64_t decisions_capacity;          /* at least num_nodes if decisions is not NULL */
  /* Set by treeattn_verify. */
  int64_t num_path;
  int64_t num_decisions; /* 0 if decisions is NULL */
} treeattn_verify_result;

#define TREEATTN_VERIFY_RESULT_INIT \
  { 0, 0, 0, 0, 0, 0, 0 }

typedef struct treeattn_verify_args {
  size_t struct_size;
  int64_t vocab_size; /* 1 to 2^31 - 1. May be 0 where every request brings argmax */
  int64_t num_requests;
  const treeattn_verify_request *requests;
  size_t request_bytes;            /* sizeof(treeattn_verify_request) */
  treeattn_verify_result *results; /* [num_requests] */
  size_t result_bytes;             /* sizeof(treeattn_verify_result) */
  int64_t num_workers;             /* requests verified at once, at most 1024; each has a share of scratch. 0: 1 */
  void *scratch;                   /* any alignment */
  size_t scratch_bytes;
  treeattn_executor executor;
} treeattn_verify_args;

#define TREEATTN_VERIFY_ARGS_INIT                                                                                    \
  {                                                                                                                  \
    sizeof(treeattn_verify_args), 0, 0, 0, sizeof(treeattn_verify_request), 0, sizeof(treeattn_verify_result), 0, 0, \
        0, {                                                                                                         \
      0, 0                                                                                                           \
    }                                                                                                                \
  }

/* The scratch that treeattn_verify needs. Depends on the methods, temperatures, sizes, and which arrays are present. */
TREEATTN_API treeattn_status treeattn_verify_scratch_bytes(const treeattn_verify_args *args, size_t *scratch_bytes,
                                                           treeattn_error *error);

/*
 * Verifies every request, requests in parallel. Allocates nothing. An error in one request fails the call, names the
 * first request that has one, and writes no result; call again with single requests where the others must go on.
 *
 * GREEDY over logits reads the rows of the path one after another, the least that there is to read. Where cores are
 * idle and requests are few, treeattn_logits_argmax over all rows in parallel, then GREEDY with argmax, can be faster.
 */
TREEATTN_API treeattn_status treeattn_verify(const treeattn_verify_args *args, treeattn_error *error);

/* The GREEDY walk of one request over argmax ids, without a struct. path and tokens_out have room for num_nodes. */
TREEATTN_API treeattn_status treeattn_verify_greedy(int64_t num_nodes, const int32_t *parents, const int32_t *tokens,
                                                    const int32_t *argmax, int32_t *path, int32_t *tokens_out,
                                                    int64_t *num_path, treeattn_error *error);

/* ---- argmax ----------------------------------------------------------------------------------------------- */

/* Scratch of treeattn_logits_argmax; 0 for a negative number of rows. */
TREEATTN_API size_t treeattn_logits_argmax_scratch_bytes(int64_t num_rows);

/*
 * The index of the largest logit of each row, the lowest among equals; rows in parallel, at the speed of reading them.
 * A NaN, or a row of nothing but -infinity, is an error that names the row and writes nothing. -0 equals 0.
 * `executor` may be NULL.
 */
TREEATTN_API treeattn_status treeattn_logits_argmax(const treeattn_verify_rows *rows, int64_t num_rows,
                                                    int64_t vocab_size, const treeattn_executor *executor,
                                                    void *scratch, size_t scratch_bytes, int32_t *argmax,
                                                    treeattn_error *error);

/* ---- random numbers --------------------------------------------------------------------------------------- */

/* Philox4x32 with 10 rounds (Salmon et al., SC'11): a bijection of the counter for each key. */
TREEATTN_API void treeattn_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t output[4]);

/* Drafting and verifying at the same position must not share uniforms: give them different streams. */
#define TREEATTN_STREAM_VERIFY 0u
#define TREEATTN_STREAM_DRAFT 1u
#define TREEATTN_STREAM_MAX 255u
#define TREEATTN_UNIFORMS_MAX ((int64_t)1 << 26)

/*
 * uniforms[i], 0 <= i < count <= TREEATTN_UNIFORMS_MAX: a number k * 2^-24 in [0, 1) that is a function of (seed,
 * request, position, stream, i) and of nothing else, so that results do not depend on the batch. `position` is that of
 * the step's node 0, so that no step meets the numbers of another. With seed and request split into 32-bit words:
 *
 *     philox4x32(counter = {stream << 24 | i / 4, position, request low, request high}, key = {seed low, seed high})
 *     uniform = (output[i % 4] >> 8) * 2^-24
 */
TREEATTN_API treeattn_status treeattn_uniforms_fill(uint64_t seed, uint64_t request, uint32_t position, uint32_t stream,
                                                    int64_t count, float *uniforms, treeattn_error *error);

#ifdef __cplusplus
}
#endif
#endif
