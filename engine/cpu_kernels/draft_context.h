// Computes context keys and values of all layers from the target's taps, and stores them in the
// pool:
//
//   context = norm(taps fc^T)                                        [N, E]
//   stacked = context w^T     w = [K of layer 0; V of layer 0; K of layer 1; ...]   [N, L, 2, Hkv, D]
//   keys[l, slot] = rope(norm(stacked[:, l, 0])),   values[l, slot] = stacked[:, l, 1]
#pragma once

#include "draft_round.h"

// Matrices have the precision W; everything else is float32.
template <class W>
struct ContextWrite {
  int64_t num_rows, num_threads, aux_size, hidden, num_layers, num_kv_heads, head_dim;
  int64_t num_slots, num_positions;  // of the pool; of the rotary table
  double norm_eps, key_eps;
  const float *taps;                // [N, A]; null: stacked is given
  Matrix<W> fc;                     // [E, A]
  const float *norm;                // [E]
  Matrix<W> weight;                 // [L * 2 * Hkv * D, E]
  const float *bias, *key_norm;     // [L * 2 * Hkv * D], or null; [L, D]
  const float *rotary;              // [P, 2, D]
  const int64_t *positions, *slots; // [N]
  float *context, *stacked;         // [N, E], [N, L * 2 * Hkv * D]
  float *keys, *values;             // [L, S, Hkv, D]
};

template <class W>
struct ContextWorker {
  const ContextWrite<W> &call;
  int rank, size;

  void project() const {
    const int64_t E = call.hidden, M = 2 * call.num_layers * call.num_kv_heads * call.head_dim;
    int64_t begin, end;
    share(E, rank, size, &begin, &end);
    linear_columns(begin, end, call.num_rows, call.taps, call.aux_size, call.fc.rows,
                   call.aux_size, {call.fc.scale, nullptr}, call.context, E);
#pragma omp barrier
    for (int64_t n = rank; n < call.num_rows; n += size)
      rms_norm(call.context + n * E, call.norm, call.norm_eps, E, call.context + n * E);
#pragma omp barrier
    share(M, rank, size, &begin, &end);
    linear_columns(begin, end, call.num_rows, call.context, E, call.weight.rows, E,
                   {call.weight.scale, call.bias}, call.stacked, M);
#pragma omp barrier
  }

  void store_all() const {
    const int64_t L = call.num_layers, width = call.num_kv_heads * call.head_dim;
    for (int64_t i = rank; i < call.num_rows * L; i += size) {
      const int64_t n = i / L, layer = i % L;
      const int64_t at = (layer * call.num_slots + call.slots[n]) * width;
      store_token(n, layer, call.keys + at, call.values + at);
    }
  }

  void store_token(int64_t n, int64_t layer, float *keys, float *values) const {
    const int64_t D = call.head_dim, width = call.num_kv_heads * D;
    float *stacked = call.stacked + (n * call.num_layers + layer) * 2 * width;
    const float *norm = call.key_norm + layer * D;
    for (int64_t at = 0; at < width; at += D) {
      rms_norm(stacked + at, norm, call.key_eps, D, stacked + at);
      rotate_signed(stacked + at, call.rotary + call.positions[n] * 2 * D, D, keys + at);
    }
    __builtin_memcpy(values, stacked + width, width * sizeof(float));
  }

  void run() const {
    if (call.taps) project();
    store_all();
  }
};

// Whether every slot and position is in range; the kernel reads and writes unchecked.
template <class W>
static inline bool is_within(const ContextWrite<W> &call) {
  for (int64_t n = 0; n < call.num_rows; n++) {
    if (call.slots[n] < 0 || call.slots[n] >= call.num_slots) return false;
    if (call.positions[n] < 0 || call.positions[n] >= call.num_positions) return false;
  }
  return true;
}
