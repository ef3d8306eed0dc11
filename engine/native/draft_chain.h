// The Markov chain of a block, greedily: each slot's token is the argmax of its base logits plus
// the bias W2 W1[token before]. Biased logits exist for a few columns at a time only. Threads share
// the vocabulary, and meet once a slot, to compare what each has found.
#pragma once

#include "math.h"

#define CHAIN_COLUMNS 64       // columns whose bias is held at a time
#define MAX_CHAIN_SEQUENCES 64

struct Chain {
  int64_t num_outputs, block_size, rank;
  const float *w1, *w2;       // [V, r], [Vd, r]; null where rank is 0
  const int64_t *target_ids;  // [Vd]; null: draft ids are target ids
  const float *confidence, *confidence_bias;  // [E] or [E + r], [1]; null: no such head
  int64_t hidden, confidence_rank;            // E; r if the confidence head reads W1, else 0
};

struct Best {
  float value;
  int64_t id;
};

struct ChainPass {
  float *logits;       // base logits, [B, K, Vd]
  int64_t *draft_ids;  // [B, K], in target ids; null: stop at the base logits
  float *confidence;   // [B, K]
  float *features;     // scratch of each thread, [threads, B, r]
  Best *found;         // scratch, [2, threads, B]
};

// The greatest value of a row so far, lane by lane; the first of equal ones.
struct RowBest {
  vec value;
  ivec id;

  // scores = base + bias of columns at .. at + n - 1, n <= CHAIN_COLUMNS; bias may be null.
  inline void look_at(const float *base, const float *bias, int64_t at, int64_t n) {
    ivec ids;
    for (int i = 0; i < VL; i++) ids[i] = at + i;
    int64_t i = 0;
    for (; i + VL <= n; i += VL, ids += VL)
      take(bias ? load(base + i) + load(bias + i) : load(base + i), ids);
    if (i == n) return;
    vec rest = splat(-INFINITY);
    for (int lane = 0; i < n; i++, lane++) rest[lane] = bias ? base[i] + bias[i] : base[i];
    take(rest, ids);
  }

  inline void take(vec scores, ivec ids) {
    const ivec better = scores > value;
    value = better ? scores : value;
    id = better ? ids : id;
  }

  inline Best result() const {
    Best best = {value[0], id[0]};
    for (int i = 1; i < VL; i++)
      if (value[i] > best.value || (value[i] == best.value && id[i] < best.id))
        best = {value[i], id[i]};
    return best;
  }
};

struct ChainWorker {
  const Chain &chain;
  const ChainPass &pass;
  const float *hidden;  // [B, K, E]
  const int64_t *anchor_ids;
  int64_t num_sequences;
  int rank, size;

  void run() const {
    int64_t previous[MAX_CHAIN_SEQUENCES];
    for (int64_t b = 0; b < num_sequences; b++) previous[b] = anchor_ids[b];
    for (int64_t k = 0; k < chain.block_size; k++) {
      Best *found = pass.found + (k % 2) * size * num_sequences;
      if (chain.confidence)
        for (int64_t b = rank; b < num_sequences; b += size) rate(b, k, previous[b]);
      search(k, previous, found + rank * num_sequences);
#pragma omp barrier
      for (int64_t b = 0; b < num_sequences; b++) {
        Best best = found[b];
        for (int other = 1; other < size; other++)
          if (found[other * num_sequences + b].value > best.value)
            best = found[other * num_sequences + b];
        previous[b] = chain.target_ids ? chain.target_ids[best.id] : best.id;
        if (rank == 0) pass.draft_ids[b * chain.block_size + k] = previous[b];
      }
    }
  }

  // The best of this thread's columns for slot k of every sequence.
  void search(int64_t k, const int64_t *previous, Best *best) const {
    const int64_t V = chain.num_outputs, r = chain.rank;
    RowBest rows[MAX_CHAIN_SEQUENCES];
    for (int64_t b = 0; b < num_sequences; b++) rows[b] = {splat(-INFINITY), (ivec){}};
    const float *features = r > 0 ? gather(previous) : nullptr;
    float biases[MAX_CHAIN_SEQUENCES * CHAIN_COLUMNS];
    int64_t begin, end;
    share(V, rank, size, &begin, &end);
    for (int64_t at = begin; at < end; at += CHAIN_COLUMNS) {
      const int64_t n = at + CHAIN_COLUMNS < end ? CHAIN_COLUMNS : end - at;
      if (features)
        linear_columns(0, n, num_sequences, features, r, chain.w2 + at * r, r, nullptr, biases,
                       CHAIN_COLUMNS);
      for (int64_t b = 0; b < num_sequences; b++)
        rows[b].look_at(pass.logits + (b * chain.block_size + k) * V + at,
                        features ? biases + b * CHAIN_COLUMNS : nullptr, at, n);
    }
    for (int64_t b = 0; b < num_sequences; b++) best[b] = rows[b].result();
  }

  // The rows of W1 of the tokens before, side by side: this thread's own copy.
  const float *gather(const int64_t *previous) const {
    const int64_t r = chain.rank;
    float *features = pass.features + rank * num_sequences * r;
    for (int64_t b = 0; b < num_sequences; b++)
      __builtin_memcpy(features + b * r, chain.w1 + previous[b] * r, r * sizeof(float));
    return features;
  }

  void rate(int64_t b, int64_t k, int64_t previous) const {
    const int64_t E = chain.hidden, r = chain.confidence_rank, at = b * chain.block_size + k;
    float sum = *chain.confidence_bias + dot(hidden + at * E, chain.confidence, E);
    if (r > 0) sum += dot(chain.w1 + previous * r, chain.confidence + E, r);
    pass.confidence[at] = sum;
  }

  static float dot(const float *x, const float *w, int64_t n) {
    vec sums = {};
    int64_t i = 0;
    for (; i + VL <= n; i += VL) sums += load(x + i) * load(w + i);
    float sum = sum_lanes(sums);
    for (; i < n; i++) sum += x[i] * w[i];
    return sum;
  }
};
