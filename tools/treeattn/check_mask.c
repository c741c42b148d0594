/* SPDX-License-Identifier: Apache-2.0 */
/* What the nodes of a tree see, in every encoding that the library reads. */
#include <math.h>
#include <string.h>

#include "check.h"

static void fill_intervals(const problem *p, int32_t (*intervals)[2]) {
  /* Sizes of the subtrees first; then each child takes the next free numbers below its parent. */
  for (int64_t i = 0; i < p->num_nodes; i++) {
    intervals[i][1] = 1;
  }
  for (int64_t i = p->num_nodes - 1; i >= 0; i--) {
    if (p->parents[i] >= 0) {
      intervals[p->parents[i]][1] += intervals[i][1];
    }
  }
  int32_t next_root = 0;
  for (int64_t i = 0; i < p->num_nodes; i++) {
    const int32_t size = intervals[i][1];
    if (p->parents[i] < 0) {
      intervals[i][0] = next_root;
      next_root += size;
    } else {
      /* after the parent itself and its earlier children */
      int32_t begin = intervals[p->parents[i]][0] + 1;
      for (int64_t j = p->parents[i] + 1; j < i; j++) {
        if (p->parents[j] == p->parents[i]) {
          begin += intervals[j][1] - intervals[j][0];
        }
      }
      intervals[i][0] = begin;
    }
    intervals[i][1] = intervals[i][0] + size;
  }
}

void *check_encode_mask(const problem *p, check_encoding encoding, treeattn_request *request) {
  const int64_t num_nodes = p->num_nodes;
  const int64_t num_slots = p->prefix_len + num_nodes;
  const bool square = encoding >= CHECK_DENSE_SQUARE;
  const int64_t columns = square ? num_nodes : num_slots;
  const int64_t first = num_slots - columns;
  const int64_t stride = encoding == CHECK_BITS || encoding == CHECK_BITS_SQUARE ? (columns + 7) / 8 + 3 : columns + 5;
  const size_t cells = (size_t)(num_nodes * stride);
  size_t bytes = 0;
  void *memory = NULL;
  switch (encoding) {
    case CHECK_CHAIN: request->mask_kind = TREEATTN_MASK_CHAIN; return cli_malloc(0);
    case CHECK_PARENTS:
      bytes = (size_t)num_nodes * sizeof *p->parents;
      memory = cli_malloc(bytes);
      if (memory != NULL) {
        memcpy(memory, p->parents, bytes);
      }
      request->mask_kind = TREEATTN_MASK_PARENTS;
      break;
    case CHECK_INTERVALS:
      bytes = (size_t)num_nodes * sizeof(int32_t[2]);
      memory = cli_malloc(bytes);
      if (memory != NULL) {
        fill_intervals(p, memory);
      }
      request->mask_kind = TREEATTN_MASK_INTERVALS;
      break;
    default: {
      const bool is_float = encoding == CHECK_DENSE || encoding == CHECK_DENSE_SQUARE;
      const bool is_bool = encoding == CHECK_BOOL || encoding == CHECK_BOOL_SQUARE;
      bytes = cells * (is_float ? sizeof(float) : 1);
      memory = cli_malloc(bytes);
      if (memory == NULL) {
        return NULL;
      }
      memset(memory, 0xff, bytes); /* columns past the last slot are not data: NaN, true, ones */
      for (int64_t i = 0; i < num_nodes; i++) {
        for (int64_t column = 0; column < columns; column++) {
          const int64_t j = first + column - p->prefix_len;
          int64_t ancestor = i;
          while (ancestor > j && j >= 0) {
            ancestor = p->parents[ancestor];
          }
          const bool seen = j < 0 || ancestor == j;
          if (is_float) {
            ((float *)memory)[i * stride + column] = seen                    ? 0.0f
                                                     : (i + column) % 2 == 0 ? TREEATTN_MASK_HIDDEN
                                                                             : -INFINITY;
          } else if (is_bool) {
            ((uint8_t *)memory)[i * stride + column] = seen ? (uint8_t)(1 + column % 255) : 0;
          } else if (!seen) {
            uint8_t *byte = (uint8_t *)memory + i * stride + column / 8;
            *byte = (uint8_t)(*byte & ~(1u << column % 8));
          }
        }
      }
      request->mask_kind = is_float ? TREEATTN_MASK_DENSE_F32 : is_bool ? TREEATTN_MASK_DENSE_BOOL : TREEATTN_MASK_BITS;
      request->mask_stride = stride;
      request->mask_columns = square ? num_nodes : 0;
      break;
    }
  }
  request->mask = memory;
  request->mask_bytes = bytes;
  return memory;
}
