// Stores rows in another precision, and computes products of rows that are rounded to bfloat16
// first.
#pragma once

#include "linear.h"

static inline void store_as(float *out, const float *x, int64_t n) {
  __builtin_memcpy(out, x, n * sizeof(float));
}

static inline void store_as(bfloat16 *out, const float *x, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512BF16__)
  for (; i + VL <= n; i += VL)
    *(half_at *)(out + i) = (half_at)_mm512_cvtneps_pbh((__m512)load(x + i));
#endif
  for (; i < n; i++) out[i] = as_bfloat16(x[i]);
}

// Scratch in which each thread rounds up to ROW_BLOCK rows of a product.
struct RoundingRoom {
  bfloat16 *numbers;
  int64_t stride;  // numbers between threads

  bfloat16 *of(int rank) const { return numbers + rank * stride; }
};

// As linear_columns over all rows; ROW_BLOCK rows at a time are rounded once for all columns.
static inline void linear_rounded(int64_t begin, int64_t end, int64_t rows, const float *x,
                                  bfloat16 *rounded, const bfloat16 *w, int64_t K, Finish finish,
                                  float *y, int64_t N, Into into, const bfloat16 *next) {
  for (int64_t row = 0; row < rows; row += ROW_BLOCK) {
    const int64_t block = rows - row < ROW_BLOCK ? rows - row : ROW_BLOCK;
    store_as(rounded, x + row * K, block * K);
    linear_columns(begin, end, block, rounded, K, w, K, finish, y + row * N, N, into,
                   row + block < rows ? w + begin * K : next);
  }
}
