// A whole decoder pass of a few rows in one call: no Python between layers, no allocation, one
// parallel region. Threads share the columns of every product, so that each weight is read once by
// one of them; they meet at a barrier where one needs what another wrote.
//
// The architecture is the one that Llama, Mistral, Qwen2 and Qwen3 have in common:
//
//   x += o_proj(attention(rope(norm?(q_proj(h))), rope(norm?(k_proj(h))), v_proj(h)))   h = norm(x)
//   x += down_proj(silu(gate_proj(h)) * up_proj(h))                                     h = norm(x)
#pragma once

#include <omp.h>

#include "attention.h"

// The structs are mirrored field by field in decoder.py; every member has 8 bytes.
struct Layer {
  const float *input_norm, *q, *q_bias, *k, *k_bias, *v, *v_bias, *q_norm, *k_norm;
  const float *o, *o_bias, *post_norm, *gate, *up, *down;
  float *keys, *values;  // this layer's pool, [S, Hkv, D]
  int64_t window;        // 0: none
};

struct Decoder {
  int64_t num_layers, hidden, num_heads, num_kv_heads, head_dim, inner, vocab, num_taps;
  double eps, scale;
  const Layer *layers;
  const float *final_norm, *lm_head;
  const int64_t *tap_layers;  // -1: the embedding
};

struct Pass {
  int64_t num_rows, num_sequences, num_logit_rows, num_threads;
  float *x;                                 // [T, E]: embeddings in, last layer's output out
  const float *cosine, *sine;               // [T, D]
  const int64_t *slots;                     // [T]
  const int64_t *row_starts;                // [B + 1]
  const int64_t *kv_lens;                   // [B]
  const int64_t *kv_slots, *kv_starts;      // all sequences' slots; where each begins [B]
  const int64_t *logit_rows;                // [R]
  float *h, *q, *k, *v, *attended, *inner;  // scratch; inner is [2, T, I]
  float *taps, *logits;                     // [T, num_taps * E], [R, V]
};

struct Worker {
  const Decoder &model;
  const Pass &pass;
  int rank, size;

  // y += or = x w^T for this thread's columns of all rows.
  void linear(const float *x, int64_t K, const float *w, const float *bias, float *y, int64_t N,
              int64_t rows) const {
    int64_t begin, end;
    share(N, rank, size, &begin, &end);
    linear_columns(begin, end, rows, x, K, w, K, bias, y, N);
  }

  // x += what was just written to y, in the columns that this thread wrote.
  void add_own_columns(const float *y) const {
    int64_t begin, end;
    share(model.hidden, rank, size, &begin, &end);
    for (int64_t t = 0; t < pass.num_rows; t++) {
      float *x = pass.x + t * model.hidden;
      for (int64_t n = begin; n < end; n++) x[n] += y[t * model.hidden + n];
    }
  }

  void norm_rows(const float *weight) const {
    for (int64_t t = rank; t < pass.num_rows; t += size)
      rms_norm(pass.x + t * model.hidden, weight, model.eps, model.hidden,
               pass.h + t * model.hidden);
  }

  void project(const Layer &layer) const {
    const int64_t E = model.hidden, D = model.head_dim;
    linear(pass.h, E, layer.q, layer.q_bias, pass.q, model.num_heads * D, pass.num_rows);
    linear(pass.h, E, layer.k, layer.k_bias, pass.k, model.num_kv_heads * D, pass.num_rows);
    linear(pass.h, E, layer.v, layer.v_bias, pass.v, model.num_kv_heads * D, pass.num_rows);
  }

  // Norm and rotate queries in place; keys and values go to their slots in the pool.
  void rotate_and_store(const Layer &layer) const {
    const int64_t H = model.num_heads, Hkv = model.num_kv_heads, D = model.head_dim;
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
        const float *v = pass.v + (t * Hkv + kv_head) * D;
        if (layer.k_norm) rms_norm(k, layer.k_norm, model.eps, D, k);
        rotate(k, cosine, sine, D, layer.keys + at);
        for (int64_t d = 0; d < D; d++) layer.values[at + d] = v[d];
      }
    }
  }

  // Tasks of some query rows of one sequence and one KV head, dealt round by round.
  void attend_all(const Layer &layer) const {
    const int64_t H = model.num_heads, Hkv = model.num_kv_heads;
    const int64_t group = H / Hkv;
    const int64_t most = MAX_QUERIES / group;
    int64_t turn = 0;
    for (int64_t b = 0; b < pass.num_sequences; b++) {
      const int64_t begin = pass.row_starts[b], rows = pass.row_starts[b + 1] - begin;
      int64_t tile = (rows + 1) / 2 < most ? (rows + 1) / 2 : most;  // two tasks a head at least
      if (pass.num_sequences * Hkv >= 4 * size && rows <= most) tile = rows;
      for (int64_t head = 0; head < Hkv; head++)
        for (int64_t at = 0; at < rows; at += tile)
          if (turn++ % size == rank)
            attend_rows(layer, b, head, begin, at, at + tile < rows ? tile : rows - at);
    }
  }

  void attend_rows(const Layer &layer, int64_t b, int64_t head, int64_t begin, int64_t at,
                   int64_t rows) const {
    const int64_t H = model.num_heads, Hkv = model.num_kv_heads, D = model.head_dim;
    const int64_t group = H / Hkv, in_step = pass.row_starts[b + 1] - begin;
    AttentionTask task;
    task.query = pass.q + ((begin + at) * H + head * group) * D;
    task.query_stride = H * D;
    task.num_rows = rows;
    task.group = group;
    task.keys = layer.keys + head * D;
    task.values = layer.values + head * D;
    task.slot_stride = Hkv * D;
    task.slots = pass.kv_slots + pass.kv_starts[b];
    task.first_position = pass.kv_lens[b] - in_step + at;
    task.window = layer.window;
    task.scale = model.scale;
    task.out = pass.attended + ((begin + at) * H + head * group) * D;
    task.out_stride = H * D;
    attend(&task, D);
  }

  void feed_forward(const Layer &layer) const {
    const int64_t I = model.inner;
    float *gate = pass.inner, *up = pass.inner + pass.num_rows * I;
    linear(pass.h, model.hidden, layer.gate, nullptr, gate, I, pass.num_rows);
    linear(pass.h, model.hidden, layer.up, nullptr, up, I, pass.num_rows);
    int64_t begin, end;
    share(I, rank, size, &begin, &end);
    for (int64_t t = 0; t < pass.num_rows; t++)
      silu_times(gate + t * I + begin, up + t * I + begin, end - begin);
  }

  void keep_taps(int64_t layer) const {
    const int64_t E = model.hidden, width = model.num_taps * E;
    for (int64_t n = 0; n < model.num_taps; n++)
      if (model.tap_layers[n] == layer)
        for (int64_t t = rank; t < pass.num_rows; t += size)
          for (int64_t e = 0; e < E; e++)
            pass.taps[t * width + n * E + e] = pass.x[t * E + e];
  }

  void logits() const {
    const int64_t E = model.hidden;
    for (int64_t r = rank; r < pass.num_logit_rows; r += size)
      rms_norm(pass.x + pass.logit_rows[r] * E, model.final_norm, model.eps, E, pass.h + r * E);
#pragma omp barrier
    linear(pass.h, E, model.lm_head, nullptr, pass.logits, model.vocab, pass.num_logit_rows);
  }

  void run() const {
    keep_taps(-1);
    for (int64_t i = 0; i < model.num_layers; i++) {
      const Layer &layer = model.layers[i];
      norm_rows(layer.input_norm);
#pragma omp barrier
      project(layer);
#pragma omp barrier
      rotate_and_store(layer);
#pragma omp barrier
      attend_all(layer);
#pragma omp barrier
      const int64_t attended = model.num_heads * model.head_dim;
      linear(pass.attended, attended, layer.o, layer.o_bias, pass.h, model.hidden, pass.num_rows);
      add_own_columns(pass.h);
#pragma omp barrier
      norm_rows(layer.post_norm);
#pragma omp barrier
      feed_forward(layer);
#pragma omp barrier
      linear(pass.inner, model.inner, layer.down, nullptr, pass.h, model.hidden, pass.num_rows);
      add_own_columns(pass.h);
#pragma omp barrier
      keep_taps(i);
    }
    logits();
  }
};
