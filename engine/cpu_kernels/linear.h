// Computes products y[M, N] = x[M, K] w[N, K]^T * scale + bias: x and y row-major float32, w row-
// major as in PyTorch, scale and bias by column. Nothing is packed or copied. Each tile multiplies
// NT rows of w with up to MT rows of x:
//
//            k ->  VL numbers at a time
//   w  n0   [====]                acc[MT][NT]  += x[m][k..] * w[n][k..]
//      n0+1 [====]                then each accumulator is summed across its lanes
//   x  m0   [====]
//
// The same operations in the same order make a number of y, whatever M, the thread and the other
// rows are. So a row's result is the same to the last bit alone and in any batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "vectors.h"

#if defined(__AVX512F__)
#define NT 4  // 6 x 4 accumulators + 4 + 1 of 32 registers
#define WIDE_MT 8  // seven or eight rows are still one tile
#define WIDE_NT 3
#elif defined(__AVX2__)
#define NT 2  // 6 x 2 accumulators + 2 + 1 of 16 registers
#else
#define NT 4
#endif
#define MT 6
#ifndef WIDE_MT
#define WIDE_MT MT
#define WIDE_NT NT
#endif

#define ROW_BLOCK 96              // rows of x that stay in the second cache while all of w passes
#define COLUMN_BYTES (128 << 10)  // of w that stay there while those rows of x pass

// Prefetch distances in bytes. The rows of a tile are too short for the hardware prefetcher. With
// few rows of x the first-level cache has room for prefetched data; with more it goes to the second
// level.
#define AHEAD_NEAR (9 << 10)
#define AHEAD_FAR (64 << 10)

// Near and far prefetch as many bytes as are used meanwhile. Where several tiles of x use the same
// columns of w, each prefetches its part of the following columns: a half or a quarter of the bytes
// that it uses. So reading memory and arithmetic overlap.
enum class Ahead { none, near, far, half, quarter };

// Bytes to prefetch while `used` bytes are used.
template <Ahead A>
constexpr int64_t pace(int64_t used) {
  return A == Ahead::none ? 0 : A == Ahead::half ? used / 2 : A == Ahead::quarter ? used / 4 : used;
}

template <auto VALUE>
constexpr std::integral_constant<decltype(VALUE), VALUE> fixed = {};

// The memory that a thread reads now and after it: prefetching continues into the next product.
struct Stretch {
  const char *end, *next;

  // The address of a byte, counted as if `next` followed `end` directly.
  const char *place(const char *at) const { return at < end || !next ? at : next + (at - end); }
};

// The bytes that are still to be prefetched.
struct Reading {
  const char *at, *end;
};

template <Ahead A, int64_t BYTES>
ALWAYS_INLINE void read_ahead(const char *&at) {
  for (int64_t i = 0; i < BYTES; i += 64) __builtin_prefetch(at + i, 0, A == Ahead::near ? 3 : 2);
  at += BYTES;
}

// Whether the product is stored to y or added to it, as for a residual.
enum class Into { set, add };

// The rows of a linear layer.
template <class W>
struct Matrix {
  const W *rows;       // [N, K]
  const float *scale;  // [N]: the factor of each row's numbers; null: 1
};

// The scale and bias of a product, by column; null: none.
struct Finish {
  const float *scale, *bias;

  Finish from(int64_t n) const { return {scale ? scale + n : nullptr, bias ? bias + n : nullptr}; }
};

// The width of a vector of X and W, and its product.
template <class X, class W>
struct Lanes {
  static constexpr int64_t width = VL;
  using part = vec;

  template <class T>
  static part read(const T *p) {
    return load(p);
  }
  template <class T>
  static part read_first(const T *p, int64_t n) {
    return load_first(p, n);
  }
  static vec add(vec acc, part x, part w) { return acc + x * w; }
};

#if defined(__AVX512BF16__)
// Pairs of bfloat16 without widening: each lane of acc takes two products.
template <>
struct Lanes<bfloat16, bfloat16> {
  static constexpr int64_t width = 2 * VL;
  using part = __m512i;

  static part read(const bfloat16 *p) { return _mm512_loadu_si512(p); }
  static part read_first(const bfloat16 *p, int64_t n) {
    return _mm512_maskz_loadu_epi16((1u << n) - 1, p);
  }
  static vec add(vec acc, part x, part w) {
    return (vec)_mm512_dpbf16_ps((__m512)acc, (__m512bh)x, (__m512bh)w);
  }
};
#endif

// Whether the CPU multiplies rows that are rounded to W without widening.
template <class W>
constexpr bool multiplies_pairs = Lanes<W, W>::width > VL;

// Finish one or four numbers of y from their sums: T is a float or a quad.
template <class T>
ALWAYS_INLINE void finish_numbers(const float *sums, Finish finish, float *y, Into into) {
  typedef T T_at __attribute__((aligned(4), may_alias));
  T s = *(const T_at *)sums;
  if (finish.scale) {
    s *= *(const T_at *)finish.scale;
    ROUNDED(s);
  }
  if (finish.bias) s += *(const T_at *)finish.bias;
  *(T_at *)y = into == Into::add ? *(const T_at *)y + s : s;
}

template <int N>
ALWAYS_INLINE void finish_row(const float *sums, Finish finish, float *y, Into into) {
  if constexpr (N % 4 == 0) {
    for (int n = 0; n < N; n += 4) finish_numbers<quad>(sums + n, finish.from(n), y + n, into);
  } else {
    for (int n = 0; n < N; n++) finish_numbers<float>(sums + n, finish.from(n), y + n, into);
  }
}

template <int M, int N, Ahead A, class X, class W>
static inline void linear_tile(const X *x, int64_t ldx, const W *w, int64_t K,
                               Finish finish, float *y, int64_t ldy, Into into,
                               const char *ahead) {
  using L = Lanes<X, W>;
  using part = typename L::part;
  vec acc[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) acc[m][n] = vec{};
  const auto step = [&](auto read) __attribute__((always_inline)) {
    part wk[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
      wk[n] = read(w + n * K);
      IN_REGISTER(wk[n]);
    }
    read_ahead<A, pace<A>(N * L::width * sizeof(W))>(ahead);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      part xk = read(x + m * ldx);
      IN_REGISTER(xk);
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) acc[m][n] = L::add(acc[m][n], xk, wk[n]);
    }
  };
  int64_t k = 0;
  for (; k + L::width <= K; k += L::width) step([k](const auto *p) { return L::read(p + k); });
  if (k < K) step([k, K](const auto *p) { return L::read_first(p + k, K - k); });
  float sums[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) sum_each<N>(acc[m], sums[m]);
  for (int m = 0; m < M; m++) finish_row<N>(sums[m], finish, y + m * ldy, into);
}

template <int N, Ahead A, class X, class W>
static inline void linear_rows(int64_t M, const X *x, int64_t ldx, const W *w, int64_t K,
                               Finish finish, float *y, int64_t ldy, Into into,
                               const char *ahead) {
  switch (M) {
    case 1: return linear_tile<1, N, A>(x, ldx, w, K, finish, y, ldy, into, ahead);
    case 2: return linear_tile<2, N, A>(x, ldx, w, K, finish, y, ldy, into, ahead);
    case 3: return linear_tile<3, N, A>(x, ldx, w, K, finish, y, ldy, into, ahead);
    case 4: return linear_tile<4, N, A>(x, ldx, w, K, finish, y, ldy, into, ahead);
    case 5: return linear_tile<5, N, A>(x, ldx, w, K, finish, y, ldy, into, ahead);
    case 6: return linear_tile<6, N, A>(x, ldx, w, K, finish, y, ldy, into, ahead);
    case 7: return linear_tile<7, N, A>(x, ldx, w, K, finish, y, ldy, into, ahead);
    case 8: return linear_tile<8, N, A>(x, ldx, w, K, finish, y, ldy, into, ahead);
  }
}

// The rows of one tile times columns begin .. end - 1; `reading` is prefetched meanwhile.
template <int N, Ahead A, class X, class W>
ONE_COPY void linear_strip(int64_t begin, int64_t end, int64_t M, const X *x, int64_t ldx,
                           const W *w, int64_t K, Finish finish, float *y, int64_t ldy, Into into,
                           const Stretch &stretch, Reading reading) {
  const auto columns = [&](auto count, int64_t n) __attribute__((always_inline)) {
    constexpr int C = count();
    if (reading.at < reading.end)
      linear_rows<C, A>(M, x, ldx, w + n * K, K, finish.from(n), y + n, ldy, into,
                        stretch.place(reading.at));
    else
      linear_rows<C, Ahead::none>(M, x, ldx, w + n * K, K, finish.from(n), y + n, ldy, into, nullptr);
    reading.at += pace<A>(C * K * sizeof(W));
  };
  int64_t n = begin;
  for (; n + N <= end; n += N) columns(fixed<N>, n);
  for (; n < end; n++) columns(fixed<1>, n);
}

// Columns [begin, end) of y: one thread's part. `next` is the memory that this thread reads next.
template <class X, class W>
static inline void linear_columns(int64_t begin, int64_t end, int64_t M, const X *x,
                                  int64_t ldx, const W *w, int64_t K, Finish finish, float *y,
                                  int64_t ldy, Into into = Into::set, const void *next = nullptr) {
  const int64_t column_bytes = K * sizeof(W);
  const char *first = (const char *)(w + begin * K);
  const Stretch stretch = {(const char *)(w + end * K), (const char *)next};
  const auto strip = [&](auto columns, auto ahead, int64_t n, int64_t stop, int64_t m, int64_t rows,
                         Reading reading) {
    linear_strip<columns(), ahead()>(n, stop, rows, x + m * ldx, ldx, w, K, finish, y + m * ldy, ldy,
                                     into, stretch, reading);
  };
  const auto only = [&](auto columns, auto ahead, int64_t distance) {
    strip(columns, ahead, begin, end, 0, M, {first + distance, stretch.end + distance});
  };
  if (M <= 4) return only(fixed<NT>, fixed<Ahead::near>, AHEAD_NEAR);
  if (M <= MT) return only(fixed<NT>, fixed<Ahead::far>, AHEAD_FAR);
  if (M <= WIDE_MT) return only(fixed<WIDE_NT>, fixed<Ahead::far>, AHEAD_FAR);
  const int64_t most = COLUMN_BYTES / column_bytes / NT * NT, columns = most > NT ? most : NT;
  for (int64_t row = 0; row < M; row += ROW_BLOCK) {
    const int64_t block = M - row < ROW_BLOCK ? M - row : ROW_BLOCK;
    const int64_t tiles = (block + MT - 1) / MT;
    for (int64_t n = begin; n < end; n += columns) {
      const int64_t stop = n + columns < end ? n + columns : end;
      const char *following = (const char *)(w + stop * K);
      for (int64_t tile = 0; tile < tiles; tile++) {  // of sizes that differ by one at most
        const int64_t m = row + block * tile / tiles, rows = row + block * (tile + 1) / tiles - m;
        const Reading part = {following + columns * column_bytes * tile / tiles,
                              following + columns * column_bytes * (tile + 1) / tiles};
        if (tiles <= 3)
          strip(fixed<NT>, fixed<Ahead::half>, n, stop, m, rows, part);
        else
          strip(fixed<NT>, fixed<Ahead::quarter>, n, stop, m, rows, part);
      }
    }
  }
}

// This thread's part of N columns, in whole tiles: each thread reads one stretch of w.
static inline void share(int64_t N, int rank, int size, int64_t *begin, int64_t *end) {
  const int64_t tiles = (N + NT - 1) / NT;
  *begin = tiles * rank / size * NT;
  *end = tiles * (rank + 1) / size * NT;
  if (*end > N) *end = N;
}
