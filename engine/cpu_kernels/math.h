// Defines elementwise functions over VL floats, and the norm and rotation of one row.
#pragma once

#include <cmath>

#include "linear.h"

static inline vec splat(float x) { return x - (vec){}; }

// exp(x) by 2^n * exp(r), |r| <= ln(2) / 2, with the degree-5 polynomial of the Cephes library
// (S. Moshier, expf). The relative error is about 1e-7; x is clamped to -87 .. 88.
static inline vec exp_lanes(vec x) {
  const vec low = splat(-87.0f), high = splat(88.0f), magic = splat(12582912.0f);  // 1.5 * 2^23
  x = x < low ? low : x;
  x = x > high ? high : x;
  const vec shifted = x * 1.44269504088896341f + magic;  // rounds to an integer in the low bits
  const vec n = shifted - magic;
  const vec r = x - n * 0.693359375f - n * -2.12194440e-4f;
  vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const ivec exponent = ((ivec)shifted - (ivec)magic + 127) << 23;
  return p * (vec)exponent;
}

static inline vec silu(vec x) { return x / (1.0f + exp_lanes(-x)); }

// The approximation by tanh: 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi)(x + 0.044715 x^3).
static inline vec gelu(vec x) {
  return x / (1.0f + exp_lanes(x * (x * x * -0.0713548162726f - 1.5957691216057f)));
}

// gate <- activate(gate) * up, over n floats. A float's result does not depend on the range's ends.
template <class Activate>
ALWAYS_INLINE void activate_times(Activate activate, float *gate, const float *up, int64_t n) {
  int64_t i = 0;
  for (; i + VL <= n; i += VL) store(gate + i, activate(load(gate + i)) * load(up + i));
  if (i < n)
    store_first(gate + i, activate(load_first(gate + i, n - i)) * load_first(up + i, n - i), n - i);
}

static inline void silu_times(float *gate, const float *up, int64_t n) {
  activate_times(silu, gate, up, n);
}

static inline void gelu_times(float *gate, const float *up, int64_t n) {
  activate_times(gelu, gate, up, n);
}

// out <- weight * x / rms(x), over n floats; out may be x.
static inline void rms_norm(const float *x, const float *weight, float eps, int64_t n, float *out) {
  vec squares = {};
  int64_t i = 0;
  for (; i + VL <= n; i += VL) squares += load(x + i) * load(x + i);
  float sum = sum_lanes(squares);
  for (; i < n; i++) sum += x[i] * x[i];
  const float scale = 1.0f / sqrtf(sum / n + eps);
  for (i = 0; i + VL <= n; i += VL) store(out + i, load(weight + i) * (load(x + i) * scale));
  for (; i < n; i++) out[i] = weight[i] * (x[i] * scale);
}

// Rotate n numbers by halves (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin); out may be x.
static inline void rotate(const float *x, const float *cosine, const float *sine, int64_t n,
                          float *out) {
  const int64_t half = n / 2;
  for (int64_t i = 0; i < half; i++) {
    const float a = x[i], b = x[i + half];
    out[i] = a * cosine[i] - b * sine[i];
    out[i + half] = b * cosine[i + half] + a * sine[i + half];
  }
}
