// A whole decoder pass in one call: no Python between layers, no allocation, one parallel region.
// Threads share the columns of every product, so that each weight is read once by one of them; they
// meet at a barrier where one needs what another wrote.
//
// The architecture is the one that Llama, Mistral, Qwen2 and Qwen3 have in common:
//
//   x += o_proj(attention(rope(norm?(q_proj(h))), rope(norm?(k_proj(h))), v_proj(h)))   h = norm(x)
//   x += down_proj(silu(gate_proj(h)) * up_proj(h))                                     h = norm(x)
//
// Matrices have the precision W, keys and values the precision KV; everything else is float32. Where
// both are bfloat16 and the CPU multiplies pairs of it, so are the rows that go into a product.
#pragma once

#include <omp.h>

#include "attention.h"
#include "rounded.h"

#define FEW_ROWS 8  // each thread norms up to so many rows for itself: cheaper than to meet

// The structs are mirrored field by field in structs.py; every member has 8 bytes.
template <class W>
struct Matrix {
  const W *rows;       // [N, K]
  const float *scale;  // [N]: what the numbers of a row are multiples of; null: of 1
};

template <class W, class KV>
struct Layer {
  const float *input_norm;
  Matrix<W> q;
  const float *q_bias;
  Matrix<W> k;
  const float *k_bias;
  Matrix<W> v;
  const float *v_bias, *q_norm, *k_norm;
  Matrix<W> o;
  const float *o_bias, *post_norm;
  Matrix<W> gate, up, down;
  KV *keys, *values;  // this layer's pool, [S, Hkv, D]
  int64_t window;    // 0: none
};

template <class W, class KV>
struct Decoder {
  int64_t num_layers, hidden, num_heads, num_kv_heads, head_dim, inner, vocab, num_taps;
  double eps, scale;
  const Layer<W, KV> *layers;
  const float *final_norm;
  Matrix<W> lm_head;
  const int64_t *tap_layers;  // -1: the embedding
};

struct Pass {
  int64_t num_rows, num_sequences, num_logit_rows, num_threads, num_states;
  float *x;                              // [T, E]: embeddings in, last layer's output out
  const float *cosine, *sine;            // [T, D]
  const int64_t *slots;                  // [T]
  const int64_t *row_starts;             // [B + 1]
  const int64_t *kv_lens;                // [B]
  const int64_t *kv_slots, *kv_starts;   // all sequences' slots; where each begins [B]
  const int64_t *logit_rows;             // [R]
  float *h, *q, *k, *v, *attended;       // scratch; h is [T, E], for each thread if T is small
  float *inner;                          // scratch [2, T, I]
  RoundingRoom rounded;                  // scratch
  float *states;                         // scratch: room for num_states states of queries
  int64_t *turn;                         // scratch [1]
  float *taps, *logits;                  // [T, num_taps * E], [R, V]
};

template <class W, class KV>
struct Worker {
  const Decoder<W, KV> &model;
  const Pass &pass;
  int rank, size;

  // Where this thread's part of a matrix [N, K] begins: what it will read next.
  const W *part(const Matrix<W> &w, int64_t N, int64_t K) const {
    int64_t begin, end;
    share(N, rank, size, &begin, &end);
    return w.rows + begin * K;
  }

  // y = x w^T, or y += x w^T, for this thread's columns of all rows.
  void linear(const float *x, int64_t K, const Matrix<W> &w, const float *bias, float *y, int64_t N,
              int64_t rows, Into into, const W *next) const {
    int64_t begin, end;
    share(N, rank, size, &begin, &end);
    if constexpr (multiplies_pairs<W> && std::is_same_v<W, KV>)
      linear_rounded(begin, end, rows, x, pass.rounded.of(rank), w.rows, K, {nullptr, bias}, y, N,
                     into, next);
    else
      linear_columns(begin, end, rows, x, K, w.rows, K, {w.scale, bias}, y, N, into, next);
  }

  // The normed rows of x.
  const float *norm_rows(const float *weight) const {
    const int64_t E = model.hidden, T = pass.num_rows;
    const bool alone = T <= FEW_ROWS;
    float *h = alone ? pass.h + rank * T * E : pass.h;
    for (int64_t t = alone ? 0 : rank; t < T; t += alone ? 1 : size)
      rms_norm(pass.x + t * E, weight, model.eps, E, h + t * E);
    if (!alone) {
#pragma omp barrier
    }
    return h;
  }

  void project(const Layer<W, KV> &layer, const float *h) const {
    const int64_t E = model.hidden, T = pass.num_rows;
    const int64_t heads = model.num_heads * model.head_dim;
    const int64_t kv_heads = model.num_kv_heads * model.head_dim;
    linear(h, E, layer.q, layer.q_bias, pass.q, heads, T, Into::set, part(layer.k, kv_heads, E));
    linear(h, E, layer.k, layer.k_bias, pass.k, kv_heads, T, Into::set, part(layer.v, kv_heads, E));
    linear(h, E, layer.v, layer.v_bias, pass.v, kv_heads, T, Into::set, part(layer.o, E, heads));
  }

  // Norm and rotate queries in place; keys and values go to their slots in the pool.
  void rotate_and_store(const Layer<W, KV> &layer) const {
    const int64_t H = model.num_heads, Hkv = model.num_kv_heads, D = model.head_dim;
    if (rank == 0) *pass.turn = 0;
    for (int64_t i = rank; i < pass.num_rows * (H + Hkv); i += size) {
      const int64_t t = i / (H + Hkv), head = i % (H + Hkv);
      const float *cosine = pass.cosine + t * D, *sine = pass.sine + t * D;
      if (head < H) {
        float *q = pass.q + (t * H + head) * D;
        if (layer.q_norm) rms_norm(q, layer.q_norm, model.eps, D, q);
        rotate(q, cosine, sine, D, q);
      } else {
        const int64_t kv_head = head - H, at = (pass.slots[t] * Hkv + kv_head) * D;
        float *k = pass.k + (t * Hkv + kv_head) * D;
        if (layer.k_norm) rms_norm(k, layer.k_norm, model.eps, D, k);
        rotate(k, cosine, sine, D, k);
        store_as(layer.keys + at, k, D);
        store_as(layer.values + at, pass.v + (t * Hkv + kv_head) * D, D);
      }
    }
  }

  int64_t num_blocks(int64_t b) const { return (pass.kv_lens[b] + KEY_BLOCK - 1) / KEY_BLOCK; }

  int64_t rows_per_task() const { return MAX_QUERIES / (model.num_heads / model.num_kv_heads); }

  // States of one query: of as many blocks as the longest sequence has. 0: every task attends to
  // all blocks, for there are tasks enough, or no room for states.
  int64_t states_per_query() const {
    int64_t tasks = 0, most = 1;
    for (int64_t b = 0; b < pass.num_sequences; b++) {
      const int64_t rows = pass.row_starts[b + 1] - pass.row_starts[b];
      tasks += (rows + rows_per_task() - 1) / rows_per_task() * model.num_kv_heads;
      most = num_blocks(b) > most ? num_blocks(b) : most;
    }
    const bool has_room = pass.num_rows * model.num_heads * most <= pass.num_states;
    return size > 1 && tasks < 4 * size && most > 1 && has_room ? most : 0;
  }

  // Whoever is free takes the next task: some rows of one sequence, one KV head, and all blocks of
  // keys or one.
  void attend_all(const Layer<W, KV> &layer, int64_t states) const {
    int64_t task = 0, mine = take();
    for (int64_t b = 0; b < pass.num_sequences; b++) {
      const int64_t begin = pass.row_starts[b], end = pass.row_starts[b + 1];
      for (int64_t head = 0; head < model.num_kv_heads; head++)
        for (int64_t at = begin; at < end; at += rows_per_task())
          for (int64_t block = 0; block < (states ? num_blocks(b) : 1); block++)
            if (task++ == mine) {
              const int64_t rows = end - at < rows_per_task() ? end - at : rows_per_task();
              attend_rows(layer, b, head, at, rows, states ? block : -1, states);
              mine = take();
            }
    }
  }

  int64_t take() const { return __atomic_fetch_add(pass.turn, 1, __ATOMIC_RELAXED); }

  void attend_rows(const Layer<W, KV> &layer, int64_t b, int64_t kv_head, int64_t row, int64_t rows,
                   int64_t block, int64_t states) const {
    const int64_t H = model.num_heads, Hkv = model.num_kv_heads, D = model.head_dim;
    const int64_t head = kv_head * (H / Hkv);
    PagedAttention<KV> task;
    task.query = pass.q + (row * H + head) * D;
    task.query_stride = H * D;
    task.num_rows = rows;
    task.group = H / Hkv;
    task.keys = layer.keys + kv_head * D;
    task.values = layer.values + kv_head * D;
    task.slot_stride = Hkv * D;
    task.slots = pass.kv_slots + pass.kv_starts[b];
    task.first_position = pass.kv_lens[b] - (pass.row_starts[b + 1] - row);
    task.window = layer.window;
    task.scale = model.scale;
    task.out = pass.attended + (row * H + head) * D;
    task.out_stride = H * D;
    task.block = block;
    task.state_head_stride = states * state_size(D);
    task.state_row_stride = H * task.state_head_stride;
    task.state = pass.states + row * task.state_row_stride + head * task.state_head_stride +
                 block * state_size(D);
    attend(&task, D);
  }

  void join_all(int64_t states) const {
    const int64_t H = model.num_heads, D = model.head_dim;
    for (int64_t b = 0; b < pass.num_sequences; b++)
      for (int64_t i = pass.row_starts[b] * H + rank; i < pass.row_starts[b + 1] * H; i += size)
        join_states(pass.states + i * states * state_size(D), num_blocks(b), D,
                    pass.attended + i * D);
  }

  void feed_forward(const Layer<W, KV> &layer, const float *h) const {
    const int64_t E = model.hidden, I = model.inner, T = pass.num_rows;
    float *gate = pass.inner, *up = pass.inner + T * I;
    linear(h, E, layer.gate, nullptr, gate, I, T, Into::set, part(layer.up, I, E));
    linear(h, E, layer.up, nullptr, up, I, T, Into::set, part(layer.down, E, I));
    int64_t begin, end;
    share(I, rank, size, &begin, &end);
    for (int64_t t = 0; t < T; t++)
      silu_times(gate + t * I + begin, up + t * I + begin, end - begin);
  }

  void keep_taps(int64_t layer) const {
    const int64_t E = model.hidden, width = model.num_taps * E;
    for (int64_t n = 0; n < model.num_taps; n++)
      if (model.tap_layers[n] == layer)
        for (int64_t t = rank; t < pass.num_rows; t += size)
          store_as(pass.taps + t * width + n * E, pass.x + t * E, E);
  }

  void logits() const {
    const int64_t E = model.hidden;
    for (int64_t r = rank; r < pass.num_logit_rows; r += size)
      rms_norm(pass.x + pass.logit_rows[r] * E, model.final_norm, model.eps, E, pass.h + r * E);
#pragma omp barrier
    linear(pass.h, E, model.lm_head, nullptr, pass.logits, model.vocab, pass.num_logit_rows,
           Into::set, nullptr);
  }

  // What is read after layer i: the next one's queries, or the head.
  const W *after(int64_t i) const {
    const int64_t E = model.hidden;
    return i + 1 < model.num_layers
               ? part(model.layers[i + 1].q, model.num_heads * model.head_dim, E)
               : part(model.lm_head, model.vocab, E);
  }

  void run() const {
    const int64_t E = model.hidden, I = model.inner, T = pass.num_rows;
    const int64_t heads = model.num_heads * model.head_dim, states = states_per_query();
    keep_taps(-1);
    for (int64_t i = 0; i < model.num_layers; i++) {
      const Layer<W, KV> &layer = model.layers[i];
      project(layer, norm_rows(layer.input_norm));
#pragma omp barrier
      rotate_and_store(layer);
#pragma omp barrier
      attend_all(layer, states);
#pragma omp barrier
      if (states) {
        join_all(states);
#pragma omp barrier
      }
      linear(pass.attended, heads, layer.o, layer.o_bias, pass.x, E, T, Into::add,
             part(layer.gate, I, E));
#pragma omp barrier
      feed_forward(layer, norm_rows(layer.post_norm));
#pragma omp barrier
      linear(pass.inner, I, layer.down, nullptr, pass.x, E, T, Into::add, after(i));
#pragma omp barrier
      keep_taps(i);
    }
    logits();
  }
};
