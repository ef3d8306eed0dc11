// Computes the attention of a few query rows over paged keys and values. The kernel reads the pool
// through page tables: it gathers nothing and does not expand KV heads. A task is some query rows
// of one sequence with all query heads of one KV head, so that each key is loaded once for several
// queries. A task may also cover all KV heads, so that memory is read in the order of addresses.
//
// Keys come in blocks that begin at multiples of KEY_BLOCK. Each block has its own softmax. Blocks
// are merged, first to last, by their maxima (Milakov and Gimelshein, 2018). So a query's result is
// the same to the last bit whether one task covers all blocks or one task covers each.
#pragma once

#include <utility>

#include "keys_ahead.h"

// A partial softmax: the greatest score, and the sum of weights relative to it.
struct SoftmaxState {
  float top = -INFINITY, sum = 0.0f;
};

struct Query {
  const float *q;
  KeyRange keys;  // the keys that it sees
  SoftmaxState state;
  float acc[MAX_HEAD_DIM];
};

// A state is written as top, sum and zeros up to VL floats, then D weighted values.
static inline int64_t state_size(int64_t head_dim) { return VL + head_dim; }

// The factors that scale two states' sums and values when the states are merged.
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

// Keys begin .. end - 1 of the block that starts at `start`. The row of key i begins rows[i -
// start] numbers after the pool's first slot.
struct Block {
  int64_t start, begin, end;
  const int64_t *rows;
};

// Scores of Q queries of a KV head; each key is loaded once for all of them.
template <int Q, class KV>
static inline void score_keys(const PagedAttention<KV> &task, int64_t head, const Query *queries,
                              int64_t D, Block block, RowsAhead<KV> *ahead,
                              float scores[Q][KEY_BLOCK]) {
  for (int64_t i = block.start + (block.begin - block.start) / NT * NT; i < block.end; i += NT) {
    const KV *k[NT];
    vec acc[Q][NT];
    for (int j = 0; j < NT; j++) {
      const int64_t at = i + j < block.end ? i + j : block.end - 1;
      k[j] = task.keys + block.rows[at - block.start] + head * D;
    }
    if (ahead) ahead->read(i, NT * D * sizeof(KV));
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

// Turn the scores of keys begin .. end - 1 of a block into weights; all other weights are 0.
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

// Add C vectors of columns of Q queries' values, from column d on.
template <int Q, int C, class KV>
static inline void sum_values(const KV *values, Query *queries, int64_t d, Block block,
                              RowsAhead<KV> *ahead, const Shrink shrinks[Q],
                              const float weights[Q][KEY_BLOCK]) {
  vec acc[Q][C];
#pragma GCC unroll 8
  for (int n = 0; n < Q; n++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) acc[n][c] = vec{};
  for (int64_t i = block.begin; i < block.end; i++) {
    const KV *v = values + block.rows[i - block.start] + d;
    if (ahead) ahead->read(i, C * VL * sizeof(KV));
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

// Q queries of a KV head over one block; `ahead` is null where another call prefetches.
template <int Q, class KV>
ONE_COPY void attend_tile(const PagedAttention<KV> &task, int64_t head, Query *queries, int64_t D,
                          Block block, KeysAhead<KV> *ahead) {
  float scores[Q][KEY_BLOCK];
  Shrink shrinks[Q];
  score_keys<Q>(task, head, queries, D, block, ahead ? &ahead->keys : nullptr, scores);
  for (int n = 0; n < Q; n++) {
    const int64_t begin = queries[n].keys.first - block.start;
    const int64_t end = queries[n].keys.last - block.start;
    shrinks[n] = add_state(queries[n].state, weigh(scores[n], begin < KEY_BLOCK ? begin : KEY_BLOCK,
                                                   end < KEY_BLOCK ? end : KEY_BLOCK, task.scale));
  }
  const KV *values = task.values + head * D;
  RowsAhead<KV> *values_ahead = ahead ? &ahead->values : nullptr;
  int64_t d = 0;
  for (; d + NT * VL <= D; d += NT * VL)
    sum_values<Q, NT>(values, queries, d, block, values_ahead, shrinks, scores);
  for (; d < D; d += VL)
    sum_values<Q, 1>(values, queries, d, block, values_ahead, shrinks, scores);
}

template <class KV>
static inline void attend_queries(const PagedAttention<KV> &task, int64_t head, Query *queries,
                                  int64_t count, int64_t D, Block block, KeysAhead<KV> *ahead) {
  switch (count) {
    case 1: return attend_tile<1>(task, head, queries, D, block, ahead);
    case 2: return attend_tile<2>(task, head, queries, D, block, ahead);
    case 3: return attend_tile<3>(task, head, queries, D, block, ahead);
    case 4: return attend_tile<4>(task, head, queries, D, block, ahead);
    case 5: return attend_tile<5>(task, head, queries, D, block, ahead);
    case 6: return attend_tile<6>(task, head, queries, D, block, ahead);
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

// The caller passes the same `ahead` to every task. next() is called once and returns the next
// task, or null. It is called as late as that task's first keys can still be prefetched.
template <class KV, class Next>
ONE_COPY void attend(const PagedAttention<KV> &task, int64_t D, KeysAhead<KV> &ahead,
                     const Next &next) {
  Query queries[MAX_QUERIES];  // by KV head, by row
  const int64_t group = task.group, per_head = task.num_rows * group;
  const int64_t count = task.kv_heads * per_head;
  const auto place_of = [&](int64_t n) {
    const int64_t row = n % per_head / group, head = n / per_head * group + n % group;
    return std::pair{row, head};
  };
  for (int64_t n = 0; n < count; n++) {
    const auto [row, head] = place_of(n);
    Query &query = queries[n];
    query.q = task.query + row * task.query_stride + head * D;
    query.keys = task.seen_from(task.first_position + row);
    query.state = {};
    for (int64_t d = 0; d < D; d++) query.acc[d] = 0.0f;
  }
  ahead.begin(task, D);
  int64_t rows[KEY_BLOCK];
  const int64_t first = task.seen().first, stop = task.blocks().last;
  int64_t start = task.blocks().first;
  if (start >= stop) ahead.then(next(), D);
  for (; start < stop; start += KEY_BLOCK) {
    const int64_t end = start + KEY_BLOCK;
    const Block block = {start, first > start ? first : start, end < stop ? end : stop, rows};
    task.find_rows(start, block.end, rows);
    if (end >= stop) ahead.then(next(), D);
    for (int64_t head = 0; head < task.kv_heads; head++)
      for (int64_t n = 0; n < per_head; n += MT)
        attend_queries(task, head, queries + head * per_head + n,
                       per_head - n < MT ? per_head - n : MT, D, block, n == 0 ? &ahead : nullptr);
  }
  for (int64_t n = 0; n < count; n++) {
    const auto [row, head] = place_of(n);
    if (task.block < 0)
      store_result(task.out + row * task.out_stride + head * D, queries[n], D);
    else
      store_state(task.state + row * task.state_row_stride + head * task.state_head_stride,
                  queries[n], D);
  }
}

template <class KV>
static inline void attend(const PagedAttention<KV> &task, int64_t D) {
  KeysAhead<KV> ahead;
  attend(task, D, ahead, []() -> const PagedAttention<KV> * { return nullptr; });
}

// Merge a query's blocks, as attend() does when one task covers them all. Their states lie one
// after another; the top of a block that the query does not see is -INFINITY.
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
