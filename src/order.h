/* SPDX-License-Identifier: Apache-2.0 */
/* Where sums are cut: the constants of docs/arithmetic.md, which bind every back end. */
#ifndef TA_ORDER_H
#define TA_ORDER_H

enum {
  TA_CHANNELS = 128,    /* channels of a score's chains */
  TA_BLOCK = 64,        /* positions of a chain of weights and values */
  TA_LEAF = 512,        /* positions computed from zero */
  TA_GROUP_LEAVES = 16, /* leaves folded before groups are */
  TA_LEAF_WORDS = TA_LEAF / 64
};

#endif
