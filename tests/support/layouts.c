/* SPDX-License-Identifier: Apache-2.0 */
/* Random choices of everything that must not change a bit. */
#include "harness.h"

#include <math.h>

layout layout_random(rng *r, thread_team *team, rng *order) {
  static const int page_sizes[] = {0, 0, 0, 1, 2, 7, 16, 32, 64, 128, 256, 513};
  static const int thread_counts[] = {1, 2, 7};
  static const float poisons[] = {NAN, INFINITY, -INFINITY, 3e38f, 65504.0f, 0.0f};
  static const treeattn_mask_kind kinds[] = {TREEATTN_MASK_CHAIN,     TREEATTN_MASK_PARENTS,    TREEATTN_MASK_INTERVALS,
                                             TREEATTN_MASK_DENSE_F32, TREEATTN_MASK_DENSE_BOOL, TREEATTN_MASK_BITS};
  layout how = LAYOUT_INIT;
  how.page_size = PICK(r, page_sizes);
  how.extra_slots = rng_chance(r, 2) ? 0 : rng_range(r, 1, 40);
  how.shuffle = rng_chance(r, 2);
  how.stride_pad = rng_chance(r, 3) ? rng_range(r, 1, 9) : 0;
  how.poison = PICK(r, poisons);
  how.encoding = PICK(r, kinds);
  how.mask_pad = rng_chance(r, 2) ? 0 : rng_range(r, 1, 70);
  how.square_mask = rng_chance(r, 3);
  how.pass_positions = rng_chance(r, 3);
  how.written_window = rng_chance(r, 3) && how.encoding >= TREEATTN_MASK_DENSE_F32 && !how.square_mask;
  how.guards_at_begin = rng_chance(r, 4);
  how.isa = TREEATTN_ISA_AUTO;
  team->num_threads = PICK(r, thread_counts);
  how.num_workers = team->num_threads;
  if (team->num_threads > 1) {
    how.executor = thread_team_executor(team);
  } else if (rng_chance(r, 2)) {
    order->state = rng_next(r);
    how.executor = shuffled_executor(order);
    how.num_workers = rng_range(r, 1, 16);
  }
  how.seed = rng_next(r);
  return how;
}

int available_isas(treeattn_isa isas[8]) {
  int count = 0;
  for (int isa = TREEATTN_ISA_SCALAR; isa <= TREEATTN_ISA_NEON; isa++) {
    if (treeattn_isa_available((treeattn_isa)isa)) {
      isas[count++] = (treeattn_isa)isa;
    }
  }
  return count;
}
