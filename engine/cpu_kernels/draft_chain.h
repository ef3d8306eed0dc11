// Runs the Markov chain of a block greedily: each slot's token is the argmax of its base logits
// plus the bias W2 f, f = W1[token before]. Threads divide the vocabulary and compare their results
// once per slot.
//
// Most of W2 is never read. No row's bias exceeds |row| |f| (Cauchy and Schwarz). So a stretch of
// CHAIN_COLUMNS columns is skipped if its greatest base logit, plus its longest row of W2 times
// |f|, is below the best score found. The stretch with the greatest base logit comes first. The
// argmax is exact; of equal scores the first wins. `longest` was computed when the network was
// bound. Every row that is read is measured again, and a longer row shows that W2 has changed.
#pragma once

#include "math.h"

#define CHAIN_COLUMNS 64        // of a stretch
#define MAX_CHAIN_SEQUENCES 64
#define BOUND_MARGIN 1.001f     // far more than rounding can add to a bias

template <class W>
struct Chain {
  int64_t num_outputs, block_size, rank;
  const float *w1;            // [V, r]; null where rank is 0
  Matrix<W> w2;               // [Vd, r], likewise
  const float *longest;       // the greatest |row| of each stretch of W2; null where rank is 0
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
  int64_t *draft_ids;  // [B, K], in target ids; null: compute the base logits only
  float *confidence;   // [B, K]
  float *tops;         // scratch: the greatest base logit of each stretch
  Best *found;         // scratch, [2, threads, B]
  int64_t *is_stale;   // set when a row of W2 is longer than `longest`: the tokens may be wrong
};

// A thread's columns, in whole stretches.
static inline void share_stretches(int64_t columns, int rank, int size, int64_t *begin,
                                   int64_t *end) {
  const int64_t stretches = (columns + CHAIN_COLUMNS - 1) / CHAIN_COLUMNS;
  *begin = stretches * rank / size * CHAIN_COLUMNS;
  *end = stretches * (rank + 1) / size * CHAIN_COLUMNS;
  if (*end > columns) *end = columns;
}

template <class T>
static inline float dot(const T *x, const T *w, int64_t n) {
  vec sums = {};
  int64_t i = 0;
  for (; i + VL <= n; i += VL) sums += load(x + i) * load(w + i);
  float sum = sum_lanes(sums);
  for (; i < n; i++) sum += as_float(x[i]) * as_float(w[i]);
  return sum;
}

static inline float greatest(const float *x, int64_t n) {
  vec most = splat(-INFINITY);
  int64_t i = 0;
  for (; i + VL <= n; i += VL) {
    const vec value = load(x + i);
    most = value > most ? value : most;
  }
  float top = -INFINITY;
  for (int lane = 0; lane < VL; lane++) top = most[lane] > top ? most[lane] : top;
  for (; i < n; i++) top = x[i] > top ? x[i] : top;
  return top;
}

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

template <class W>
struct ChainWorker {
  const Chain<W> &chain;
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
      for (int64_t b = 0; b < num_sequences; b++)
        found[rank * num_sequences + b] = search(k, b, previous[b]);
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

  // The best of this thread's columns for slot k of sequence b.
  Best search(int64_t k, int64_t b, int64_t previous) const {
    const int64_t V = chain.num_outputs;
    const float *base = pass.logits + (b * chain.block_size + k) * V;
    const float *feature = chain.rank > 0 ? chain.w1 + previous * chain.rank : nullptr;
    const float length = feature ? sqrtf(dot(feature, feature, chain.rank)) : 0.0f;
    int64_t begin, end, first;
    share_stretches(V, rank, size, &begin, &end);
    first = begin;
    for (int64_t at = begin; at < end; at += CHAIN_COLUMNS) {
      float *top = pass.tops + at / CHAIN_COLUMNS;
      *top = greatest(base + at, columns_at(at));
      if (*top > pass.tops[first / CHAIN_COLUMNS]) first = at;
    }
    Best best = {-INFINITY, begin < end ? begin : 0};
    if (begin < end) look_at(base, feature, first, best);
    for (int64_t at = begin; at < end; at += CHAIN_COLUMNS)
      if (at != first && bound(at / CHAIN_COLUMNS, length) >= best.value)
        look_at(base, feature, at, best);
    return best;
  }

  int64_t columns_at(int64_t at) const {
    return at + CHAIN_COLUMNS < chain.num_outputs ? CHAIN_COLUMNS : chain.num_outputs - at;
  }

  // No biased logit of the stretch is greater, rounding included.
  float bound(int64_t stretch, float length) const {
    float most = pass.tops[stretch];
    if (chain.longest) most += chain.longest[stretch] * length * BOUND_MARGIN;
    return most + fabsf(most) * 1e-6f;
  }

  void look_at(const float *base, const float *feature, int64_t at, Best &best) const {
    const int64_t r = chain.rank, n = columns_at(at);
    float biases[CHAIN_COLUMNS];
    RowBest row = {splat(-INFINITY), (ivec){}};
    if (feature) {
      linear_columns(0, n, 1, feature, r, chain.w2.rows + at * r, r,
                     Finish{chain.w2.scale, nullptr}.from(at), biases, CHAIN_COLUMNS);
      measure(at, n);
    }
    row.look_at(base + at, feature ? biases : nullptr, at, n);
    const Best found = row.result();
    if (found.value > best.value || (found.value == best.value && found.id < best.id))
      best = found;
  }

  void measure(int64_t at, int64_t n) const {
    const float longest = chain.longest[at / CHAIN_COLUMNS] * BOUND_MARGIN;
    for (int64_t i = at; i < at + n; i++) {
      const W *row = chain.w2.rows + i * chain.rank;
      const float scale = chain.w2.scale ? chain.w2.scale[i] : 1.0f;
      if (dot(row, row, chain.rank) * scale * scale > longest * longest) {
#pragma omp atomic write
        *pass.is_stale = 1;
      }
    }
  }

  void rate(int64_t b, int64_t k, int64_t previous) const {
    const int64_t E = chain.hidden, r = chain.confidence_rank, at = b * chain.block_size + k;
    float sum = *chain.confidence_bias + dot(hidden + at * E, chain.confidence, E);
    if (r > 0) sum += dot(chain.w1 + previous * r, chain.confidence + E, r);
    pass.confidence[at] = sum;
  }
};
