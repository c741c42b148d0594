/* SPDX-License-Identifier: Apache-2.0 */
/* Verification against plain decoding, and against the target's distribution with every outcome enumerated. */
#include <math.h>
#include <string.h>

#include <treeattn/verify.h>

#include "check.h"

enum { VOCABULARY = 6, MAX_NODES = 24, MAX_CONTEXT = 64 };

/* ---- greedy ------------------------------------------------------------------------------------------------- */

/* A stand-in for a model: logits are a function of the whole context. Few values, so that maxima tie. */
static void model_logits(const int32_t *context, int64_t length, uint64_t model, float *logits) {
  uint64_t state = model;
  for (int64_t n = 0; n < length; n++) {
    state = problem_random(&state) ^ (uint64_t)context[n];
  }
  for (int t = 0; t < VOCABULARY; t++) {
    logits[t] = -1.0f - (float)problem_random_below(&state, 4);
  }
}

static int32_t decode_next(const int32_t *context, int64_t length, uint64_t model) {
  float logits[VOCABULARY];
  model_logits(context, length, model, logits);
  int32_t best = 0;
  for (int32_t t = 1; t < VOCABULARY; t++) {
    best = logits[t] > logits[best] ? t : best;
  }
  return best;
}

/* The context of a node: tokens from node 0 down to it. */
static int64_t context_of(const int32_t *parents, const int32_t *tokens, int32_t node, int32_t *context) {
  int64_t length = 0;
  for (int32_t j = node; j >= 0; j = parents[j]) {
    length++;
  }
  int64_t place = length;
  for (int32_t j = node; j >= 0; j = parents[j]) {
    context[--place] = tokens[j];
  }
  return length;
}

static int check_greedy(check_context *c) {
  int32_t parents[MAX_NODES];
  int32_t tokens[MAX_NODES];
  int32_t context[MAX_CONTEXT];
  int32_t argmax[MAX_NODES];
  float logits[MAX_NODES * VOCABULARY];
  const int count = c->quick ? 200 : 2000;
  for (int trial = 0; trial < count; trial++) {
    const uint64_t model = problem_random(&c->random);
    const int64_t num_nodes = 1 + problem_random_below(&c->random, MAX_NODES);
    for (int64_t i = 0; i < num_nodes; i++) {
      parents[i] = i == 0 ? -1 : (int32_t)problem_random_below(&c->random, i);
      tokens[i] = (int32_t)problem_random_below(&c->random, VOCABULARY);
      if (i > 0 && problem_random_below(&c->random, 2) == 0) { /* often the right guess */
        tokens[i] = decode_next(context, context_of(parents, tokens, parents[i], context), model);
      }
      const int64_t length = context_of(parents, tokens, (int32_t)i, context);
      model_logits(context, length, model, logits + i * VOCABULARY);
      argmax[i] = decode_next(context, length, model);
    }
    treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
    request.num_nodes = num_nodes;
    request.parents = parents;
    request.tokens = tokens;
    if (trial % 2 == 0) {
      request.argmax = argmax;
    } else {
      request.logits =
          (treeattn_verify_rows){logits, (size_t)(num_nodes * VOCABULARY) * sizeof *logits, TREEATTN_F32, VOCABULARY};
    }
    int32_t path[MAX_NODES];
    int32_t emitted[MAX_NODES];
    treeattn_verify_result result = {.path = path, .tokens = emitted, .capacity = MAX_NODES};
    treeattn_verify_args args = {.struct_size = sizeof args,
                                 .vocab_size = VOCABULARY,
                                 .num_requests = 1,
                                 .requests = &request,
                                 .request_bytes = sizeof request,
                                 .results = &result,
                                 .result_bytes = sizeof result};
    treeattn_error error;
    if (treeattn_verify_scratch_bytes(&args, &args.scratch_bytes, &error) != TREEATTN_OK) {
      return cli_library_error("verification", &error);
    }
    args.scratch = cli_malloc(args.scratch_bytes);
    if (args.scratch == NULL) {
      return cli_out_of_memory();
    }
    const treeattn_status status = treeattn_verify(&args, &error);
    cli_free(args.scratch);
    if (status != TREEATTN_OK) {
      return cli_library_error("verification", &error);
    }
    /* Plain decoding knows no tree: token after token from the committed one on. It must say the same, and where it
     * goes on, the tree must have had no such child. */
    context[0] = tokens[0];
    bool same = result.num_path >= 1 && path[0] == 0;
    for (int64_t n = 0; n < result.num_path && same; n++) {
      context[n + 1] = decode_next(context, n + 1, model);
      same = emitted[n] == context[n + 1];
    }
    for (int64_t i = 1; i < num_nodes && same; i++) {
      same = parents[i] != path[result.num_path - 1] || tokens[i] != emitted[result.num_path - 1];
    }
    check_count(c, CHECK_P8, same, "greedy tree %d of %lld nodes: not what plain decoding emits", trial,
                (long long)num_nodes);
  }
  return CLI_OK;
}

/* ---- laws --------------------------------------------------------------------------------------------------- */

enum { LAW_VOCABULARY = 3, MAX_SIBLINGS = 3 };

typedef struct law {
  treeattn_verify_method method;
  const double *p; /* after node 0, and after every other node */
  const double *q;
  int64_t num_nodes;
  int32_t parents[1 + MAX_SIBLINGS];
  int32_t tokens[1 + MAX_SIBLINGS];
  double emitted[LAW_VOCABULARY]; /* the law of the first token */
  double mass;
  treeattn_error error;
} law;

/* Verifies once with these uniforms; false on an error. */
static bool verify_once(law *l, const float *uniforms, treeattn_verify_result *result) {
  float probs[(1 + MAX_SIBLINGS) * LAW_VOCABULARY];
  float drafts[(1 + MAX_SIBLINGS) * LAW_VOCABULARY];
  for (int64_t n = 0; n < l->num_nodes * LAW_VOCABULARY; n++) {
    probs[n] = (float)l->p[n % LAW_VOCABULARY];
    drafts[n] = (float)l->q[n % LAW_VOCABULARY];
  }
  treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
  request.method = l->method;
  request.num_nodes = l->num_nodes;
  request.parents = l->parents;
  request.tokens = l->tokens;
  request.probs = (treeattn_verify_rows){probs, sizeof probs, TREEATTN_F32, LAW_VOCABULARY};
  if (l->method != TREEATTN_VERIFY_TARGET_ONLY) {
    request.draft_probs = (treeattn_verify_rows){drafts, sizeof drafts, TREEATTN_F32, LAW_VOCABULARY};
  }
  request.uniforms = uniforms;
  request.num_uniforms = l->num_nodes;
  treeattn_verify_args args = {.struct_size = sizeof args,
                               .vocab_size = LAW_VOCABULARY,
                               .num_requests = 1,
                               .requests = &request,
                               .request_bytes = sizeof request,
                               .results = result,
                               .result_bytes = sizeof *result};
  if (treeattn_verify_scratch_bytes(&args, &args.scratch_bytes, &l->error) != TREEATTN_OK) {
    return false;
  }
  args.scratch = cli_malloc(args.scratch_bytes);
  const bool ok = args.scratch != NULL && treeattn_verify(&args, &l->error) == TREEATTN_OK;
  cli_free(args.scratch);
  return ok;
}

/*
 * Every outcome of the coins, each with its probability: coin number `coin` at 0 accepts and just under 1 rejects,
 * and the walk itself says with which probability; the uniform of a last token climbs through its law. uniforms[0 ..
 * coin-1] are fixed.
 */
static bool enumerate(law *l, float *uniforms, int64_t coin, double weight) {
  const float top = 1.0f - 0x1p-24f;
  int32_t path[1 + MAX_SIBLINGS];
  int32_t tokens[1 + MAX_SIBLINGS];
  treeattn_verify_decision decisions[1 + MAX_SIBLINGS];
  treeattn_verify_result result = {.path = path,
                                   .tokens = tokens,
                                   .capacity = 1 + MAX_SIBLINGS,
                                   .decisions = decisions,
                                   .decisions_capacity = 1 + MAX_SIBLINGS};
  for (int64_t n = coin; n < l->num_nodes; n++) {
    uniforms[n] = 0.0f;
  }
  if (!verify_once(l, uniforms, &result) || result.num_decisions <= coin) {
    return false;
  }
  const treeattn_verify_decision at = decisions[coin];
  if (at.node < 0) {
    double sum = 0.0;
    while (sum < 1.0 - 1e-6) {
      uniforms[coin] = fminf((float)(sum + 1e-6), top);
      if (!verify_once(l, uniforms, &result) || !(decisions[coin].probability > 0.0)) {
        return false;
      }
      const double probability = decisions[coin].probability;
      l->emitted[tokens[0]] += weight * probability;
      l->mass += weight * probability;
      sum += probability;
    }
    return true;
  }
  const double accept = fmin(at.probability, 1.0);
  if (accept > 0.0) {
    uniforms[coin] = 0.0f;
    if (!enumerate(l, uniforms, coin + 1, weight * accept)) {
      return false;
    }
  }
  if (accept < 1.0) {
    uniforms[coin] = top;
    return enumerate(l, uniforms, coin + 1, weight * (1.0 - accept));
  }
  return true;
}

/* Draws sibling number `sibling` in every way that the method's drafter can, then enumerates the coins. */
static bool draw(law *l, int64_t sibling, double weight, const double *q) {
  if (sibling == l->num_nodes || sibling > MAX_SIBLINGS) {
    float uniforms[1 + MAX_SIBLINGS];
    return enumerate(l, uniforms, 0, weight);
  }
  for (int32_t t = 0; t < LAW_VOCABULARY; t++) {
    if (q[t] <= 0.0) {
      continue;
    }
    double left[LAW_VOCABULARY];
    for (int32_t other = 0; other < LAW_VOCABULARY; other++) {
      const bool gone = l->method == TREEATTN_VERIFY_WITHOUT_REPLACEMENT && other == t;
      left[other] =
          gone ? 0.0 : q[other] / (l->method == TREEATTN_VERIFY_WITHOUT_REPLACEMENT && q[t] < 1.0 ? 1.0 - q[t] : 1.0);
    }
    l->tokens[sibling] = t;
    if (!draw(l, sibling + 1, weight * q[t], left)) {
      return false;
    }
  }
  return true;
}

static int check_laws(check_context *c) {
  /* Sixteenths, so that f32 holds them: ordinary, with zeros, with disjoint supports, one-hot. */
  static const double rows[][LAW_VOCABULARY] = {{0.5, 0.3125, 0.1875}, {0.125, 0.25, 0.625}, {0.0, 0.25, 0.75},
                                                {1.0, 0.0, 0.0},       {0.5, 0.5, 0.0},      {0.0, 0.0, 1.0}};
  enum { NUM_ROWS = sizeof rows / sizeof *rows };
  static const treeattn_verify_method methods[] = {TREEATTN_VERIFY_TARGET_ONLY, TREEATTN_VERIFY_RESIDUAL,
                                                   TREEATTN_VERIFY_WITHOUT_REPLACEMENT};
  for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
    for (int pair = 0; pair < NUM_ROWS * NUM_ROWS; pair++) {
      const double *q = rows[pair % NUM_ROWS];
      const int64_t support = (q[0] > 0.0) + (q[1] > 0.0) + (q[2] > 0.0);
      for (int64_t siblings = 1; siblings <= MAX_SIBLINGS; siblings++) {
        if (methods[m] == TREEATTN_VERIFY_WITHOUT_REPLACEMENT && siblings > support) {
          continue; /* no drafter can draw that many */
        }
        law l = {.method = methods[m], .p = rows[pair / NUM_ROWS], .q = q, .num_nodes = 1 + siblings, .parents = {-1}};
        if (!draw(&l, 1, 1.0, q)) {
          return cli_error("verification: %s: %s", treeattn_verify_method_name(methods[m]), l.error.message);
        }
        bool same = fabs(l.mass - 1.0) <= 1e-9;
        for (int t = 0; t < LAW_VOCABULARY; t++) {
          same = same && fabs(l.emitted[t] - l.p[t]) <= 1e-9;
        }
        check_count(c, CHECK_P8, same, "%s, %lld siblings: law %.6f %.6f %.6f, target %.6f %.6f %.6f",
                    treeattn_verify_method_name(methods[m]), (long long)siblings, l.emitted[0], l.emitted[1],
                    l.emitted[2], l.p[0], l.p[1], l.p[2]);
      }
    }
  }
  return CLI_OK;
}

int check_verification(check_context *c) {
  const int status = check_greedy(c);
  return status == CLI_OK ? check_laws(c) : status;
}
