/* SPDX-License-Identifier: Apache-2.0 */
/* Counting: a place whose tokens are equal but for their numbers says what follows, and its numbers' difference says which number. */
#include <stdlib.h>
#include <string.h>

#include "draft.h"
#include "fail.h"

enum {
  CONTEXT = 24,
  MAX_TEXT = 128,
  SEARCHED = 2048,
  SHORTEST = 1,
  LONGEST = 8,
  OTHERS = 1,
  MAX_DIGITS = 9,
  NUM_GRADES = 3
};

/* A token, or a run of digits. */
typedef struct item {
  int32_t token;  /* -1: a number */
  int32_t digits; /* of the number */
  int64_t value;  /* of at most MAX_DIGITS digits; a longer run is cut into several items */
  bool from_zero; /* begins with 0, as in 007 */
} item;

typedef struct count {
  int8_t *digit_of; /* [vocab_size]: 0 to 9, or -1 */
  int32_t digit_tokens[10];
  item *history;
  int64_t num_history, num_learnt, max_tokens;
  double hits[2][NUM_GRADES], tries[2][NUM_GRADES]; /* of tokens and of numbers, by the length of the match */
} count;

static void append(const count *counting, item *items, int64_t *num, int32_t token) {
  const int32_t digit = counting->digit_of[token];
  if (digit < 0) {
    items[(*num)++] = (item){token, 0, 0, false};
    return;
  }
  item *last = *num == 0 ? NULL : &items[*num - 1];
  if (last != NULL && last->token < 0 && last->digits < MAX_DIGITS) {
    last->value = last->value * 10 + digit;
    ++last->digits;
  } else {
    items[(*num)++] = (item){-1, 1, digit, digit == 0};
  }
}

/* How many items before the ends of both are equal, whatever their numbers. Behind the first, one token may be another, as
 * where each line of a list has its own word. */
static int64_t equal_before(const item *left, int64_t num_left, const item *right, int64_t num_right) {
  int64_t num = 0;
  int64_t others = 0;
  while (num < LONGEST && num + others < num_left && num + others < num_right) {
    const item *there = &left[num_left - 1 - num - others];
    const item *here = &right[num_right - 1 - num - others];
    if (there->token == here->token) {
      ++num;
    } else if (num > 0 && others < OTHERS && there->token >= 0 && here->token >= 0) {
      ++others;
    } else {
      break;
    }
  }
  return num;
}

/* The place in the history whose next item is of the kind, with the longest match, of equals the latest; -1: none. */
static int64_t best_place(const count *counting, const item *text, int64_t num_text, bool number, int64_t *length) {
  const int64_t first = counting->num_history > SEARCHED ? counting->num_history - SEARCHED : 0;
  int64_t best = -1;
  *length = SHORTEST - 1;
  /* The last item of the history may be a number that goes on. */
  for (int64_t at = counting->num_history - 2; at > first && *length < LONGEST; --at) {
    if ((counting->history[at].token < 0) != number) {
      continue;
    }
    const int64_t num = equal_before(counting->history, at, text, num_text);
    if (num > *length) {
      *length = num;
      best = at;
    }
  }
  return best;
}

/* The nearest number before both places that differs tells by how much; without one, numbers go on by 1. That they are equal
 * needs no counting: look-up finds it. */
static int64_t difference(const count *counting, int64_t place, const item *text, int64_t num_text, int64_t length) {
  for (int64_t back = 1; back <= length + OTHERS && back <= place && back <= num_text; ++back) {
    const item *here = &text[num_text - back];
    const item *there = &counting->history[place - back];
    if (here->token < 0 && there->token < 0 && here->value != there->value) {
      return here->value - there->value;
    }
  }
  return 1;
}

static int grade_of(int64_t length) {
  return length < 4 ? 0 : length < 7 ? 1 : 2;
}

/* Writes the digits of a number as the one there is written; returns how many. */
static int32_t write_digits(int64_t value, const item *like, int32_t digits[MAX_DIGITS + 1]) {
  int32_t reversed[MAX_DIGITS + 1];
  int32_t num = 0;
  for (; num == 0 || (value > 0 && num <= MAX_DIGITS); value /= 10) {
    reversed[num++] = (int32_t)(value % 10);
  }
  while (like->from_zero && num < like->digits) {
    reversed[num++] = 0;
  }
  for (int32_t d = 0; d < num; ++d) {
    digits[d] = reversed[num - 1 - d];
  }
  return num;
}

typedef struct guess {
  int32_t token; /* -1: none */
  int kind, grade;
} guess;

/* What follows if the text's last number, where it ends in one, is complete. */
static guess guess_token(const count *counting, const item *text, int64_t num_text) {
  int64_t length = 0;
  const int64_t place = best_place(counting, text, num_text, false, &length);
  guess made = {-1, 0, grade_of(length)};
  if (place >= 0) {
    made.token = counting->history[place].token;
  }
  return made;
}

/* The next digit of a number that begins here or goes on. */
static guess guess_digit(const count *counting, const item *text, int64_t num_text) {
  const item *begun = num_text > 0 && text[num_text - 1].token < 0 ? &text[num_text - 1] : NULL;
  const int64_t num_before = begun == NULL ? num_text : num_text - 1;
  int64_t length = 0;
  const int64_t place = best_place(counting, text, num_before, true, &length);
  guess made = {-1, 1, grade_of(length)};
  if (place < 0) {
    return made;
  }
  const item *there = &counting->history[place];
  const int64_t value = there->value + difference(counting, place, text, num_before, length);
  int32_t digits[MAX_DIGITS + 1];
  const int32_t num = value < 0 ? 0 : write_digits(value, there, digits);
  int32_t at = 0;
  int64_t prefix = 0;
  while (begun != NULL && at < num && at < begun->digits) {
    prefix = prefix * 10 + digits[at++];
  }
  if (at < num && (begun == NULL || (at == begun->digits && prefix == begun->value))) {
    made.token = counting->digit_tokens[digits[at]];
  }
  return made;
}

/* The last items of the text: the end of what is committed, and the tokens behind it. */
static int64_t read_text(const count *counting, const int32_t *tokens, int64_t num_tokens, item text[MAX_TEXT]) {
  int64_t kept = counting->num_history < CONTEXT ? counting->num_history : CONTEXT;
  int64_t from = counting->num_learnt;
  if (num_tokens - from > MAX_TEXT - CONTEXT) {
    from = num_tokens - (MAX_TEXT - CONTEXT);
    kept = 0;
  }
  int64_t num = kept;
  memcpy(text, counting->history + counting->num_history - kept, (size_t)kept * sizeof *text);
  for (int64_t t = from; t < num_tokens; ++t) {
    append(counting, text, &num, tokens[t]);
  }
  return num;
}

static void make_guesses(const count *counting, const int32_t *tokens, int64_t num_tokens, guess made[2]) {
  item text[MAX_TEXT];
  const int64_t num_text = read_text(counting, tokens, num_tokens, text);
  made[0] = guess_digit(counting, text, num_text);
  made[1] = guess_token(counting, text, num_text);
}

static int64_t propose(void *context, const int32_t *tokens, int64_t num_tokens, int64_t capacity, int32_t *candidates,
                       float *probabilities) {
  const count *counting = context;
  static const double prior[NUM_GRADES] = {0.2, 0.5, 0.7};
  guess made[2];
  make_guesses(counting, tokens, num_tokens, made);
  int64_t num = 0;
  double left = 1.0;
  for (int g = 0; g < 2 && num < capacity; ++g) {
    if (made[g].token >= 0) {
      const double right = (counting->hits[made[g].kind][made[g].grade] + 2.0 * prior[made[g].grade]) /
                           (counting->tries[made[g].kind][made[g].grade] + 2.0);
      candidates[num] = made[g].token;
      probabilities[num++] = (float)(left * right);
      left *= 1.0 - right;
    }
  }
  return num;
}

static bool learn(void *context, const int32_t *tokens, int64_t num_tokens, int32_t next, bool missed) {
  count *counting = context;
  bool had_it = false;
  guess made[2];
  make_guesses(counting, tokens, num_tokens, made);
  for (int g = 0; g < 2 && !had_it; ++g) {
    if (made[g].token >= 0) {
      had_it = made[g].token == next;
      counting->tries[made[g].kind][made[g].grade] += missed ? 1.0 : 0.0;
      counting->hits[made[g].kind][made[g].grade] += missed && had_it ? 1.0 : 0.0;
    }
  }
  for (int64_t t = counting->num_learnt; t < num_tokens && t < counting->max_tokens; ++t, ++counting->num_learnt) {
    append(counting, counting->history, &counting->num_history, tokens[t]);
  }
  if (num_tokens < counting->max_tokens) {
    append(counting, counting->history, &counting->num_history, next);
    counting->num_learnt = num_tokens + 1;
  }
  return had_it;
}

static void destroy(void *context) {
  count *counting = context;
  free(counting->digit_of);
  free(counting->history);
  free(counting);
}

treeattn_status gen_drafter_count(const int32_t digit_tokens[10], int64_t vocab_size, int64_t max_tokens,
                                  gen_drafter *drafter, treeattn_error *error) {
  count *counting = calloc(1, sizeof *counting);
  if (counting == NULL) {
    return gen_fail_memory(error);
  }
  counting->max_tokens = max_tokens;
  counting->digit_of = malloc((size_t)vocab_size * sizeof *counting->digit_of);
  counting->history = malloc((size_t)max_tokens * sizeof *counting->history);
  if (counting->digit_of == NULL || counting->history == NULL) {
    destroy(counting);
    return gen_fail_memory(error);
  }
  memset(counting->digit_of, -1, (size_t)vocab_size * sizeof *counting->digit_of);
  for (int8_t digit = 0; digit < 10; ++digit) {
    counting->digit_tokens[digit] = digit_tokens[digit];
    if (digit_tokens[digit] >= 0) {
      counting->digit_of[digit_tokens[digit]] = digit;
    }
  }
  *drafter = (gen_drafter){"count", counting, propose, learn, NULL, destroy};
  return TREEATTN_OK;
}
