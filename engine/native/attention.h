// Attention of a few query rows over paged keys and values, straight from the pool: nothing is
// gathered and KV heads are not expanded. A task is some query rows of one sequence with all query
// heads of one KV head, so that each key is loaded once for several queries.
//
// Keys come in blocks that begin at multiples of KEY_BLOCK. Each block has a softmax of its own;
// blocks are then put together, first to last, by their maxima (Milakov and Gimelshein, 2018). So
// a query's result is the same to the last bit whether one task sees all blocks or each has one.
#pragma once

#include "math.h"

#define KEY_BLOCK 64
#define MAX_QUERIES 32  // query rows times query heads of a task
#define MAX_HEAD_DIM 256
#define KEYS_AHEAD 24   // whose reading begins while a key, or its value, is used

template <class KV>
struct PagedAttention {
  const float *query;      // [rows, H, D]: the first row's first head of this KV head
  int64_t query_stride;    // floats between rows
  int64_t num_rows;        // query rows, at consecutive positions
  int64_t group;           // query heads of this KV head
  const KV *keys;          // [S, Hkv, D] at this KV head
  const KV *values;        // likewise
  int64_t slot_stride;     // numbers between slots
  const int64_t *slots;    // of the sequence's positions 0 .. kv_len - 1, all of them written
  int64_t first_position;  // of the first query row
  int64_t window;          // a row at p sees keys > p - window; 0: all
  float scale;
  float *out;              // like query
  int64_t out_stride;
  // Or one block of keys only, for other tasks have the others. Then a state per query goes here
  // instead of results to `out`; strides are floats between rows and between heads.
  int64_t block = -1;
  float *state = nullptr;
  int64_t state_row_stride = 0, state_head_stride = 0;
};
using AttentionTask = PagedAttention<float>;

// What a softmax has come to: greatest score, sum of weights relative to it, weighted values.
struct SoftmaxState {
  float top = -INFINITY, sum = 0.0f;
};

struct Query {
  const float *q;
  int64_t begin, end;  // the keys that it sees
  SoftmaxState state;
  float acc[MAX_HEAD_DIM];
};

// A state is written as top, sum and zeros up to VL floats, then D weighted values.
static inline int64_t state_size(int64_t head_dim) { return VL + head_dim; }

// How two states' sums and values shrink when they become one.
struct Shrink {
  float old, more;
};

static inline Shrink add_state(SoftmaxState &state, SoftmaxState more) {
  if (more.top == -INFINITY) return {1.0f, 0.0f};
  const float top = state.top > more.top ? state.top : more.top;
  vec tops = splat(more.top);
  tops[0] = state.top;
  const vec kept = exp_lanes(tops - top);
  state.sum = state.sum * kept[0] + more.sum * kept[1];
  state.top = top;
  return {kept[0], kept[1]};
}

static inline vec add_values(vec old, vec more, Shrink shrink) {
  const vec kept = old * shrink.old;
  return kept + more * shrink.more;
}

// Into the second cache: the first one holds what a block is computed with.
template <class KV>
static inline void prefetch_row(const KV *row, int64_t n) {
  for (size_t i = 0; i < n * sizeof(KV); i += 64) __builtin_prefetch((const char *)row + i, 0, 2);
}

// Keys begin .. end - 1 of the block that starts at `start`; the sequence has some up to `last`.
struct Block {
  int64_t start, begin, end, last;

  // The key that is read ahead while this one is used.
  int64_t ahead_of(int64_t key) const {
    return key + KEYS_AHEAD < last ? key + KEYS_AHEAD : last - 1;
  }
};

// Scores of Q queries; each key is loaded once for all of them.
template <int Q, class KV>
static inline void score_keys(const PagedAttention<KV> &task, const Query *queries, int64_t D,
                              Block block, bool is_first, float scores[Q][KEY_BLOCK]) {
  for (int64_t i = block.start + (block.begin - block.start) / NT * NT; i < block.end; i += NT) {
    const KV *k[NT];
    vec acc[Q][NT];
    for (int j = 0; j < NT; j++) {
      const int64_t at = i + j < block.end ? i + j : block.end - 1;
      k[j] = task.keys + task.slots[at] * task.slot_stride;
      if (is_first)
        prefetch_row(task.keys + task.slots[block.ahead_of(at)] * task.slot_stride, D);
    }
#pragma GCC unroll 8
    for (int n = 0; n < Q; n++)
#pragma GCC unroll 8
      for (int j = 0; j < NT; j++) acc[n][j] = vec{};
    for (int64_t d = 0; d < D; d += VL) {
      vec kd[NT];
      for (int j = 0; j < NT; j++) {
        kd[j] = load(k[j] + d);
        IN_REGISTER(kd[j]);
      }
#pragma GCC unroll 8
      for (int n = 0; n < Q; n++) {
        vec qd = load(queries[n].q + d);
        IN_REGISTER(qd);
        for (int j = 0; j < NT; j++) acc[n][j] += qd * kd[j];
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < Q; n++) sum_each<NT>(acc[n], scores[n] + (i - block.start));
  }
}

// Turn the scores of keys begin .. end - 1 of a block into weights; all others weigh nothing.
static inline SoftmaxState weigh(float *scores, int64_t begin, int64_t end, float scale) {
  for (int64_t i = 0; i < begin; i++) scores[i] = -INFINITY;
  for (int64_t i = end > 0 ? end : 0; i < KEY_BLOCK; i++) scores[i] = -INFINITY;
  vec tops = splat(-INFINITY);
  for (int64_t i = 0; i < KEY_BLOCK; i += VL) {
    const vec s = load(scores + i) * scale;
    store(scores + i, s);
    tops = s > tops ? s : tops;
  }
  SoftmaxState state;
  for (int i = 0; i < VL; i++) state.top = tops[i] > state.top ? tops[i] : state.top;
  vec sums = {};
  for (int64_t i = 0; i < KEY_BLOCK; i += VL) {
    const vec s = load(scores + i);
    const vec weight = s == -INFINITY ? vec{} : exp_lanes(s - state.top);
    store(scores + i, weight);
    sums += weight;
  }
  state.sum = sum_lanes(sums);
  return state;
}

// C vectors of columns of Q queries' values, from column d on.
template <int Q, int C, class KV>
static inline void sum_values(const PagedAttention<KV> &task, Query *queries, int64_t d,
                              Block block, bool is_first, const Shrink shrinks[Q],
                              const float weights[Q][KEY_BLOCK]) {
  vec acc[Q][C];
#pragma GCC unroll 8
  for (int n = 0; n < Q; n++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) acc[n][c] = vec{};
  for (int64_t i = block.begin; i < block.end; i++) {
    const KV *v = task.values + task.slots[i] * task.slot_stride + d;
    if (is_first)
      prefetch_row(task.values + task.slots[block.ahead_of(i)] * task.slot_stride + d, C * VL);
    vec vd[C];
    for (int c = 0; c < C; c++) {
      vd[c] = load(v + c * VL);
      IN_REGISTER(vd[c]);
    }
#pragma GCC unroll 8
    for (int n = 0; n < Q; n++) {
      vec weight = splat(weights[n][i - block.start]);
      IN_REGISTER(weight);
      for (int c = 0; c < C; c++) acc[n][c] += weight * vd[c];
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < Q; n++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) {
      float *at = queries[n].acc + d + c * VL;
      store(at, add_values(load(at), acc[n][c], shrinks[n]));
    }
}

template <int Q, class KV>
ONE_COPY void attend_tile(const PagedAttention<KV> &task, Query *queries, int64_t D,
                               Block block, bool is_first) {
  float scores[Q][KEY_BLOCK];
  Shrink shrinks[Q];
  score_keys<Q>(task, queries, D, block, is_first, scores);
  for (int n = 0; n < Q; n++) {
    const int64_t begin = queries[n].begin - block.start, end = queries[n].end - block.start;
    shrinks[n] = add_state(queries[n].state, weigh(scores[n], begin < KEY_BLOCK ? begin : KEY_BLOCK,
                                                   end < KEY_BLOCK ? end : KEY_BLOCK, task.scale));
  }
  int64_t d = 0;
  for (; d + NT * VL <= D; d += NT * VL)
    sum_values<Q, NT>(task, queries, d, block, is_first, shrinks, scores);
  for (; d < D; d += VL) sum_values<Q, 1>(task, queries, d, block, is_first, shrinks, scores);
}

template <class KV>
static inline void attend_queries(const PagedAttention<KV> &task, Query *queries, int64_t count,
                                  int64_t D, Block block, bool is_first) {
  switch (count) {
    case 1: return attend_tile<1>(task, queries, D, block, is_first);
    case 2: return attend_tile<2>(task, queries, D, block, is_first);
    case 3: return attend_tile<3>(task, queries, D, block, is_first);
    case 4: return attend_tile<4>(task, queries, D, block, is_first);
    case 5: return attend_tile<5>(task, queries, D, block, is_first);
    case 6: return attend_tile<6>(task, queries, D, block, is_first);
  }
}

// Whether there is code for heads of this width.
static inline bool can_attend(int64_t head_dim) {
  return head_dim % VL == 0 && head_dim <= MAX_HEAD_DIM;
}

static inline void store_result(float *out, const Query &query, int64_t D) {
  for (int64_t d = 0; d < D; d += VL) store(out + d, load(query.acc + d) / query.state.sum);
}

static inline void store_state(float *state, const Query &query, int64_t D) {
  state[0] = query.state.top;
  state[1] = query.state.sum;
  __builtin_memcpy(state + VL, query.acc, D * sizeof(float));
}

template <class KV>
ONE_COPY void attend(const PagedAttention<KV> *task, int64_t D) {
  Query queries[MAX_QUERIES];
  const int64_t count = task->num_rows * task->group;
  for (int64_t n = 0; n < count; n++) {
    Query &query = queries[n];
    const int64_t position = task->first_position + n / task->group;
    query.q = task->query + n / task->group * task->query_stride + n % task->group * D;
    query.begin = task->window > 0 && position >= task->window ? position - task->window + 1 : 0;
    query.end = position + 1;
    query.state = {};
    for (int64_t d = 0; d < D; d++) query.acc[d] = 0.0f;
  }
  const int64_t first = queries[0].begin, last = queries[count - 1].end;
  int64_t start = first / KEY_BLOCK * KEY_BLOCK, stop = last;
  if (task->block >= 0) {
    start = start > task->block * KEY_BLOCK ? last : task->block * KEY_BLOCK;
    stop = start + KEY_BLOCK < last ? start + KEY_BLOCK : last;
  }
  for (; start < stop; start += KEY_BLOCK) {
    const Block block = {start, first > start ? first : start,
                         start + KEY_BLOCK < stop ? start + KEY_BLOCK : stop, last};
    for (int64_t n = 0; n < count; n += MT)
      attend_queries(*task, queries + n, count - n < MT ? count - n : MT, D, block, n == 0);
  }
  for (int64_t n = 0; n < count; n++) {
    const int64_t row = n / task->group, head = n % task->group;
    if (task->block < 0)
      store_result(task->out + row * task->out_stride + head * D, queries[n], D);
    else
      store_state(task->state + row * task->state_row_stride + head * task->state_head_stride,
                  queries[n], D);
  }
}

// A query's blocks put together, as attend() does when it sees them all. Their states lie one
// after another; a block of which the query sees nothing says so by its top.
static inline void join_states(const float *states, int64_t num_blocks, int64_t D, float *out) {
  Query query;
  query.state = {};
  for (int64_t d = 0; d < D; d++) query.acc[d] = 0.0f;
  for (int64_t i = 0; i < num_blocks; i++) {
    const float *state = states + i * state_size(D);
    const Shrink shrink = add_state(query.state, {state[0], state[1]});
    for (int64_t d = 0; d < D; d += VL)
      store(query.acc + d, add_values(load(query.acc + d), load(state + VL + d), shrink));
  }
  store_result(out, query, D);
}
