// Products with few rows: y[M, N] = x[M, K] w[N, K]^T + bias, everything row-major float32.
//
// With few rows a product costs what it costs to read w once, so w is read exactly once and in
// order, straight from where PyTorch keeps it: nothing is packed, copied or cached. Each tile holds
// NT rows of w against MT rows of x in registers:
//
//            k ->  VL floats at a time
//   w  n0   [====]                acc[MT][NT]  += x[m][k..] * w[n][k..]
//      n0+1 [====]                then each accumulator is summed across its lanes
//   x  m0   [====]
#pragma once

#include <cstdint>

#if defined(__AVX512F__)
#define VL 16
#define NT 4  // 6 x 4 accumulators + 4 + 1 of 32 registers
#elif defined(__AVX2__)
#define VL 8
#define NT 2  // 6 x 2 accumulators + 2 + 1 of 16 registers
#else
#define VL 4
#define NT 4
#endif
#define MT 6

typedef float vec __attribute__((vector_size(4 * VL)));
typedef float vec_at __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * VL)));

static inline vec load(const float *p) { return *(const vec_at *)p; }
static inline void store(float *p, vec v) { *(vec_at *)p = v; }

// The lanes of v, added pairwise: halves on halves until one is left.
static inline float sum_lanes(vec v) {
  typedef float quad __attribute__((vector_size(16)));
  quad parts[VL / 4];
  __builtin_memcpy(parts, &v, sizeof v);
  for (int half = VL / 8; half > 0; half /= 2)
    for (int i = 0; i < half; i++) parts[i] += parts[i + half];
  const quad s = parts[0];
  return (s[0] + s[2]) + (s[1] + s[3]);
}

template <int M, int N>
static inline void linear_tile(const float *x, int64_t ldx, const float *w, int64_t K,
                               const float *bias, float *y, int64_t ldy) {
  vec acc[M][N] = {};
  int64_t k = 0;
  for (; k + VL <= K; k += VL) {
    vec wk[N];
    for (int n = 0; n < N; n++) {
      wk[n] = load(w + n * K + k);
      __builtin_prefetch(w + (n + N) * K + k);  // the next tile: these rows end too soon for
    }                                           // the hardware to notice where they lead
    for (int m = 0; m < M; m++) {
      const vec xk = load(x + m * ldx + k);
      for (int n = 0; n < N; n++) acc[m][n] += xk * wk[n];
    }
  }
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) {
      float s = sum_lanes(acc[m][n]);
      for (int64_t t = k; t < K; t++) s += x[m * ldx + t] * w[n * K + t];
      y[m * ldy + n] = bias ? s + bias[n] : s;
    }
}

template <int N>
static inline void linear_rows(int64_t M, const float *x, int64_t ldx, const float *w, int64_t K,
                               const float *bias, float *y, int64_t ldy) {
  int64_t m = 0;
  for (; m + MT <= M; m += MT)
    linear_tile<MT, N>(x + m * ldx, ldx, w, K, bias, y + m * ldy, ldy);
  x += m * ldx;
  y += m * ldy;
  switch (M - m) {
    case 1: return linear_tile<1, N>(x, ldx, w, K, bias, y, ldy);
    case 2: return linear_tile<2, N>(x, ldx, w, K, bias, y, ldy);
    case 3: return linear_tile<3, N>(x, ldx, w, K, bias, y, ldy);
    case 4: return linear_tile<4, N>(x, ldx, w, K, bias, y, ldy);
    case 5: return linear_tile<5, N>(x, ldx, w, K, bias, y, ldy);
  }
}

// Columns [begin, end) of y: one thread's share.
static inline void linear_columns(int64_t begin, int64_t end, int64_t M, const float *x,
                                  int64_t ldx, const float *w, int64_t K, const float *bias,
                                  float *y, int64_t ldy) {
  int64_t n = begin;
  for (; n + NT <= end; n += NT)
    linear_rows<NT>(M, x, ldx, w + n * K, K, bias ? bias + n : nullptr, y + n, ldy);
  for (; n < end; n++)
    linear_rows<1>(M, x, ldx, w + n * K, K, bias ? bias + n : nullptr, y + n, ldy);
}

// This thread's part of N columns, in whole tiles, so that each thread reads one stretch of w.
static inline void share(int64_t N, int rank, int size, int64_t *begin, int64_t *end) {
  const int64_t tiles = (N + NT - 1) / NT;
  *begin = tiles * rank / size * NT;
  *end = tiles * (rank + 1) / size * NT;
  if (*end > N) *end = N;
}
