/* SPDX-License-Identifier: Apache-2.0 */
/* The enumeration behind verify_law.h. */
#include "verify_law.h"

#include <math.h>
#include <string.h>

#include "check.h"
#include "verify_run.h"

/* A walk is a string of choices. They are counted through like the digits of a number, each digit with its own base. */
enum { MAX_CHOICES = 2 * LAW_MAX_NODES };

typedef struct choices {
  int taken[MAX_CHOICES];
  int options[MAX_CHOICES];
  int used;
  double probability; /* of what has been chosen so far */
} choices;

/* Takes one of the options with a positive weight: which, the string of choices says. Returns its index. */
static int choose(choices *string, const double *weights, int count, double total) {
  CHECK(string->used < MAX_CHOICES, "a walk of more than %d choices", MAX_CHOICES);
  const int place = string->used++;
  int options = 0;
  int chosen = -1;
  for (int n = 0; n < count; n++) {
    if (weights[n] > 0) {
      if (options == string->taken[place]) {
        chosen = n;
      }
      options++;
    }
  }
  CHECK(chosen >= 0, "choice %d of %d does not exist", string->taken[place], options);
  string->options[place] = options;
  string->probability *= weights[chosen] / total;
  return chosen;
}

/* The next string, or false after the last. */
static bool advance(choices *string) {
  int place = string->used - 1;
  while (place >= 0 && string->taken[place] + 1 >= string->options[place]) {
    place--;
  }
  if (place < 0) {
    return false;
  }
  string->taken[place]++;
  memset(&string->taken[place + 1], 0, (size_t)(MAX_CHOICES - place - 1) * sizeof string->taken[0]);
  return true;
}

typedef struct walk {
  const law_case *c;
  choices string;
  bool below_root[LAW_MAX_NODES];
  float target[LAW_MAX_NODES][LAW_MAX_VOCAB];
  float draft[LAW_MAX_NODES][LAW_MAX_VOCAB];
  int32_t tokens[LAW_MAX_NODES];
} walk;

/* q as the drafter really draws the node's token, given its elder siblings. */
static void drafting_weights(const walk *w, int node, double *weights) {
  const law_case *c = w->c;
  const int32_t parent = c->parents[node];
  double total = 0;
  double largest = 0;
  for (int t = 0; t < c->vocab_size; t++) {
    weights[t] = (double)w->draft[parent][t];
    largest = fmax(largest, weights[t]);
  }
  for (int i = 1; i < node && c->drafter == LAW_DRAWN_WITHOUT; i++) {
    if (c->parents[i] == parent) {
      weights[w->tokens[i]] = 0;
    }
  }
  for (int t = 0; t < c->vocab_size; t++) {
    if (c->drafter == LAW_DRAWN_FROM_FILTERED && weights[t] < largest / 4) {
      weights[t] = 0;
    }
    total += weights[t];
  }
  for (int t = 0; t < c->vocab_size && total == 0; t++) {
    weights[t] = 1;
  }
}

/* A node's token has been chosen; the rows that follow it are the model's. Draws the node's own token first. */
static void place_node(walk *w, int node) {
  const law_case *c = w->c;
  int32_t context[LAW_MAX_NODES + 1];
  w->tokens[node] = c->tokens[node];
  w->below_root[node] = node == 0 || (c->parents[node] >= 0 && w->below_root[c->parents[node]]);
  if (!w->below_root[node]) {
    return;
  }
  if (node > 0 && c->drafter != LAW_CHOSEN) {
    double weights[LAW_MAX_VOCAB];
    double total = 0;
    drafting_weights(w, node, weights);
    for (int t = 0; t < c->vocab_size; t++) {
      total += weights[t];
    }
    w->tokens[node] = choose(&w->string, weights, c->vocab_size, total);
  }
  const int length = verify_context(c->parents, w->tokens, node, context) - 1;
  c->target_row(c, context + 1, length, w->target[node]);
  if (c->draft_row != NULL) {
    c->draft_row(c, context + 1, length, w->draft[node]);
  }
}

static treeattn_status choose_acceptance(void *context, treeattn_verify_decision *decision, treeattn_error *error) {
  (void)error;
  walk *w = context;
  const double a = decision->probability;
  CHECK(a >= 0 && a <= 1, "node %d is accepted with probability %.17g", (int)decision->node, a);
  const double weights[2] = {a, 1 - a};
  decision->accepted = choose(&w->string, weights, 2, 1.0) == 0;
  if (w->c->lazy && !decision->accepted && decision->node + 1 < w->c->num_nodes) {
    place_node(w, decision->node + 1);
  }
  return TREEATTN_OK;
}

static treeattn_status choose_token(void *context, const ta_weights *weights, treeattn_verify_decision *decision,
                                    treeattn_error *error) {
  (void)error;
  walk *w = context;
  decision->token = choose(&w->string, weights->values, w->c->vocab_size, weights->total);
  return TREEATTN_OK;
}

/* p of the model in double, by the test's own arithmetic. */
static void target_probabilities(const law_case *c, const int32_t *context, int length, double *p) {
  float row[LAW_MAX_VOCAB];
  long double weights[LAW_MAX_VOCAB];
  long double total = 0;
  c->target_row(c, context, length, row);
  for (int t = 0; t < c->vocab_size; t++) {
    weights[t] = c->is_logits ? expl((long double)row[t] / (long double)c->temperature) : (long double)row[t];
    total += weights[t];
  }
  for (int t = 0; t < c->vocab_size; t++) {
    p[t] = (double)(weights[t] / total);
  }
}

static int depth_of_tree(const law_case *c) {
  int depth[LAW_MAX_NODES] = {0};
  bool below[LAW_MAX_NODES] = {true};
  int deepest = 0;
  for (int i = 1; i < c->num_nodes; i++) {
    below[i] = c->parents[i] >= 0 && below[c->parents[i]];
    depth[i] = below[i] ? depth[c->parents[i]] + 1 : 0;
    deepest = depth[i] > deepest ? depth[i] : deepest;
  }
  return deepest;
}

/*
 * stopped[k][s]: the mass of walks that have emitted exactly the k + 1 tokens whose digits make s. What was emitted early
 * goes on as the target does; after depth + 1 tokens the law must be the target's.
 */
typedef struct masses {
  double *stopped[LAW_MAX_NODES];
} masses;

static law_result compare(const law_case *c, int num_levels, const masses *m) {
  static double carried[2][LAW_MAX_TUPLES], target[2][LAW_MAX_TUPLES];
  law_result result = {0};
  carried[1][0] = 0;
  target[1][0] = 1;
  int64_t count = 1;
  for (int level = 0; level < num_levels; level++) {
    const int now = level % 2;
    for (int64_t s = 0; s < count; s++) {
      int32_t context[LAW_MAX_NODES];
      double p[LAW_MAX_VOCAB];
      int64_t digits = s;
      for (int n = level - 1; n >= 0; n--) {
        context[n] = (int32_t)(digits % c->vocab_size);
        digits /= c->vocab_size;
      }
      target_probabilities(c, context, level, p);
      for (int t = 0; t < c->vocab_size; t++) {
        const int64_t next = s * c->vocab_size + t;
        carried[now][next] = m->stopped[level][next] + carried[1 - now][s] * p[t];
        target[now][next] = target[1 - now][s] * p[t];
      }
    }
    count *= c->vocab_size;
  }
  const double *law = carried[(num_levels - 1) % 2];
  const double *expected = target[(num_levels - 1) % 2];
  for (int64_t s = 0; s < count; s++) {
    result.worst = fmax(result.worst, fabs(law[s] - expected[s]));
    result.total += law[s];
    result.first[s / (count / c->vocab_size)] += law[s];
  }
  return result;
}

law_result law_enumerate(const law_case *c) {
  static walk w;
  static double values[2][TA_WEIGHTS_BLOCK];
  double sums[2];
  ta_verify_state state = {{values[0], &sums[0], 1, 0}, {values[1], &sums[1], 1, 0}};
  memset(&w, 0, sizeof w);
  w.c = c;
  const int num_levels = depth_of_tree(c) + 1;
  masses m = {{NULL}};
  int64_t count = 1;
  for (int level = 0; level < num_levels; level++) {
    count *= c->vocab_size;
    CHECK(count <= LAW_MAX_TUPLES, "too many sequences");
    m.stopped[level] = calloc((size_t)count, sizeof(double));
    CHECK(m.stopped[level] != NULL, "out of memory");
  }
  treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
  request.num_nodes = c->num_nodes;
  request.parents = c->parents;
  request.tokens = w.tokens;
  request.temperature = c->is_logits ? c->temperature : 1.0f;
  const treeattn_verify_rows target = {w.target, sizeof w.target, TREEATTN_F32, LAW_MAX_VOCAB};
  *(c->is_logits ? &request.logits : &request.probs) = target;
  request.draft_probs = (treeattn_verify_rows){w.draft, sizeof w.draft, TREEATTN_F32, LAW_MAX_VOCAB};
  const ta_verify_problem problem = {&request, c->vocab_size, ""};
  const ta_chooser chooser = {&w, choose_acceptance, choose_token};
  int64_t num_walks = 0;
  do {
    int32_t path[LAW_MAX_NODES], emitted[LAW_MAX_NODES];
    ta_verify_output output = {path, emitted, NULL, 0, 0};
    w.string.used = 0;
    w.string.probability = 1;
    for (int i = 0; i < c->num_nodes && !(c->lazy && i > 1); i++) {
      place_node(&w, i);
    }
    CHECK_OK(ta_verify_walk(&problem, c->rule, &chooser, &state, &output, &error));
    int64_t s = 0;
    for (int n = 0; n < output.num_path; n++) {
      s = s * c->vocab_size + emitted[n];
    }
    m.stopped[output.num_path - 1][s] += w.string.probability;
    num_walks++;
  } while (advance(&w.string));
  law_result result = compare(c, num_levels, &m);
  result.num_walks = num_walks;
  for (int level = 0; level < num_levels; level++) {
    free(m.stopped[level]);
  }
  return result;
}
