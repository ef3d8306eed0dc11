// Attention of a few query rows over paged keys and values, straight from the pool: nothing is
// gathered and KV heads are not expanded. Keys come in blocks that stay in the first cache while
// all query rows of the task use them; the softmax is the running one (Milakov & Gimelshein 2018).
#pragma once

#include "math.h"

#define KEY_BLOCK 64
#define MAX_QUERIES 32    // query rows times heads of one KV head in a task
#define MAX_HEAD_DIM 256

struct AttentionTask {
  const float *query;       // [rows, H, D]: the first row's first head of this KV head
  int64_t query_stride;     // floats between rows
  int64_t num_rows;         // query rows, at consecutive positions
  int64_t group;            // query heads of this KV head
  const float *keys;        // [S, Hkv, D] at this KV head
  const float *values;      // likewise
  int64_t slot_stride;      // floats between slots
  const int64_t *slots;     // of the sequence's positions 0 .. kv_len - 1
  int64_t first_position;   // of the first query row
  int64_t window;           // a row at p sees keys > p - window; 0: all
  int64_t is_causal;        // a row at p sees keys <= p; otherwise keys < kv_len
  int64_t kv_len;
  int64_t head_dim;
  float scale;
  float *out;               // like query
  int64_t out_stride;
};

struct RowState {
  float max, sum;
  int64_t begin, end;  // keys that the row sees
};

static inline float dot(const float *a, const float *b, int64_t n) {
  vec s = {};
  for (int64_t i = 0; i < n; i += VL) s += load(a + i) * load(b + i);
  return sum_lanes(s);
}

// One block of keys for one query: scores, running maximum, and values weighted into acc.
static inline void attend_block(const AttentionTask &task, const float *q, RowState &row,
                                int64_t begin, int64_t end, float *acc) {
  float scores[KEY_BLOCK + VL];
  const int64_t count = end - begin, D = task.head_dim;
  float top = row.max;
  for (int64_t i = 0; i < count; i++) {
    const float *k = task.keys + task.slots[begin + i] * task.slot_stride;
    scores[i] = dot(q, k, D) * task.scale;
    top = scores[i] > top ? scores[i] : top;
  }
  const float kept = row.max == -INFINITY ? 0.0f : expf(row.max - top);
  for (int64_t i = count; i < count + VL; i++) scores[i] = -INFINITY;
  for (int64_t i = 0; i < count; i += VL) store(scores + i, exp_lanes(load(scores + i) - top));
  row.max = top;
  row.sum *= kept;
  for (int64_t d = 0; d < D; d += VL) store(acc + d, load(acc + d) * kept);
  for (int64_t i = 0; i < count; i++) {
    const float *v = task.values + task.slots[begin + i] * task.slot_stride;
    row.sum += scores[i];
    for (int64_t d = 0; d < D; d += VL) store(acc + d, load(acc + d) + scores[i] * load(v + d));
  }
}

static inline void attend(const AttentionTask &task) {
  float acc[MAX_QUERIES][MAX_HEAD_DIM];
  RowState rows[MAX_QUERIES];
  const int64_t queries = task.num_rows * task.group, D = task.head_dim;
  int64_t first = task.kv_len, last = 0;
  for (int64_t r = 0; r < queries; r++) {
    const int64_t position = task.first_position + r / task.group;
    rows[r].max = -INFINITY;
    rows[r].sum = 0.0f;
    rows[r].begin = task.window > 0 && position - task.window + 1 > 0 ? position - task.window + 1 : 0;
    rows[r].end = task.is_causal ? position + 1 : task.kv_len;
    if (rows[r].begin < first) first = rows[r].begin;
    if (rows[r].end > last) last = rows[r].end;
    for (int64_t d = 0; d < D; d++) acc[r][d] = 0.0f;
  }
  for (int64_t at = first; at < last; at += KEY_BLOCK)
    for (int64_t r = 0; r < queries; r++) {
      const int64_t begin = rows[r].begin > at ? rows[r].begin : at;
      const int64_t end = rows[r].end < at + KEY_BLOCK ? rows[r].end : at + KEY_BLOCK;
      const float *q = task.query + r / task.group * task.query_stride + r % task.group * D;
      if (begin < end) attend_block(task, q, rows[r], begin, end, acc[r]);
    }
  for (int64_t r = 0; r < queries; r++) {
    float *out = task.out + r / task.group * task.out_stride + r % task.group * D;
    for (int64_t d = 0; d < D; d += VL) store(out + d, load(acc[r] + d) / rows[r].sum);
  }
}
