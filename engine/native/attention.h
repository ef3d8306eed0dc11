// Attention of a few query rows over paged keys and values, straight from the pool: nothing is
// gathered and KV heads are not expanded. A task is some query rows of one sequence with all query
// heads of one KV head. Keys come in blocks that stay in the first cache while every query of the
// task uses them; the softmax is the running one (Milakov and Gimelshein, 2018).
#pragma once

#include "math.h"

#define KEY_BLOCK 64
#define MAX_QUERIES 32  // query rows times query heads of a task
#define MAX_HEAD_DIM 256

struct AttentionTask {
  const float *query;      // [rows, H, D]: the first row's first head of this KV head
  int64_t query_stride;    // floats between rows
  int64_t num_rows;        // query rows, at consecutive positions
  int64_t group;           // query heads of this KV head
  const float *keys;       // [S, Hkv, D] at this KV head
  const float *values;     // likewise
  int64_t slot_stride;     // floats between slots
  const int64_t *slots;    // of the sequence's positions 0 .. kv_len - 1, all of them written
  int64_t first_position;  // of the first query row
  int64_t window;          // a row at p sees keys > p - window; 0: all
  float scale;
  float *out;              // like query
  int64_t out_stride;
};

// One query: what it sees, and its running softmax.
struct Query {
  const float *q;
  int64_t begin, end;
  float top, sum;
  float acc[MAX_HEAD_DIM];
};

static inline float max_of(float a, float b) { return a > b ? a : b; }

// Scores of QT queries against keys begin .. end - 1; each key is loaded once for all of them.
template <int DV, int QT>
static inline void score_keys(const AttentionTask &task, const Query *queries, int64_t begin,
                              int64_t end, float scores[QT][KEY_BLOCK]) {
  for (int64_t i = begin; i < end; i++) {
    const float *k = task.keys + task.slots[i] * task.slot_stride;
    vec s[QT] = {};
    for (int d = 0; d < DV; d++) {
      const vec kd = load(k + d * VL);
      for (int n = 0; n < QT; n++) s[n] += load(queries[n].q + d * VL) * kd;
    }
    for (int n = 0; n < QT; n++) scores[n][i - begin] = sum_lanes(s[n]) * task.scale;
  }
}

// Turn one query's scores into weights relative to its running maximum; what it does not see
// weighs nothing. Returns what its earlier weights shrink by.
static inline float weigh(Query &query, int64_t begin, int64_t end, float *scores) {
  float top = query.top;
  for (int64_t i = begin; i < end; i++) {
    if (i < query.begin || i >= query.end) scores[i - begin] = -INFINITY;
    top = max_of(top, scores[i - begin]);
  }
  if (top == -INFINITY) {  // it has seen nothing yet
    for (int64_t i = 0; i < end - begin; i++) scores[i] = 0.0f;
    return 0.0f;
  }
  for (int64_t i = end - begin; i % VL != 0; i++) scores[i] = -INFINITY;
  for (int64_t i = 0; i < end - begin; i += VL) store(scores + i, exp_lanes(load(scores + i) - top));
  float sum = 0.0f;
  for (int64_t i = begin; i < end; i++) {
    if (i < query.begin || i >= query.end) scores[i - begin] = 0.0f;
    sum += scores[i - begin];
  }
  const float kept = query.top == -INFINITY ? 0.0f : expf(query.top - top);
  query.top = top;
  query.sum = query.sum * kept + sum;
  return kept;
}

template <int DV, int QT>
static inline void add_values(const AttentionTask &task, Query *queries, int64_t begin, int64_t end,
                              const float kept[QT], const float scores[QT][KEY_BLOCK]) {
  vec acc[QT][DV];
  for (int n = 0; n < QT; n++)
    for (int d = 0; d < DV; d++) acc[n][d] = load(queries[n].acc + d * VL) * kept[n];
  for (int64_t i = begin; i < end; i++) {
    const float *v = task.values + task.slots[i] * task.slot_stride;
    for (int d = 0; d < DV; d++) {
      const vec vd = load(v + d * VL);
      for (int n = 0; n < QT; n++) acc[n][d] += scores[n][i - begin] * vd;
    }
  }
  for (int n = 0; n < QT; n++)
    for (int d = 0; d < DV; d++) store(queries[n].acc + d * VL, acc[n][d]);
}

template <int DV, int QT>
static inline void attend_tile(const AttentionTask &task, Query *queries, int64_t begin,
                               int64_t end) {
  float scores[QT][KEY_BLOCK], kept[QT];
  score_keys<DV, QT>(task, queries, begin, end, scores);
  for (int n = 0; n < QT; n++) kept[n] = weigh(queries[n], begin, end, scores[n]);
  add_values<DV, QT>(task, queries, begin, end, kept, scores);
}

template <int DV>
static inline void attend(const AttentionTask &task) {
  Query queries[MAX_QUERIES];
  const int64_t count = task.num_rows * task.group, D = DV * VL;
  int64_t first = INT64_MAX, last = 0;
  for (int64_t n = 0; n < count; n++) {
    Query &query = queries[n];
    const int64_t position = task.first_position + n / task.group;
    query.q = task.query + n / task.group * task.query_stride + n % task.group * D;
    query.begin = task.window > 0 && position >= task.window ? position - task.window + 1 : 0;
    query.end = position + 1;
    query.top = -INFINITY;
    query.sum = 0.0f;
    for (int64_t d = 0; d < D; d++) query.acc[d] = 0.0f;
    first = query.begin < first ? query.begin : first;
    last = query.end;
  }
  constexpr int QT = DV <= 4 ? 3 : 2;  // QT * DV accumulators stay in registers
  for (int64_t at = first; at < last; at += KEY_BLOCK) {
    const int64_t end = at + KEY_BLOCK < last ? at + KEY_BLOCK : last;
    int64_t n = 0;
    for (; n + QT <= count; n += QT) attend_tile<DV, QT>(task, queries + n, at, end);
    for (; n < count; n++) attend_tile<DV, 1>(task, queries + n, at, end);
  }
  for (int64_t n = 0; n < count; n++) {
    float *out = task.out + n / task.group * task.out_stride + n % task.group * D;
    for (int64_t d = 0; d < D; d += VL) store(out + d, load(queries[n].acc + d) / queries[n].sum);
  }
}

template <int DV>
static inline bool attend_if_fits(const AttentionTask *task) {
  if constexpr (DV * VL > MAX_HEAD_DIM) return false;
  else if (task) attend<DV>(*task);
  return true;
}

// False, and nothing done, when there is no code for this head_dim; a null task only asks.
static inline bool attend(const AttentionTask *task, int64_t head_dim) {
  if (head_dim % VL != 0) return false;
  switch (head_dim / VL) {
    case 1: return attend_if_fits<1>(task);
    case 2: return attend_if_fits<2>(task);
    case 3: return attend_if_fits<3>(task);
    case 4: return attend_if_fits<4>(task);
    case 5: return attend_if_fits<5>(task);
    case 6: return attend_if_fits<6>(task);
    case 8: return attend_if_fits<8>(task);
    case 10: return attend_if_fits<10>(task);
    case 12: return attend_if_fits<12>(task);
    case 16: return attend_if_fits<16>(task);
    case 32: return attend_if_fits<32>(task);
  }
  return false;
}
