// Defines a task of attention, and prefetches its keys and values.
#pragma once

#include "math.h"

#define KEY_BLOCK 64
#define MAX_QUERIES 64   // query rows times query heads of a task
#define HEAD_QUERIES 32  // of a task with one KV head
#define MAX_HEAD_DIM 256
#define KEYS_AHEAD 16  // keys, at least, whose prefetch has begun when a key or its value is used

struct KeyRange {
  int64_t first, last;  // last is exclusive
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
  const int32_t *pages;    // the sequence's page table; every position below kv_len is written
  int64_t page_size;       // slots of a page
  int64_t first_position;  // of the first query row
  int64_t window;          // a row at p sees keys > p - window; 0: all keys
  float scale;
  float *out;              // like query
  int64_t out_stride;
  // If `block` is not negative, the task covers this block of keys only. Each query then writes a
  // state instead of a result in `out`; strides are floats between rows and between heads.
  int64_t block = -1;
  float *state = nullptr;
  int64_t state_row_stride = 0, state_head_stride = 0;

  KeyRange seen_from(int64_t position) const {
    return {window > 0 && position >= window ? position - window + 1 : 0, position + 1};
  }

  // The keys that at least one row sees.
  KeyRange seen() const {
    return {seen_from(first_position).first, first_position + num_rows};
  }

  // The keys that this task covers: from the start of a block up to the last key.
  KeyRange blocks() const {
    const KeyRange all = seen();
    if (block < 0) return {all.first / KEY_BLOCK * KEY_BLOCK, all.last};
    const int64_t start = block * KEY_BLOCK, stop = start + KEY_BLOCK;
    if (start < all.first / KEY_BLOCK * KEY_BLOCK) return {all.last, all.last};
    return {start, stop < all.last ? stop : all.last};
  }

  // Numbers between the pool's first slot and the slot of each position start .. stop - 1.
  void find_rows(int64_t start, int64_t stop, int64_t *rows) const {
    const int32_t *page = pages + start / page_size;
    int64_t offset = start % page_size;
    for (int64_t left = stop - start; left > 0; offset = 0) {
      const int64_t count = left < page_size - offset ? left : page_size - offset;
      const int64_t first = (*page++ * page_size + offset) * slot_stride;
      for (int64_t i = 0; i < count; i++) *rows++ = first + i * slot_stride;
      left -= count;
    }
  }
};
using AttentionTask = PagedAttention<float>;

// Prefetches keys, or values, into the second-level cache; the first-level one holds the block in
// use. A task's rows come first, then those of the next task's first block. All heads of a key are
// read together, in the order of addresses. As many bytes are read as are used meanwhile, so the
// prefetch of a task with several heads is up to a block ahead.
template <class KV>
class RowsAhead {
 public:
  // Start with the rows of this task, unless then() has started them already.
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

  // Prefetch as many bytes as are used now, and at least KEYS_AHEAD keys beyond `key`.
  void read(int64_t key, int64_t bytes) {
    while (!is_beyond && now.key < now.stop && now.key <= key + KEYS_AHEAD) read_bytes(now.bytes);
    read_bytes(bytes);
  }

 private:
  struct Rows {
    const KV *numbers;      // of the pool's first slot
    const int32_t *page;    // the page after the current one
    int64_t page_size, stride, bytes;  // slots of a page; numbers between rows; bytes of a row
    int64_t key, stop;      // the next key, and the end
    int64_t left = 0;       // keys left in the current page
    const KV *row = nullptr;  // the next key's row, if any is left in the current page

    const char *take() {
      if (left == 0) enter_page(0);
      const KV *taken = row;
      row += stride;
      key++;
      left--;
      return (const char *)taken;
    }

    void enter_page(int64_t offset) {
      row = numbers + (*page++ * page_size + offset) * stride;
      left = page_size - offset;
    }
  };

  static Rows rows_of(const PagedAttention<KV> &task, const KV *numbers, int64_t head_dim,
                      int64_t stop) {
    const int64_t start = task.blocks().first, first = task.seen().first;
    const int64_t bytes = task.kv_heads * head_dim * sizeof(KV), size = task.page_size;
    const int64_t key = start > first ? start : first;
    Rows rows = {numbers, task.pages + key / size, size, task.slot_stride, bytes, key, stop};
    if (key < stop) rows.enter_page(key % size);
    return rows;
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
    at = now.take();
    end = at + now.bytes;
    return true;
  }

  Rows now = {}, after = {};
  bool is_beyond = false;  // whether `now` belongs to the next task
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
