// Defines the arguments of a decoder pass: the model, and the addresses of rows, keys and results.
#pragma once

#include "rounded.h"

// The structs are mirrored field by field in structs.py; every member has 8 bytes.
template <class W, class KV>
struct Layer {
  const float *input_norm;  // before attention
  Matrix<W> q;
  const float *q_bias;
  Matrix<W> k;
  const float *k_bias;
  Matrix<W> v;
  const float *v_bias, *q_norm, *k_norm;
  Matrix<W> o;
  const float *o_bias, *attended_norm, *inner_norm, *fed_norm;  // after attention; around the MLP
  Matrix<W> gate, up, down;
  KV *keys, *values;   // this layer's pool, [S, Hkv, D]
  int64_t window;      // 0: none
  int64_t rotation;    // which of the rotations; negative: none
  int64_t norms_rows;  // whether q_norm and k_norm have the width of a row; else of a head
};

enum class Gate : int64_t { silu, gelu };

template <class W, class KV>
struct Decoder {
  int64_t num_layers, hidden, num_heads, num_kv_heads, head_dim, inner, vocab, num_taps;
  int64_t rotary_dim;  // numbers of a head that are rotated, from the first
  Gate gate;
  double eps, scale;
  const Layer<W, KV> *layers;
  const float *final_norm;
  Matrix<W> lm_head;
  const int64_t *tap_layers;  // -1: the embedding
};

struct Pass {
  int64_t num_rows, num_sequences, num_logit_rows, num_threads, num_states, page_size;
  float *x;                              // [T, E]: embeddings in, last layer's output out
  const float *cosine, *sine;            // [rotations, T, rotary_dim]
  const int64_t *slots;                  // [T]
  const int64_t *row_starts;             // [B + 1]
  const int64_t *kv_lens;                // [B]
  const int32_t *const *page_tables;     // [B]: the pages of each sequence's positions
  const int64_t *logit_rows;             // [R]
  float *h, *q, *k, *v, *attended;       // scratch; h is [T, E], one per thread if T is small
  float *inner, *branch;                 // scratch [2, T, I], [T, E]
  RoundingRoom rounded;                  // scratch
  float *states;                         // scratch: num_states states of queries
  int64_t *turn;                         // scratch [1]
  float *taps, *logits;                  // [T, num_taps * E], [R, V]
};
