// Runs a whole decoder pass in one call: no Python between layers, no allocation, one parallel
// region. Threads divide the columns of every product, so that one thread reads each weight once. A
// barrier separates a write from another thread's read.
//
// A layer computes, where a norm or a rotation marked ? may be missing:
//
//   x += norm?(o_proj(attention(rope?(norm?(q_proj(h))), rope?(norm?(k_proj(h))), v_proj(h))))
//   x += norm?(down_proj(activation(gate_proj(h)) * up_proj(h)))               h = norm?(x), each
//
// The scales of matrices and norms include the multipliers of embedding, branches and logits.
// Matrices have the precision W, keys and values the precision KV; everything else is float32.
// Where both are bfloat16 and the CPU multiplies pairs of it, rows are rounded to bfloat16 before
// products.
#pragma once

#include <omp.h>

#include "attention_queue.h"

#define FEW_ROWS 8  // every thread norms up to so many rows itself: cheaper than a barrier

template <class W, class KV>
struct Worker {
  const Decoder<W, KV> &model;
  const Pass &pass;
  int rank, size;

  // The start of this thread's part of a matrix [N, K], which it reads next.
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
      linear_rounded(begin, end, rows, x, pass.rounded.of(rank), w.rows, K, {w.scale, bias}, y, N,
                     into, next);
    else
      linear_columns(begin, end, rows, x, K, w.rows, K, {w.scale, bias}, y, N, into, next);
  }

  // The normed rows of x; x without a norm.
  const float *norm_rows(const float *weight) const {
    if (!weight) return pass.x;
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

  // Norm queries and keys by rows, of all heads together.
  void norm_heads_together(const Layer<W, KV> &layer) const {
    const int64_t heads = model.num_heads * model.head_dim;
    const int64_t kv_heads = model.num_kv_heads * model.head_dim;
    for (int64_t t = rank; t < pass.num_rows; t += size) {
      float *q = pass.q + t * heads, *k = pass.k + t * kv_heads;
      rms_norm(q, layer.q_norm, model.eps, heads, q);
      rms_norm(k, layer.k_norm, model.eps, kv_heads, k);
    }
#pragma omp barrier
  }

  void rotate_head(const Layer<W, KV> &layer, int64_t t, float *head) const {
    if (layer.rotation < 0) return;
    const int64_t n = model.rotary_dim, at = (layer.rotation * pass.num_rows + t) * n;
    rotate(head, pass.cosine + at, pass.sine + at, n, head);
  }

  // Norm and rotate queries in place; keys and values go to their slots in the pool.
  void rotate_and_store(const Layer<W, KV> &layer) const {
    const int64_t H = model.num_heads, Hkv = model.num_kv_heads, D = model.head_dim;
    const bool norms_heads = !layer.norms_rows;
    if (rank == 0) *pass.turn = 0;
    for (int64_t i = rank; i < pass.num_rows * (H + Hkv); i += size) {
      const int64_t t = i / (H + Hkv), head = i % (H + Hkv);
      if (head < H) {
        float *q = pass.q + (t * H + head) * D;
        if (norms_heads && layer.q_norm) rms_norm(q, layer.q_norm, model.eps, D, q);
        rotate_head(layer, t, q);
      } else {
        const int64_t kv_head = head - H, at = (pass.slots[t] * Hkv + kv_head) * D;
        float *k = pass.k + (t * Hkv + kv_head) * D;
        if (norms_heads && layer.k_norm) rms_norm(k, layer.k_norm, model.eps, D, k);
        rotate_head(layer, t, k);
        store_as(layer.keys + at, k, D);
        store_as(layer.values + at, pass.v + (t * Hkv + kv_head) * D, D);
      }
    }
  }

  void attend_all(const Layer<W, KV> &layer, Split split) const {
    AttentionQueue<W, KV> queue{model, pass, layer, split, size};
    KeysAhead<KV> ahead;
    PagedAttention<KV> tasks[2];  // this one and the next
    bool has_task = queue.take(tasks[0]);
    for (int n = 0; has_task; n = 1 - n)
      attend(tasks[n], model.head_dim, ahead, [&]() -> const PagedAttention<KV> * {
        has_task = queue.take(tasks[1 - n]);
        return has_task ? &tasks[1 - n] : nullptr;
      });
  }

  void join_all(int64_t states) const {
    const int64_t H = model.num_heads, D = model.head_dim;
    for (int64_t b = 0; b < pass.num_sequences; b++)
      for (int64_t i = pass.row_starts[b] * H + rank; i < pass.row_starts[b + 1] * H; i += size)
        join_states(pass.states + i * states * state_size(D), num_key_blocks(pass, b), D,
                    pass.attended + i * D);
  }

  void feed_forward(const Layer<W, KV> &layer, const float *h) const {
    const int64_t E = model.hidden, I = model.inner, T = pass.num_rows;
    float *gate = pass.inner, *up = pass.inner + T * I;
    linear(h, E, layer.gate, nullptr, gate, I, T, Into::set, part(layer.up, I, E));
    linear(h, E, layer.up, nullptr, up, I, T, Into::set, part(layer.down, E, I));
    int64_t begin, end;
    share(I, rank, size, &begin, &end);
    const auto activate = model.gate == Gate::gelu ? gelu_times : silu_times;
    for (int64_t t = 0; t < T; t++)
      activate(gate + t * I + begin, up + t * I + begin, end - begin);
  }

  // x += y w^T + bias, or x += norm(y w^T + bias); then x is complete for every thread.
  void add_branch(const float *y, int64_t K, const Matrix<W> &w, const float *bias,
                  const float *norm, const W *next) const {
    const int64_t E = model.hidden, T = pass.num_rows;
    linear(y, K, w, bias, norm ? pass.branch : pass.x, E, T, norm ? Into::set : Into::add, next);
#pragma omp barrier
    if (!norm) return;
    for (int64_t t = rank; t < T; t += size) {
      float *x = pass.x + t * E, *branch = pass.branch + t * E;
      rms_norm(branch, norm, model.eps, E, branch);
      for (int64_t i = 0; i < E; i++) x[i] += branch[i];
    }
#pragma omp barrier
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

  // The matrix that is read after layer i: the next layer's queries, or the head.
  const W *after(int64_t i) const {
    const int64_t E = model.hidden;
    return i + 1 < model.num_layers
               ? part(model.layers[i + 1].q, model.num_heads * model.head_dim, E)
               : part(model.lm_head, model.vocab, E);
  }

  void run() const {
    const int64_t E = model.hidden, I = model.inner, heads = model.num_heads * model.head_dim;
    const Split split = split_attention(model, pass, size);
    keep_taps(-1);
    for (int64_t i = 0; i < model.num_layers; i++) {
      const Layer<W, KV> &layer = model.layers[i];
      project(layer, norm_rows(layer.input_norm));
#pragma omp barrier
      if (layer.norms_rows) norm_heads_together(layer);
      rotate_and_store(layer);
#pragma omp barrier
      attend_all(layer, split);
#pragma omp barrier
      if (split.states) {
        join_all(split.states);
#pragma omp barrier
      }
      add_branch(pass.attended, heads, layer.o, layer.o_bias, layer.attended_norm,
                 part(layer.gate, I, E));
      feed_forward(layer, norm_rows(layer.inner_norm));
#pragma omp barrier
      add_branch(pass.inner, I, layer.down, nullptr, layer.fed_norm, after(i));
      keep_taps(i);
    }
    logits();
  }
};
