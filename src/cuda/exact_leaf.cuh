/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One leaf of a block of rows, from zero, in the order of docs/arithmetic.md: scores of all its keys stay on the chip,
 * become weights there, and meet the values. Both stages of the exact mode are made of it.
 *
 * A position that no row of the block sees has no element in the cache. Nothing is read for it; its key and value are
 * zeros, its score is -infinity and its weight therefore +0. That changes no bit: the chains start at +0, and what a
 * zero term can turn over is the sign of a zero, which the additions block after block absorb.
 */
#ifndef TA_CUDA_EXACT_LEAF_CUH
#define TA_CUDA_EXACT_LEAF_CUH

#include "exact.cuh"

namespace ta_exact {

template <class SHAPE, int KV>
struct leaf_worker {
  using cache = cache_type<KV>;
  static constexpr int rows_of_thread = SHAPE::thread_rows;
  static constexpr int columns_of_thread = SHAPE::thread_columns;
  static constexpr int rows = SHAPE::rows;
  static constexpr int depth = cache::depth;
  static constexpr int pieces = 2; /* loads of a thread for a tile */

  const ta_cuda_params &params;
  memory<SHAPE> &m;
  uint4 raw[pieces]; /* the next tile on its way */
  uint32_t query[4];

  __device__ __forceinline__ leaf_worker(const ta_cuda_params &params_, memory<SHAPE> &m_) : params(params_), m(m_) {}

  /* ---- tiles of keys: 256 positions, 8 or 16 channels ---- */

  /* Keys and queries are turned on their way into shared memory. Threads that write runs of channels of neighbouring
   * rows would meet in a bank, so that a row's place depends on the run. */
  __device__ __forceinline__ static int key_flip(int channel) {
    return channel / cache::elements * 16;
  }

  __device__ __forceinline__ static int query_flip(int channel) {
    return channel / 4 * (4 * 32 / depth) & (rows - 1);
  }

  __device__ __forceinline__ static int key_of_piece(int thread, int piece) {
    return (thread & ~31) + (thread & 31) / pieces + 32 / pieces * piece;
  }

  __device__ __forceinline__ void fetch_keys(int pass, int first_channel) {
    const int thread = fresh_thread();
    const int part = thread % pieces;
    const int channel = first_channel + part * cache::elements;
#pragma unroll
    for (int n = 0; n < pieces; ++n) {
      const int64_t element = m.key_element[pass * COLUMNS + key_of_piece(thread, n)];
      raw[n] = make_uint4(0, 0, 0, 0);
      if (element >= 0 && channel < params.head_dim) {
        raw[n] = *(const uint4 *)((const unsigned char *)params.k + (element + channel) * cache::bytes);
      }
    }
    if (thread < depth / 4 * rows) {
      const int64_t element = m.query_element[thread / (depth / 4)];
      const int query_channel = first_channel + thread % (depth / 4) * 4;
      const bool valid = element >= 0 && query_channel < params.head_dim;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        query[n] = valid ? ta_load_query_bits(params, element + query_channel + n) : 0;
      }
    }
  }

  __device__ __forceinline__ void store_keys(int buffer) {
    const int thread = fresh_thread();
    const int part = thread % pieces;
#pragma unroll
    for (int n = 0; n < pieces; ++n) {
      const int key = key_of_piece(thread, n);
      float values[cache::elements];
      cache::unpack(raw[n], values);
#pragma unroll
      for (int d = 0; d < cache::elements; ++d) {
        m.tiles[buffer][(part * cache::elements + d) * COLUMNS + (key ^ (part * 16))] = values[d];
      }
    }
    if (thread < depth / 4 * rows) {
      const int channel = thread % (depth / 4) * 4;
      float *target = m.queries[buffer] + channel * rows + ((thread / (depth / 4)) ^ query_flip(channel));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float q = ta_query_from_bits(params, query[n]);
        target[n * rows] = fmaf(q, params.scale_hi, __fmul_rn(q, params.scale_lo));
      }
    }
  }

  /* Adds eight channels at a time: [0] is the chain of the even ones, [1] of the odd ones. */
  __device__ __forceinline__ void add_channels(int buffer, int count, place at,
                                               float (&chains)[2][rows_of_thread][columns_of_thread]) {
    for (int begin = 0; begin < count; begin += 8) {
#pragma unroll
      for (int d = 0; d < 8; ++d) {
        float q[rows_of_thread];
        float k[columns_of_thread];
        load_line(m.queries[buffer] + (begin + d) * rows, at.row_group, rows, query_flip(begin + d), q);
        load_line(m.tiles[buffer] + (begin + d) * COLUMNS, at.column_group, COLUMNS, key_flip(begin + d), k);
#pragma unroll
        for (int i = 0; i < rows_of_thread; ++i) {
#pragma unroll
          for (int j = 0; j < columns_of_thread; ++j) {
            chains[d & 1][i][j] = fmaf(q[i], k[j], chains[d & 1][i][j]);
          }
        }
      }
    }
  }

  /* Ends the chains of up to 128 channels. */
  __device__ __forceinline__ void end_chains(int pass, bool first, place at,
                                             float (&chains)[2][rows_of_thread][columns_of_thread]) {
#pragma unroll
    for (int j = 0; j < columns_of_thread; ++j) {
      float *line = m.scores + (pass * COLUMNS + index_of<columns_of_thread>(at.column_group, COLUMNS, j)) * rows;
#pragma unroll
      for (int i = 0; i < rows_of_thread; i += 4) {
        float4 *target = (float4 *)(line + index_of<rows_of_thread>(at.row_group, rows, i));
        float4 t = make_float4(__fadd_rn(chains[0][i][j], chains[1][i][j]),
                               __fadd_rn(chains[0][i + 1][j], chains[1][i + 1][j]),
                               __fadd_rn(chains[0][i + 2][j], chains[1][i + 2][j]),
                               __fadd_rn(chains[0][i + 3][j], chains[1][i + 3][j]));
        if (!first) {
          const float4 before = *target;
          t = make_float4(__fadd_rn(before.x, t.x), __fadd_rn(before.y, t.y), __fadd_rn(before.z, t.z),
                          __fadd_rn(before.w, t.w));
        }
        *target = t;
      }
    }
#pragma unroll
    for (int i = 0; i < rows_of_thread; ++i) {
#pragma unroll
      for (int j = 0; j < columns_of_thread; ++j) {
        chains[0][i][j] = chains[1][i][j] = 0.0f;
      }
    }
  }

  /* Products of queries and keys of the passes in which a block is seen. Ends behind a barrier. */
  __device__ __forceinline__ void multiply_keys(uint32_t blocks) {
    const place at = place_of<SHAPE::groups>(threadIdx.x);
    const int padded = (params.head_dim + depth - 1) / depth * depth;
    const int end = (blocks & 0xf0u) != 0 ? 2 * padded : padded;
    int channel = (blocks & 0x0fu) != 0 ? 0 : padded; /* of the first pass, then of the second */
    float chains[2][rows_of_thread][columns_of_thread] = {};
    fetch_keys(channel >= padded, 0);
    store_keys(channel / depth & 1);
    __syncthreads();
    for (; channel < end; channel += depth) {
      const int buffer = channel / depth & 1;
      const int next = channel + depth;
      if (next < end) {
        fetch_keys(next >= padded, next >= padded ? next - padded : next);
      }
      const int pass = channel >= padded;
      const int first = channel - pass * padded;
      add_channels(buffer, min(params.head_dim - first, depth), at, chains);
      if ((first + depth) % TA_CHANNELS == 0 || first + depth == padded) {
        end_chains(pass, first < TA_CHANNELS, at, chains);
      }
      if (next < end) {
        store_keys(buffer ^ 1);
      }
      __syncthreads();
    }
  }

  /* ---- weights ---- */

  /* Ends the scores, turns them into weights, and folds the leaf's states into m.fold[0]; what that means for the
   * values is in m when the next barrier is passed. */
  __device__ __forceinline__ void weigh(bool plain) {
    float max = TA_STATE_MAX_OF_NONE;
#pragma unroll 4
    for (int n = threadIdx.x; n < TA_LEAF * rows; n += THREADS) {
      float t = m.scores[n];
      if (!plain) {
        const int position = n / rows;
        if (params.cap > 0.0f) {
          t = __fmul_rn(params.cap, ta_tanh(t));
        }
        t = m.key_element[position] < 0 ? -INFINITY : fmaf(m.bias[position], TA_LOG2E_F, t);
        m.scores[n] = t;
      }
      max = fmaxf(max, t); /* a NaN is not the largest */
    }
#pragma unroll
    for (int distance = 16; distance >= rows && distance > 0; distance /= 2) {
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, distance));
    }
    m.max_of_thread[threadIdx.x] = max;
    __syncthreads();
    constexpr int stride = rows < 32 ? 32 : rows;
#pragma unroll
    for (int n = threadIdx.x % rows; n < THREADS; n += stride) {
      max = fmaxf(max, m.max_of_thread[n]);
    }
#pragma unroll 4
    for (int n = threadIdx.x; n < TA_LEAF * rows; n += THREADS) {
      m.scores[n] = ta_exp2(__fsub_rn(m.scores[n], max));
    }
    __syncthreads();
    for (int n = threadIdx.x; n < LEAF_BLOCKS * rows; n += THREADS) {
      const float *weights = m.scores + n / rows * TA_BLOCK * rows + n % rows;
      float sum = 0.0f;
#pragma unroll 16
      for (int position = 0; position < TA_BLOCK; ++position) {
        sum = __fadd_rn(sum, weights[position * rows]);
      }
      m.block_sum[n] = sum;
    }
    __syncthreads();
    if (threadIdx.x < rows) {
      ta_state state = {max, 0.0f};
#pragma unroll
      for (int block = 0; block < LEAF_BLOCKS; ++block) {
        state.sum = __fadd_rn(state.sum, m.block_sum[block * rows + threadIdx.x]);
      }
      const ta_merge how = ta_state_merge(&m.fold[0][threadIdx.x], state);
      m.weight_a[threadIdx.x] = how.weight_a;
      m.weight_b[threadIdx.x] = how.weight_b;
      m.kind[threadIdx.x] = how.kind;
    }
  }

  /* ---- tiles of values: 8 or 16 positions of 256 / width blocks, width channels ---- */

  __device__ __forceinline__ void fetch_values(int first_position, int first_channel, int log_width) {
    const int thread = fresh_thread();
#pragma unroll
    for (int n = 0; n < pieces; ++n) {
      const int piece = thread + THREADS * n;
      const int column = piece % (COLUMNS / cache::elements) * cache::elements;
      const int position = first_position + (column >> log_width) * TA_BLOCK + piece / (COLUMNS / cache::elements);
      const int channel = first_channel + (column & ((1 << log_width) - 1));
      const int64_t element = m.value_element[position];
      raw[n] = make_uint4(0, 0, 0, 0);
      if (element >= 0 && channel < params.head_dim_v) {
        raw[n] = *(const uint4 *)((const unsigned char *)params.v + (element + channel) * cache::bytes);
      }
    }
  }

  __device__ __forceinline__ void store_values(int buffer) {
    const int thread = fresh_thread();
#pragma unroll
    for (int n = 0; n < pieces; ++n) {
      float values[cache::elements];
      cache::unpack(raw[n], values);
#pragma unroll
      for (int d = 0; d < cache::elements; d += 4) {
        *(float4 *)(m.tiles[buffer] + (thread + THREADS * n) * cache::elements + d) =
            make_float4(values[d], values[d + 1], values[d + 2], values[d + 3]);
      }
    }
  }

  __device__ __forceinline__ void add_positions(const float *weights, const float *columns, place at, int width,
                                                float (&chains)[rows_of_thread][columns_of_thread]) {
#pragma unroll
    for (int position = 0; position < depth; ++position) {
      float w[rows_of_thread];
      float v[columns_of_thread];
      load_line(weights + position * rows, at.row_group, rows, 0, w);
      load_line(columns + position * COLUMNS, at.column_group, width, 0, v);
#pragma unroll
      for (int i = 0; i < rows_of_thread; ++i) {
#pragma unroll
        for (int j = 0; j < columns_of_thread; ++j) {
          chains[i][j] = fmaf(w[i], v[j], chains[i][j]);
        }
      }
    }
  }

  /* Adds the blocks that the groups of threads have summed, in order, to the leaf, which the first group holds. The
   * weights of those blocks have been used for the last time: the other groups hand their sums over in their place. */
  __device__ __forceinline__ void add_blocks(int first_position, int team, int num_teams, int width,
                                             float (&chains)[rows_of_thread][columns_of_thread],
                                             float (&leaf)[rows_of_thread][columns_of_thread]) {
    constexpr int runs = columns_of_thread * rows_of_thread / 4;
    float4 *exchange = (float4 *)(m.scores + first_position * rows) + (threadIdx.x & (width - 1));
    if (num_teams > 1) {
      if (team > 0) {
#pragma unroll
        for (int j = 0; j < columns_of_thread; ++j) {
#pragma unroll
          for (int i = 0; i < rows_of_thread; i += 4) {
            exchange[((team - 1) * runs + j * (rows_of_thread / 4) + i / 4) * width] =
                make_float4(chains[i][j], chains[i + 1][j], chains[i + 2][j], chains[i + 3][j]);
          }
        }
      }
      __syncthreads();
    }
    if (team == 0) {
#pragma unroll
      for (int i = 0; i < rows_of_thread; ++i) {
#pragma unroll
        for (int j = 0; j < columns_of_thread; ++j) {
          leaf[i][j] = __fadd_rn(leaf[i][j], chains[i][j]);
        }
      }
      for (int other = 0; other < num_teams - 1; ++other) {
#pragma unroll
        for (int j = 0; j < columns_of_thread; ++j) {
#pragma unroll
          for (int i = 0; i < rows_of_thread; i += 4) {
            const float4 four = exchange[(other * runs + j * (rows_of_thread / 4) + i / 4) * width];
            leaf[i][j] = __fadd_rn(leaf[i][j], four.x);
            leaf[i + 1][j] = __fadd_rn(leaf[i + 1][j], four.y);
            leaf[i + 2][j] = __fadd_rn(leaf[i + 2][j], four.z);
            leaf[i + 3][j] = __fadd_rn(leaf[i + 3][j], four.w);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < rows_of_thread; ++i) {
#pragma unroll
      for (int j = 0; j < columns_of_thread; ++j) {
        chains[i][j] = 0.0f;
      }
    }
  }

  /* 256 channels at once where there are as many. Few channels leave threads over: they take further blocks of
   * positions. Only the last stretch of channels is that short. */
  __device__ __forceinline__ static int log_width_of(int num_channels) {
    return num_channels > 128 ? 8 : num_channels > 64 ? 7 : 6;
  }

  /* The first position from `position` on at which a block of the teams begins of which some are seen, or TA_LEAF. */
  __device__ __forceinline__ static int next_position(uint32_t blocks, int position, int num_teams) {
    while (position < TA_LEAF && (blocks >> (position / TA_BLOCK) & ((1u << num_teams) - 1)) == 0) {
      position += num_teams * TA_BLOCK;
    }
    return position;
  }

  /* Products of weights and values, given to `fold` as they are ready. */
  template <class FOLD>
  __device__ __forceinline__ void multiply_values(uint32_t blocks, FOLD &fold) {
    for (int first_channel = 0; first_channel < params.head_dim_v; first_channel += COLUMNS) {
      const int log_width = log_width_of(params.head_dim_v - first_channel);
      const int width = 1 << log_width;
      const int num_teams = COLUMNS >> log_width;
      const int team = threadIdx.x >> log_width;
      const place at = place_of<SHAPE::groups>(threadIdx.x & (width - 1));
      float chains[rows_of_thread][columns_of_thread] = {};
      float leaf[rows_of_thread][columns_of_thread] = {};
      int position = next_position(blocks, 0, num_teams);
      if (first_channel > 0) {
        fetch_values(position, first_channel, log_width);
      }
      store_values(position / depth & 1);
      __syncthreads();
      while (position < TA_LEAF) {
        const int buffer = position / depth & 1;
        int next = position + depth;
        if (next % TA_BLOCK == 0) {
          next = next_position(blocks, next + (num_teams - 1) * TA_BLOCK, num_teams);
        }
        if (next < TA_LEAF) {
          fetch_values(next, first_channel, log_width);
        }
        add_positions(m.scores + (position + team * TA_BLOCK) * rows, m.tiles[buffer] + team * width, at, width,
                      chains);
        if (next < TA_LEAF) {
          store_values(buffer ^ 1);
        }
        __syncthreads();
        if ((position + depth) % TA_BLOCK == 0) {
          add_blocks(position / TA_BLOCK * TA_BLOCK, team, num_teams, width, chains, leaf);
        }
        position = next;
      }
      if (team == 0) {
        fold.take(m, at, first_channel, width, leaf);
      }
    }
  }

  /* The leaf whose keys and values m.key_element and m.value_element tell. `blocks` has a bit for each block in which
   * one is seen, and is not 0; `plain` says that all are seen and none has a bias. It ends without a barrier. */
  template <class FOLD>
  __device__ __forceinline__ void run(uint32_t blocks, bool plain, FOLD &fold) {
    __syncthreads();
    multiply_keys(blocks);
    const int log_width = log_width_of(params.head_dim_v);
    const int num_teams = COLUMNS >> log_width;
    fetch_values(next_position(blocks, 0, num_teams), 0, log_width);
    weigh(plain && params.cap == 0.0f);
    multiply_values(blocks, fold);
  }
};

}  // namespace ta_exact

#endif
