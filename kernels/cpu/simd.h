// Vectors of 16 lanes, in the instructions of the tier that is being compiled.
//
// Every kernel is written once over these. A tier is a namespace (PAGELET_TIER), so that no two
// tiers share a symbol. All tiers perform the same IEEE operations in the same order, except for
// the products of bf16 pairs, which the avx512_bf16 and neon_bf16 tiers have instructions for.
#pragma once

#include <cstdint>

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define PAGELET_BF16_DOT  // the tier has dot_bf16; others have low_bf16 and high_bf16
#endif

// Each with bounds of the register tiles, by what fits in the tier's registers.
#if defined(__aarch64__)
#include "simd_neon.h"
#elif defined(__AVX512F__)
#include "simd_avx512.h"
#else
#include "simd_avx2.h"
#endif

namespace PAGELET_TIER {

inline float bf16_to_float(uint16_t bits) { return __builtin_bit_cast(float, uint32_t{bits} << 16); }

// Rounds to nearest, ties to even; a NaN stays one.
inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline f32x16 load(const uint16_t* p) { return load_bf16(p); }
inline f32x16 load(const int8_t* p) { return load_i8(p); }
inline void store(uint16_t* p, f32x16 v) { store_bf16(p, v); }

// The first `count` < 16 elements, zeros behind them.
template <class T>
f32x16 load_first(const T* p, int count) {
  alignas(64) T padded[16] = {};
  __builtin_memcpy(padded, p, count * sizeof(T));
  return load(padded);
}

template <class T>
void store_first(T* p, f32x16 v, int count) {
  alignas(64) T padded[16];
  store(padded, v);
  __builtin_memcpy(p, padded, count * sizeof(T));
}

// Calls body(i, count) for each piece of at most 16 elements of [0, size).
template <class Body>
inline void for_lanes(int64_t size, const Body& body) {
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) body(i, 16);
  if (i < size) body(i, static_cast<int>(size - i));
}

template <class T>
inline f32x16 load_up_to(const T* p, int count) {
  return count == 16 ? load(p) : load_first(p, count);
}

template <class T>
inline void store_up_to(T* p, f32x16 v, int count) {
  if (count == 16) {
    store(p, v);
  } else {
    store_first(p, v, count);
  }
}

// The upper half onto the lower half, until one lane is left.
template <class Combine>
inline float fold_lanes(f32x16 v, const Combine& combine) {
  alignas(64) float lanes[16];
  store(lanes, v);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = combine(lanes[i], lanes[i + width]);
  }
  return lanes[0];
}
inline float sum_lanes(f32x16 v) {
  return fold_lanes(v, [](float a, float b) { return a + b; });
}

// e ** x to about 1 ulp: 2 ** n * p(r) with |r| <= ln(2) / 2 (the scheme of Cephes).
// 0 below -87.3, infinity above 88.8, NaN for NaN.
inline f32x16 exp(f32x16 x) {
  const f32x16 clamped = min(set1(89.0f), max(set1(-87.3f), x));  // keeps a NaN
  const f32x16 n = round(mul(clamped, set1(1.44269504f)));
  f32x16 r = fma(n, set1(-0.693359375f), clamped);
  r = fma(n, set1(2.12194440e-4f), r);
  f32x16 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = add(fma(mul(r, r), p, r), set1(1.0f));
  return zero_below(x, -87.3f, scale_by_power_of_two(p, n));
}

inline f32x16 sigmoid(f32x16 x) {
  return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x))));
}

}  // namespace PAGELET_TIER
