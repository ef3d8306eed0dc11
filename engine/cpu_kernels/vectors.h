// Defines vectors of VL floats by the compiler's extensions, with intrinsics where they are faster.
#pragma once

#include <cstdint>

#if defined(__AVX512F__)
#include <immintrin.h>
#define VL 16
#define IN_REGISTER(v) asm("" : "+v"(v))
#elif defined(__AVX2__)
#include <immintrin.h>
#define VL 8
#define IN_REGISTER(v) asm("" : "+x"(v))
#else
#define VL 4
#define IN_REGISTER(v)
#endif
// IN_REGISTER: without it GCC loads an operand again for every product, and loads become the limit.

// Forces a product to be rounded before it is added to anything, in every copy of the code.
#if defined(__x86_64__)
#define ROUNDED(x) asm("" : "+x"(x))
#elif defined(__aarch64__)
#define ROUNDED(x) asm("" : "+w"(x))
#else
#define ROUNDED(x) asm("" : "+m"(x))
#endif

// For functions that hold their operands in registers.
#define ALWAYS_INLINE static inline __attribute__((always_inline))
// For large functions with many callers: they are compiled once.
#define ONE_COPY static __attribute__((noinline))

typedef float vec __attribute__((vector_size(4 * VL)));
typedef float vec_at __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * VL)));
typedef float quad __attribute__((vector_size(16)));

static inline vec load(const float *p) { return *(const vec_at *)p; }
static inline void store(float *p, vec v) { *(vec_at *)p = v; }
static inline float as_float(float x) { return x; }

// The upper half of a float32, as PyTorch stores it.
struct bfloat16 {
  uint16_t bits;
};

typedef uint16_t half_at __attribute__((vector_size(2 * VL), aligned(2), may_alias));
typedef uint32_t uvec __attribute__((vector_size(4 * VL)));

static inline vec load(const bfloat16 *p) {
  return (vec)(__builtin_convertvector(*(const half_at *)p, uvec) << 16);
}

static inline float as_float(bfloat16 x) {
  const uint32_t bits = (uint32_t)x.bits << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// Round to nearest, ties to even, as PyTorch does; NaN stays NaN.
static inline bfloat16 as_bfloat16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  if (x != x) return {(uint16_t)((bits >> 16) | 0x40)};
  return {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

typedef int8_t byte_at __attribute__((vector_size(VL), aligned(1), may_alias));

// GCC compiles convertvector of bytes element by element.
static inline vec load(const int8_t *p) {
#if defined(__AVX512F__)
  return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined(__AVX2__)
  return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
  return __builtin_convertvector(__builtin_convertvector(*(const byte_at *)p, ivec), vec);
#endif
}

// The first n numbers at p, n < VL, then zeros.
template <class T>
static inline vec load_first(const T *p, int64_t n) {
  T numbers[VL] = {};
  __builtin_memcpy(numbers, p, n * sizeof(T));
  return load(numbers);
}

static inline void store_first(float *p, vec v, int64_t n) {
  __builtin_memcpy(p, &v, n * sizeof(float));
}

// Add halves to halves until four lanes are left.
static inline quad to_quad(vec v) {
  quad parts[VL / 4];
  __builtin_memcpy(parts, &v, sizeof v);
  for (int half = VL / 8; half > 0; half /= 2)
    for (int i = 0; i < half; i++) parts[i] += parts[i + half];
  return parts[0];
}

// The lanes of v, added pairwise.
static inline float sum_lanes(vec v) {
  const quad s = to_quad(v);
  return (s[0] + s[2]) + (s[1] + s[3]);
}

// sums[n] = sum_lanes(v[n]) to the last bit; four at once take fewer steps than one by one.
template <int N>
ALWAYS_INLINE void sum_each(const vec *v, float *sums) {
#if defined(__AVX512F__)
  if constexpr (N > 4) {
    sum_each<4>(v, sums);
    sum_each<N - 4>(v + 4, sums + 4);
    return;
  }
  if constexpr (N == 3) {
    const vec four[4] = {v[0], v[1], v[2], vec{}};
    float all[4];
    sum_each<4>(four, all);
    __builtin_memcpy(sums, all, sizeof(float[3]));
    return;
  }
  if constexpr (N == 4) {
    const auto add_halves = [](vec x, vec y) {  // 8 lanes of x, then 8 of y
      const __m512d low = _mm512_insertf64x4((__m512d)x, _mm512_castpd512_pd256((__m512d)y), 1);
      const __m512d high = _mm512_shuffle_f64x2((__m512d)x, (__m512d)y, 0xee);
      return (__m512)((vec)low + (vec)high);
    };
    const __m512 ab = add_halves(v[0], v[1]), cd = add_halves(v[2], v[3]);
    vec s = (vec)_mm512_shuffle_f32x4(ab, cd, 0x88) + (vec)_mm512_shuffle_f32x4(ab, cd, 0xdd);
    s += (vec)_mm512_permute_ps((__m512)s, 0x4e);
    s += (vec)_mm512_permute_ps((__m512)s, 0xb1);
    _mm_storeu_ps(sums, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, (__m512)s)));
    return;
  }
#endif
  for (int n = 0; n < N; n++) sums[n] = sum_lanes(v[n]);
}
