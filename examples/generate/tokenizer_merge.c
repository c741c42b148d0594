/* SPDX-License-Identifier: Apache-2.0 */
/* Merging with a heap of candidates; those whose pair has changed since are recognised when they come up. */
#include "tokenizer_merge.h"

#include <stdlib.h>

#include "fail.h"

typedef struct candidate {
  gen_pair pair;
  int32_t left;
} candidate;

typedef struct merger {
  gen_symbol *symbols;
  gen_pair_finder find;
  const void *context;
  candidate *heap;
  size_t num;
} merger;

static bool before(candidate a, candidate b) {
  return a.pair.order < b.pair.order || (a.pair.order == b.pair.order && a.left < b.left);
}

static void push(merger *merging, candidate added) {
  candidate *heap = merging->heap;
  size_t at = merging->num++;
  while (at > 0 && before(added, heap[(at - 1) / 2])) {
    heap[at] = heap[(at - 1) / 2];
    at = (at - 1) / 2;
  }
  heap[at] = added;
}

static candidate pop(merger *merging) {
  candidate *heap = merging->heap;
  const candidate top = heap[0];
  const candidate moved = heap[--merging->num];
  size_t at = 0;
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= merging->num) {
      break;
    }
    child += child + 1 < merging->num && before(heap[child + 1], heap[child]) ? 1 : 0;
    if (!before(heap[child], moved)) {
      break;
    }
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = moved;
  return top;
}

static bool find_at(const merger *merging, int32_t left, gen_pair *pair) {
  const gen_symbol *symbol = &merging->symbols[left];
  return symbol->bytes != 0 && symbol->next >= 0 &&
         merging->find(merging->context, symbol, &merging->symbols[symbol->next], pair);
}

static void offer(merger *merging, int32_t left) {
  candidate added = {.left = left};
  if (left >= 0 && find_at(merging, left, &added.pair)) {
    push(merging, added);
  }
}

treeattn_status gen_merge(gen_symbol *symbols, int32_t num_symbols, gen_pair_finder find, const void *context,
                          treeattn_error *error) {
  /* n - 1 pairs at first, two more for each of n - 1 merges. */
  merger merging = {symbols, find, context, malloc(3 * (size_t)num_symbols * sizeof *merging.heap), 0};
  if (merging.heap == NULL) {
    return gen_fail_memory(error);
  }
  for (int32_t s = 0; s + 1 < num_symbols; ++s) {
    offer(&merging, s);
  }
  while (merging.num > 0) {
    const candidate best = pop(&merging);
    gen_pair now = {0};
    if (!find_at(&merging, best.left, &now) || now.token != best.pair.token || now.order != best.pair.order) {
      continue;
    }
    gen_symbol *left = &symbols[best.left];
    gen_symbol *right = &symbols[left->next];
    left->token = now.token;
    left->bytes += right->bytes;
    left->next = right->next;
    right->bytes = 0;
    if (right->next >= 0) {
      symbols[right->next].previous = best.left;
    }
    offer(&merging, left->previous);
    offer(&merging, best.left);
  }
  free(merging.heap);
  return TREEATTN_OK;
}
