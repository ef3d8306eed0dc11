// What a task of attention is, and how its keys and values are read before they are used.
#pragma once

#include "math.h"

#define KEY_BLOCK 64
#define MAX_QUERIES 64   // query rows times query heads of a task
#define HEAD_QUERIES 32  // of a task with one KV head
#define MAX_HEAD_DIM 256
#define KEYS_AHEAD 16  // whose reading has begun, at least, when a key, or its value, is used

struct KeyRange {
  int64_t first, last;  // last is the first that is not in it
};

template <class KV>
struct PagedAttention {
  const float *query;      // [rows, H, D]: the first row's first head of the first KV head
  int64_t query_stride;    // floats between rows
  int64_t num_rows;        // query rows, at consecutive positions
  int64_t kv_heads = 1;    // side by side
  int64_t group;           // query heads of each KV head
  const KV *keys;          // [S, Hkv, D] at the first KV head
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

  KeyRange seen_from(int64_t position) const {
    return {window > 0 && position >= window ? position - window + 1 : 0, position + 1};
  }

  // What any row sees.
  KeyRange seen() const {
    return {seen_from(first_position).first, first_position + num_rows};
  }

  // What this task has to do with: whole blocks, but for the last key.
  KeyRange blocks() const {
    const KeyRange all = seen();
    if (block < 0) return {all.first / KEY_BLOCK * KEY_BLOCK, all.last};
    const int64_t start = block * KEY_BLOCK, stop = start + KEY_BLOCK;
    if (start < all.first / KEY_BLOCK * KEY_BLOCK) return {all.last, all.last};
    return {start, stop < all.last ? stop : all.last};
  }
};
using AttentionTask = PagedAttention<float>;

// Keys, or values, on their way into the second cache (the first one holds what a block is computed
// with): a task's, then those of the next task's first block. All heads of a key at once, for that
// is the order of addresses. Memory is read evenly, as much as is used meanwhile, so that where a
// task has several heads the reading is up to a block ahead.
template <class KV>
class RowsAhead {
 public:
  // What task reads next, unless it is being read already.
  void begin(const PagedAttention<KV> &task, const KV *numbers, int64_t head_dim) {
    if (!is_beyond) {
      now = rows_of(task, numbers, head_dim, task.blocks().last);
      at = end = nullptr;
    }
    now.stop = task.blocks().last;
    after = {};
    is_beyond = false;
  }

  void then(const PagedAttention<KV> &task, const KV *numbers, int64_t head_dim) {
    const KeyRange keys = task.blocks();
    const int64_t stop = keys.first + KEY_BLOCK;
    after = rows_of(task, numbers, head_dim, stop < keys.last ? stop : keys.last);
  }

  // While `bytes` are used, the first of them of a key.
  void read(int64_t key, int64_t bytes) {
    while (!is_beyond && now.key < now.stop && now.key <= key + KEYS_AHEAD) read_bytes(now.bytes);
    read_bytes(bytes);
  }

 private:
  struct Rows {
    const KV *numbers;
    const int64_t *slots;
    int64_t stride, bytes;  // numbers between rows, bytes of one
    int64_t key, stop;      // the next one, and where they end
  };

  static Rows rows_of(const PagedAttention<KV> &task, const KV *numbers, int64_t head_dim,
                      int64_t stop) {
    const int64_t start = task.blocks().first, first = task.seen().first;
    const int64_t bytes = task.kv_heads * head_dim * sizeof(KV);
    return {numbers, task.slots, task.slot_stride, bytes, start > first ? start : first, stop};
  }

  void read_bytes(int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) {
      if (at >= end && !next_row()) return;
      __builtin_prefetch(at, 0, 2);
      at += 64;
    }
  }

  bool next_row() {
    if (now.key >= now.stop) {
      if (after.key >= after.stop) return false;
      now = after;
      after = {};
      is_beyond = true;
    }
    at = (const char *)(now.numbers + now.slots[now.key++] * now.stride);
    end = at + now.bytes;
    return true;
  }

  Rows now = {}, after = {};
  bool is_beyond = false;  // now is the next task's
  const char *at = nullptr, *end = nullptr;
};

template <class KV>
struct KeysAhead {
  RowsAhead<KV> keys, values;

  void begin(const PagedAttention<KV> &task, int64_t head_dim) {
    keys.begin(task, task.keys, head_dim);
    values.begin(task, task.values, head_dim);
  }

  void then(const PagedAttention<KV> *task, int64_t head_dim) {
    if (!task) return;
    keys.then(*task, task->keys, head_dim);
    values.then(*task, task->values, head_dim);
  }
};
