/* SPDX-License-Identifier: Apache-2.0 */
/* The decoding loop: draft a tree, run the model over it, verify, compact, and once more. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* clock_gettime under -std=c11 */
#endif

#include "session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fail.h"

double gen_seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

treeattn_status gen_session_create(gen_forward *forward, gen_session **session, treeattn_error *error) {
  *session = NULL;
  gen_session *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return gen_fail_memory(error);
  }
  made->forward = forward;
  made->tokens = malloc(((size_t)forward->cache.capacity + GEN_MAX_LEVELS + 1) * sizeof *made->tokens);
  treeattn_status status = made->tokens == NULL ? gen_fail_memory(error) : TREEATTN_OK;
  if (status == TREEATTN_OK) {
    status = gen_draft_create(GEN_MAX_TREE, GEN_MAX_LEVELS, &made->draft, error);
  }
  if (status != TREEATTN_OK) {
    gen_session_destroy(made);
    return status;
  }
  *session = made;
  return TREEATTN_OK;
}

void gen_session_destroy(gen_session *session) {
  if (session == NULL) {
    return;
  }
  for (int d = 0; d < session->num_drafters; ++d) {
    session->drafters[d].destroy(session->drafters[d].context);
  }
  gen_draft_destroy(session->draft);
  free(session->tokens);
  free(session->scratch);
  free(session);
}

treeattn_status gen_session_add_drafter(gen_session *session, const gen_drafter *drafter, treeattn_error *error) {
  if (session->num_drafters == GEN_MAX_DRAFTERS) {
    drafter->destroy(drafter->context);
    return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "more than %d drafters", GEN_MAX_DRAFTERS);
  }
  session->drafters[session->num_drafters++] = *drafter;
  return TREEATTN_OK;
}

static treeattn_status make_counter(const gen_session *session, const gen_tokenizer *tokenizer, gen_drafter *drafter,
                                    treeattn_error *error) {
  int32_t digits[10];
  treeattn_error ignored; /* a vocabulary without digits is no failure */
  for (int digit = 0; digit < 10; ++digit) {
    const char text = (char)('0' + digit);
    int64_t num = 0;
    const treeattn_status status = gen_tokenizer_encode(tokenizer, &text, 1, false, &digits[digit], 1, &num, &ignored);
    digits[digit] = status == TREEATTN_OK && num == 1 ? digits[digit] : -1;
  }
  return gen_drafter_count(digits, session->forward->model->vocab_size, session->forward->cache.capacity, drafter,
                           error);
}

treeattn_status gen_session_add_default_drafters(gen_session *session, const gen_tokenizer *tokenizer,
                                                 treeattn_error *error) {
  gen_drafter drafter;
  treeattn_status status = gen_drafter_lookup(session->forward->cache.capacity, &drafter, error);
  status = status == TREEATTN_OK ? gen_session_add_drafter(session, &drafter, error) : status;
  if (status == TREEATTN_OK && tokenizer != NULL) {
    status = make_counter(session, tokenizer, &drafter, error);
    status = status == TREEATTN_OK ? gen_session_add_drafter(session, &drafter, error) : status;
  }
  if (status == TREEATTN_OK) {
    status = gen_drafter_recycle(session->forward->model->embedding, &drafter, error);
    status = status == TREEATTN_OK ? gen_session_add_drafter(session, &drafter, error) : status;
  }
  return status;
}

/* Tells the drafters about the tokens that have come since. */
static void learn(gen_session *session) {
  if (session->frozen) {
    return;
  }
  for (int64_t n = session->num_learnt < 1 ? 1 : session->num_learnt; n < session->num_tokens; ++n) {
    bool missed = true;
    for (int d = 0; d < session->num_drafters; ++d) {
      const gen_drafter *drafter = &session->drafters[d];
      const bool had_it = drafter->learn(drafter->context, session->tokens, n, session->tokens[n], missed);
      missed = missed && !had_it;
    }
  }
  session->num_learnt = session->num_tokens;
}

treeattn_status gen_session_prompt(gen_session *session, const int32_t *tokens, int64_t num_tokens, bool cached,
                                   treeattn_error *error) {
  if (num_tokens < 1 || num_tokens >= session->forward->cache.capacity) {
    return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                    "the prompt has %" PRId64 " tokens: 1 to %" PRId64 " fit in the cache", num_tokens,
                    session->forward->cache.capacity - 1);
  }
  const double started = gen_seconds();
  memcpy(session->tokens, tokens, (size_t)num_tokens * sizeof *tokens);
  session->num_tokens = num_tokens;
  treeattn_status status = TREEATTN_OK;
  for (int64_t done = cached ? num_tokens - 1 : 0; done < num_tokens - 1 && status == TREEATTN_OK;) {
    const int64_t left = num_tokens - 1 - done;
    const gen_pass pass = {tokens + done, NULL, left < GEN_PREFILL_ROWS ? left : GEN_PREFILL_ROWS, done, 1};
    const float *logits = NULL;
    status = gen_forward_run(session->forward, &pass, &logits, error);
    done += pass.num_rows;
  }
  if (status == TREEATTN_OK) {
    learn(session);
  }
  session->totals.prompt_seconds += gen_seconds() - started;
  return status;
}

void gen_session_rewind(gen_session *session, int64_t num_tokens) {
  session->num_tokens = num_tokens;
  session->frozen = true;
}

treeattn_status gen_session_measure(gen_session *session, treeattn_error *error) {
  int32_t tokens[GEN_MAX_TREE];
  int32_t parents[GEN_MAX_TREE];
  for (int i = 0; i < GEN_MAX_TREE; ++i) {
    tokens[i] = (int32_t)((i * 331) % session->forward->model->vocab_size);
    parents[i] = (i - 1) / 2 - (i == 0 ? 1 : 0);
  }
  int64_t known = 0;
  treeattn_status status = TREEATTN_OK;
  for (int64_t n = 1; n <= GEN_MAX_TREE && status == TREEATTN_OK; n *= 2) {
    if (session->num_tokens - 1 + n > session->forward->cache.capacity) {
      break;
    }
    double best = 0.0;
    for (int repeat = 0; repeat < 3 && status == TREEATTN_OK; ++repeat) {
      const gen_pass pass = {tokens, parents, n, session->num_tokens - 1, n};
      const float *logits = NULL;
      const double started = gen_seconds();
      status = gen_forward_run(session->forward, &pass, &logits, error);
      const double taken = gen_seconds() - started;
      best = repeat == 0 || taken < best ? taken : best;
    }
    /* Straight lines between the measured sizes; a larger tree never counts as cheaper. */
    const double below = known == 0 ? 0.0 : session->cost[known - 1];
    best = best < below ? below : best;
    for (int64_t m = known; m < n; ++m) {
      session->cost[m] = below + (best - below) * (double)(m + 1 - known) / (double)(n - known);
    }
    known = n;
  }
  for (int64_t m = known; m < GEN_MAX_TREE && known > 0; ++m) {
    session->cost[m] = session->cost[known - 1] * (double)(m + 1) / (double)known;
  }
  session->cost_known = status == TREEATTN_OK;
  return status;
}

static treeattn_status draft(gen_session *session, const gen_decoding *decoding, int64_t limit, gen_tree *tree,
                             treeattn_error *error) {
  const gen_forward *forward = session->forward;
  const int64_t room = forward->cache.capacity - (session->num_tokens - 1);
  gen_tree_options options = {decoding->max_nodes, GEN_MAX_LEVELS, decoding->max_children,
                              decoding->measured_size && session->cost_known ? session->cost : NULL};
  options.max_nodes = options.max_nodes < room ? options.max_nodes : room;
  /* An accepted draft of the last level would be a token too many. */
  options.max_levels = limit - 1 < options.max_levels ? limit - 1 : options.max_levels;
  return gen_draft_grow(session->draft, session->drafters, session->num_drafters, session->tokens, session->num_tokens,
                        &options, tree, error);
}

static treeattn_status verify(gen_session *session, const gen_decoding *decoding, const gen_tree *tree,
                              const float *logits, int64_t *num_path, treeattn_error *error) {
  const int64_t vocab_size = session->forward->model->vocab_size;
  treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
  request.method = decoding->temperature == 0.0f ? TREEATTN_VERIFY_GREEDY : TREEATTN_VERIFY_TARGET_ONLY;
  request.temperature = decoding->temperature;
  request.num_nodes = tree->num_nodes;
  request.parents = tree->parents;
  request.tokens = tree->tokens;
  request.logits.data = logits;
  request.logits.bytes = (size_t)tree->num_nodes * (size_t)vocab_size * sizeof *logits;
  treeattn_verify_result result = TREEATTN_VERIFY_RESULT_INIT;
  result.path = session->path;
  result.tokens = session->emitted;
  result.capacity = GEN_MAX_TREE;
  treeattn_verify_args args = TREEATTN_VERIFY_ARGS_INIT;
  args.vocab_size = vocab_size;
  args.num_requests = 1;
  args.requests = &request;
  args.results = &result;
  treeattn_status status = TREEATTN_OK;
  if (decoding->temperature != 0.0f) {
    request.uniforms = session->uniforms;
    request.num_uniforms = tree->num_nodes;
    status = treeattn_uniforms_fill(decoding->seed, decoding->request, (uint32_t)(session->num_tokens - 1),
                                    TREEATTN_STREAM_VERIFY, tree->num_nodes, session->uniforms, error);
  }
  size_t bytes = 0;
  if (status == TREEATTN_OK) {
    status = treeattn_verify_scratch_bytes(&args, &bytes, error);
  }
  if (status == TREEATTN_OK && bytes > session->scratch_bytes) {
    free(session->scratch);
    session->scratch_bytes = 0;
    session->scratch = malloc(bytes);
    if (session->scratch == NULL) {
      return gen_fail_memory(error);
    }
    session->scratch_bytes = bytes;
  }
  args.scratch = session->scratch;
  args.scratch_bytes = session->scratch_bytes;
  if (status == TREEATTN_OK) {
    status = treeattn_verify(&args, error);
  }
  *num_path = result.num_path;
  return status;
}

static void observe(const gen_session *session, const int32_t *tokens, int64_t num_tokens, const float *logits) {
  for (int d = 0; d < session->num_drafters; ++d) {
    if (session->drafters[d].observe != NULL) {
      session->drafters[d].observe(session->drafters[d].context, tokens, num_tokens, logits,
                                   session->forward->model->vocab_size);
    }
  }
}

/* The rows of all nodes, each behind the last tokens of its own path. */
static void observe_tree(const gen_session *session, const gen_tree *tree, int64_t prefix_len, const float *logits) {
  for (int64_t i = 0; i < tree->num_nodes; ++i) {
    int32_t tokens[GEN_OBSERVED_TOKENS];
    int64_t num = 0;
    for (int64_t j = i; j >= 0 && num < GEN_OBSERVED_TOKENS; j = tree->parents[j]) {
      tokens[GEN_OBSERVED_TOKENS - ++num] = tree->tokens[j];
    }
    for (int64_t p = prefix_len - 1; p >= 0 && num < GEN_OBSERVED_TOKENS; --p) {
      tokens[GEN_OBSERVED_TOKENS - ++num] = session->tokens[p];
    }
    observe(session, tokens + GEN_OBSERVED_TOKENS - num, num, logits + i * session->forward->model->vocab_size);
  }
}

treeattn_status gen_session_step(gen_session *session, const gen_decoding *decoding, int64_t limit,
                                 const gen_watcher *watcher, int64_t *num_emitted, treeattn_error *error) {
  gen_forward *forward = session->forward;
  gen_totals *totals = &session->totals;
  const int64_t prefix_len = session->num_tokens - 1;
  const double started = gen_seconds();
  gen_tree tree;
  *num_emitted = 0;
  if (prefix_len >= forward->cache.capacity) {
    return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "the context of %" PRId64 " tokens is full",
                    forward->cache.capacity);
  }
  treeattn_status status = draft(session, decoding, limit, &tree, error);
  const double drafted = gen_seconds();
  const double attention_before = forward->attention_seconds;
  const float *logits = NULL;
  if (status == TREEATTN_OK) {
    const gen_pass pass = {tree.tokens, tree.parents, tree.num_nodes, prefix_len, tree.num_nodes};
    status = gen_forward_run(forward, &pass, &logits, error);
  }
  const double computed = gen_seconds();
  int64_t num_path = 0;
  if (status == TREEATTN_OK) {
    status = verify(session, decoding, &tree, logits, &num_path, error);
  }
  const double verified = gen_seconds();
  if (status == TREEATTN_OK && watcher != NULL) {
    const gen_step step = {&tree, prefix_len, session->path, session->emitted, num_path, logits};
    status = watcher->on_step(watcher->context, &step, error);
  }
  const double watched = gen_seconds();
  if (status == TREEATTN_OK) {
    status = gen_cache_commit(&forward->cache, prefix_len, tree.num_nodes, session->path, num_path, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  const double committed = gen_seconds();
  memcpy(session->tokens + session->num_tokens, session->emitted, (size_t)num_path * sizeof *session->emitted);
  session->num_tokens += num_path;
  /* First what was known before the step is judged, then the step's rows renew it. */
  learn(session);
  observe_tree(session, &tree, prefix_len, logits);
  const double ended = gen_seconds();
  ++totals->num_steps;
  totals->num_nodes += tree.num_nodes;
  totals->num_emitted += num_path;
  totals->draft_seconds += drafted - started + ended - committed;
  totals->forward_seconds += computed - drafted;
  totals->attention_seconds += forward->attention_seconds - attention_before;
  totals->verify_seconds += verified - computed;
  totals->commit_seconds += committed - watched;
  totals->seconds += ended - started - (watched - verified);
  *num_emitted = num_path;
  return TREEATTN_OK;
}
