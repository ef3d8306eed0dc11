// Runs a whole draft round in one call: blocks of [anchor, mask, mask, ...] go through the draft's
// layers, the head computes base logits of the predicting slots, and the Markov chain picks tokens.
//
//   x += o_proj(attention(rope(norm(q_proj(h))), rope(norm(k_proj(h))), v_proj(h)))   h = norm(x)
//   x += down_proj(silu(gate_proj(h)) * up_proj(h))                                   h = norm(x)
//
// Every slot sees the whole context of its sequence and every slot of its block. attend() takes
// rows at positions, so all queries of a block are passed as heads of one row at the block's last
// position. Their layout is [B, Hkv, N * G, D].
#pragma once

#include <omp.h>

#include "attention.h"
#include "draft_chain.h"
#include "rounded.h"

// Matrices have the precision W; everything else is float32.
// The structs are mirrored field by field in draft_structs.py; every member has 8 bytes.
template <class W>
struct DraftLayer {
  const float *input_norm;
  Matrix<W> q, k, v;
  const float *q_norm, *k_norm;
  Matrix<W> o;
  const float *post_norm;
  Matrix<W> gate, up, down;
  const float *rotary;   // [P, 2, D]: cosines; sines, of which the first half is negated
  float *keys, *values;  // this layer's pool, [S, Hkv, D]
};

template <class W>
struct Draft {
  int64_t num_layers, hidden, num_heads, num_kv_heads, head_dim, inner;
  int64_t num_slots, first_slot;  // of a block; the first that predicts: 0 or 1
  int64_t mask_id, num_tokens, num_pool_slots, num_positions;  // exclusive limits of ids, ...
  double eps;
  const DraftLayer<W> *layers;
  const float *embedding;                // [num_tokens, E]; one of the two is null
  const bfloat16 *narrow_embedding;
  const float *final_norm;
  Matrix<W> lm_head;
  Chain<W> chain;
};

struct Round {
  int64_t num_sequences, num_threads, page_size;
  const int64_t *anchor_ids, *context_lens;  // [B]
  const int64_t *slots;                      // [B, N]: of the block's keys and values
  const int32_t *const *page_tables;         // [B]: the pages of context and block
  float *x, *h, *q, *queries, *k, *v, *attended, *inner;  // scratch; inner is [2, T, I]
  RoundingRoom rounded;                                   // scratch
  float *hidden;                                          // [B, N, E], after the final norm
  ChainPass chain;  // the chain runs only if it has draft_ids
};

// out <- x * cosine + swap(x) * sine, where swap exchanges the halves of x.
static inline void rotate_signed(const float *x, const float *rotary, int64_t D, float *out) {
  const float *cosine = rotary, *sine = rotary + D;
  const int64_t half = D / 2;
  for (int64_t i = 0; i < half; i++) {
    const float a = x[i], b = x[i + half];
    out[i] = a * cosine[i] + b * sine[i];
    out[i + half] = b * cosine[i + half] + a * sine[i + half];
  }
}

template <class W>
struct Drafter {
  const Draft<W> &model;
  const Round &round;
  int rank, size;

  int64_t num_rows() const { return round.num_sequences * model.num_slots; }

  // The start of this thread's part of a matrix [N, K], which it reads next.
  const W *part(const Matrix<W> &w, int64_t N, int64_t K) const {
    int64_t begin, end;
    share(N, rank, size, &begin, &end);
    return w.rows + begin * K;
  }

  // y = x w^T, or y += x w^T, for this thread's columns of all rows.
  void linear(const float *x, int64_t K, const Matrix<W> &w, float *y, int64_t N, Into into,
              const W *next) const {
    int64_t begin, end;
    share(N, rank, size, &begin, &end);
    product(begin, end, num_rows(), x, w, K, y, N, into, next);
  }

  // Where the CPU multiplies pairs of bfloat16, rows that meet matrices of it are rounded first.
  void product(int64_t begin, int64_t end, int64_t rows, const float *x, const Matrix<W> &w,
               int64_t K, float *y, int64_t N, Into into, const W *next) const {
    const Finish finish = {w.scale, nullptr};
    if constexpr (multiplies_pairs<W>)
      linear_rounded(begin, end, rows, x, round.rounded.of(rank), w.rows, K, finish, y, N, into,
                     next);
    else
      linear_columns(begin, end, rows, x, K, w.rows, K, finish, y, N, into, next);
  }

  void embed() const {
    const int64_t E = model.hidden;
    for (int64_t t = rank; t < num_rows(); t += size) {
      const int64_t b = t / model.num_slots;
      const int64_t id = t % model.num_slots == 0 ? round.anchor_ids[b] : model.mask_id;
      float *x = round.x + t * E;
      if (model.embedding)
        __builtin_memcpy(x, model.embedding + id * E, E * sizeof(float));
      else
        for (int64_t i = 0; i < E; i++) x[i] = as_float(model.narrow_embedding[id * E + i]);
    }
  }

  void norm_rows(const float *weight) const {
    const int64_t E = model.hidden;
    for (int64_t t = rank; t < num_rows(); t += size)
      rms_norm(round.x + t * E, weight, model.eps, E, round.h + t * E);
  }

  void project(const DraftLayer<W> &layer) const {
    const int64_t E = model.hidden, heads = model.num_heads * model.head_dim;
    const int64_t kv_heads = model.num_kv_heads * model.head_dim;
    linear(round.h, E, layer.q, round.q, heads, Into::set, part(layer.k, kv_heads, E));
    linear(round.h, E, layer.k, round.k, kv_heads, Into::set, part(layer.v, kv_heads, E));
    linear(round.h, E, layer.v, round.v, kv_heads, Into::set, part(layer.o, E, heads));
  }

  // Norm and rotate: queries are laid out by KV head, keys and values go to their slots in the
  // pool.
  void rotate_and_store(const DraftLayer<W> &layer) const {
    const int64_t H = model.num_heads, Hkv = model.num_kv_heads, D = model.head_dim;
    const int64_t N = model.num_slots, group = H / Hkv;
    for (int64_t i = rank; i < num_rows() * (H + Hkv); i += size) {
      const int64_t t = i / (H + Hkv), head = i % (H + Hkv), b = t / N, n = t % N;
      const float *rotary = layer.rotary + (round.context_lens[b] + n) * 2 * D;
      if (head < H) {
        const int64_t place = ((b * Hkv + head / group) * N + n) * group + head % group;
        float *q = round.q + (t * H + head) * D;
        rms_norm(q, layer.q_norm, model.eps, D, q);
        rotate_signed(q, rotary, D, round.queries + place * D);
      } else {
        const int64_t kv_head = head - H, at = (round.slots[t] * Hkv + kv_head) * D;
        float *k = round.k + (t * Hkv + kv_head) * D;
        rms_norm(k, layer.k_norm, model.eps, D, k);
        rotate_signed(k, rotary, D, layer.keys + at);
        __builtin_memcpy(layer.values + at, round.v + (t * Hkv + kv_head) * D, D * sizeof(float));
      }
    }
  }

  // Tasks are some queries of one block and one KV head; threads take them in turn.
  void attend_all(const DraftLayer<W> &layer) const {
    const int64_t Hkv = model.num_kv_heads, pairs = round.num_sequences * Hkv;
    const int64_t count = model.num_slots * (model.num_heads / Hkv);
    int64_t tile = count < HEAD_QUERIES ? count : HEAD_QUERIES;
    if (pairs < 4 * size && count > 6) tile = (tile / 2 + 5) / 6 * 6;  // two tasks a head at least
    int64_t turn = 0;
    for (int64_t pair = 0; pair < pairs; pair++)
      for (int64_t at = 0; at < count; at += tile)
        if (turn++ % size == rank)
          attend_queries(layer, pair, at, at + tile < count ? tile : count - at);
  }

  void attend_queries(const DraftLayer<W> &layer, int64_t pair, int64_t at, int64_t count) const {
    const int64_t Hkv = model.num_kv_heads, D = model.head_dim, N = model.num_slots;
    const int64_t group = model.num_heads / Hkv, b = pair / Hkv, head = pair % Hkv;
    float out[HEAD_QUERIES * MAX_HEAD_DIM];
    AttentionTask task;
    task.query = round.queries + (pair * N * group + at) * D;
    task.query_stride = count * D;
    task.num_rows = 1;
    task.group = count;
    task.keys = layer.keys + head * D;
    task.values = layer.values + head * D;
    task.slot_stride = Hkv * D;
    task.pages = round.page_tables[b];
    task.page_size = round.page_size;
    task.first_position = round.context_lens[b] + N - 1;
    task.window = 0;
    task.scale = 1.0f / sqrtf(D);
    task.out = out;
    task.out_stride = count * D;
    attend(task, D);
    for (int64_t i = 0; i < count; i++) {
      const int64_t t = b * N + (at + i) / group, query_head = head * group + (at + i) % group;
      __builtin_memcpy(round.attended + (t * model.num_heads + query_head) * D, out + i * D,
                       D * sizeof(float));
    }
  }

  void feed_forward(const DraftLayer<W> &layer) const {
    const int64_t E = model.hidden, I = model.inner;
    float *gate = round.inner, *up = round.inner + num_rows() * I;
    linear(round.h, E, layer.gate, gate, I, Into::set, part(layer.up, I, E));
    linear(round.h, E, layer.up, up, I, Into::set, part(layer.down, E, I));
    int64_t begin, end;
    share(I, rank, size, &begin, &end);
    for (int64_t t = 0; t < num_rows(); t++)
      silu_times(gate + t * I + begin, up + t * I + begin, end - begin);
  }

  // next: the matrix that this thread reads after the layer.
  void run_layer(const DraftLayer<W> &layer, const W *next) const {
    const int64_t E = model.hidden, I = model.inner;
    norm_rows(layer.input_norm);
#pragma omp barrier
    project(layer);
#pragma omp barrier
    rotate_and_store(layer);
#pragma omp barrier
    attend_all(layer);
#pragma omp barrier
    linear(round.attended, model.num_heads * model.head_dim, layer.o, round.x, E, Into::add,
           part(layer.gate, I, E));
#pragma omp barrier
    norm_rows(layer.post_norm);
#pragma omp barrier
    feed_forward(layer);
#pragma omp barrier
    linear(round.inner, I, layer.down, round.x, E, Into::add, next);
#pragma omp barrier
  }

  // All slots' hidden states, and those of the predicting slots once more, side by side.
  void final_norm() const {
    const int64_t E = model.hidden, N = model.num_slots, first = model.first_slot;
    for (int64_t t = rank; t < num_rows(); t += size) {
      const int64_t b = t / N, n = t % N;
      float *hidden = round.hidden + t * E;
      rms_norm(round.x + t * E, model.final_norm, model.eps, E, hidden);
      if (n >= first)
        __builtin_memcpy(round.h + (b * (N - first) + n - first) * E, hidden, E * sizeof(float));
    }
  }

  // Compute this thread's columns of the base logits; the chain divides them in the same way.
  void head() const {
    const int64_t E = model.hidden, V = model.chain.num_outputs;
    int64_t begin, end;
    share_stretches(V, rank, size, &begin, &end);
    product(begin, end, round.num_sequences * (model.num_slots - model.first_slot), round.h,
            model.lm_head, E, round.chain.logits, V, Into::set, nullptr);
  }

  // The matrix that is read after layer i: the next layer's queries, or the head.
  const W *after(int64_t i) const {
    const int64_t E = model.hidden;
    if (i + 1 < model.num_layers)
      return part(model.layers[i + 1].q, model.num_heads * model.head_dim, E);
    int64_t begin, end;
    share_stretches(model.chain.num_outputs, rank, size, &begin, &end);
    return model.lm_head.rows + begin * E;
  }

  void run() const {
    embed();
#pragma omp barrier
    for (int64_t i = 0; i < model.num_layers; i++) run_layer(model.layers[i], after(i));
    final_norm();
#pragma omp barrier
    head();
    if (round.chain.draft_ids)
      ChainWorker<W>{model.chain,       round.chain,         round.h,
                     round.anchor_ids, round.num_sequences, rank, size}
          .run();
  }
};

template <class T>
static inline bool all_below(const T *numbers, int64_t count, int64_t limit) {
  for (int64_t i = 0; i < count; i++)
    if (numbers[i] < 0 || numbers[i] >= limit) return false;
  return true;
}

// Whether every page of a sequence's context and block lies in the pool.
template <class W>
static inline bool has_valid_pages(const Draft<W> &model, const Round &round, int64_t b) {
  const int64_t size = round.page_size, length = round.context_lens[b] + model.num_slots;
  return all_below(round.page_tables[b], (length + size - 1) / size, model.num_pool_slots / size);
}

// Whether every id, slot, page and position is in range; the kernel reads and writes unchecked.
template <class W>
static inline bool is_within(const Draft<W> &model, const Round &round) {
  const int64_t B = round.num_sequences, N = model.num_slots;
  if (!all_below(round.context_lens, B, model.num_positions - N + 1)) return false;
  for (int64_t b = 0; b < B; b++)
    if (!has_valid_pages(model, round, b)) return false;
  return all_below(round.anchor_ids, B, model.num_tokens) &&
         all_below(round.slots, B * N, model.num_pool_slots);
}
