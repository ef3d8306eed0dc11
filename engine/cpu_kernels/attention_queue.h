// Distributes the attention of a pass to threads, in pieces: some rows of one sequence, one KV
// head, and all blocks of keys or one. A free thread takes the next pieces. The KV heads of the
// same keys follow one another.
#pragma once

#include "attention.h"
#include "decoder_structs.h"

struct Split {
  int64_t pieces;
  int64_t states;  // of one query: the blocks of the longest sequence; 0 if blocks are not pieces
};

static inline int64_t num_key_blocks(const Pass &pass, int64_t b) {
  return (pass.kv_lens[b] + KEY_BLOCK - 1) / KEY_BLOCK;
}

template <class W, class KV>
struct AttentionQueue {
  const Decoder<W, KV> &model;
  const Pass &pass;
  const Layer<W, KV> &layer;
  Split split;
  int num_threads;
  int64_t b = 0, before = 0;  // the sequence of the last piece, and the pieces before it

  // Take the next task; false when none is left. It covers all KV heads of some keys, so that
  // memory is read in the order of addresses. It covers one head where all have too many queries,
  // and near the end, so that all threads finish together.
  bool take(PagedAttention<KV> &task) {
    int64_t at = __atomic_load_n(pass.turn, __ATOMIC_RELAXED);
    do {
      if (at >= split.pieces) return false;
      find(at, task);
    } while (!__atomic_compare_exchange_n(pass.turn, &at, at + task.kv_heads, false,
                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return true;
  }

  // The most query rows of a piece.
  static int64_t rows_per_piece(const Decoder<W, KV> &model) {
    return HEAD_QUERIES / (model.num_heads / model.num_kv_heads);
  }

  // Pieces of a sequence of `rows` rows, for each block of keys.
  static int64_t pieces_of(const Decoder<W, KV> &model, int64_t rows) {
    return (rows + rows_per_piece(model) - 1) / rows_per_piece(model) * model.num_kv_heads;
  }

 private:
  int64_t blocks() const { return split.states ? num_key_blocks(pass, b) : 1; }

  int64_t rows() const { return pass.row_starts[b + 1] - pass.row_starts[b]; }

  // Pieces are looked up in ascending order.
  void find(int64_t piece, PagedAttention<KV> &task) {
    int64_t pieces;
    while (piece - before >= (pieces = pieces_of(model, rows()) * blocks())) before += pieces, b++;
    const int64_t H = model.num_heads, Hkv = model.num_kv_heads, at = piece - before;
    const int64_t row = at / (blocks() * Hkv) * rows_per_piece(model);
    const int64_t left = rows() - row, most = rows_per_piece(model);
    const int64_t num_rows = left < most ? left : most;
    const bool has_all = num_rows * H <= MAX_QUERIES &&
                         (num_threads == 1 || split.pieces - piece > num_threads * Hkv);
    fill(task, row, num_rows, at % Hkv, split.states ? at / Hkv % blocks() : -1);
    task.kv_heads = has_all ? Hkv - at % Hkv : 1;
  }

  void fill(PagedAttention<KV> &task, int64_t row_of_sequence, int64_t num_rows, int64_t kv_head,
            int64_t block) const {
    const int64_t H = model.num_heads, Hkv = model.num_kv_heads, D = model.head_dim;
    const int64_t row = pass.row_starts[b] + row_of_sequence, head = kv_head * (H / Hkv);
    task.query = pass.q + (row * H + head) * D;
    task.query_stride = H * D;
    task.num_rows = num_rows;
    task.group = H / Hkv;
    task.keys = layer.keys + kv_head * D;
    task.values = layer.values + kv_head * D;
    task.slot_stride = Hkv * D;
    task.pages = pass.page_tables[b];
    task.page_size = pass.page_size;
    task.first_position = pass.kv_lens[b] - (pass.row_starts[b + 1] - row);
    task.window = layer.window;
    task.scale = model.scale;
    task.out = pass.attended + (row * H + head) * D;
    task.out_stride = H * D;
    task.block = block;
    task.state_head_stride = split.states * state_size(D);
    task.state_row_stride = H * task.state_head_stride;
    task.state = pass.states + row * task.state_row_stride + head * task.state_head_stride +
                 block * state_size(D);
  }
};

// Make each block a piece where there are too few pieces otherwise, and room for the states.
template <class W, class KV>
static inline Split split_attention(const Decoder<W, KV> &model, const Pass &pass, int num_threads) {
  Split whole = {0, 0}, split = {0, 1};
  for (int64_t b = 0; b < pass.num_sequences; b++) {
    const int64_t rows = pass.row_starts[b + 1] - pass.row_starts[b];
    const int64_t pieces = AttentionQueue<W, KV>::pieces_of(model, rows);
    const int64_t blocks = num_key_blocks(pass, b);
    whole.pieces += pieces;
    split.pieces += pieces * blocks;
    split.states = blocks > split.states ? blocks : split.states;
  }
  const bool has_room = pass.num_rows * model.num_heads * split.states <= pass.num_states;
  const bool is_split = num_threads > 1 && whole.pieces < 4 * num_threads && split.states > 1;
  return is_split && has_room ? split : whole;
}
