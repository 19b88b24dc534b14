// The vectors of simd.h in AVX2, FMA and F16C: two registers each.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace PAGELET_TIER {

constexpr int kFloatRows = 4;
constexpr int kFloatPanels = 1;
constexpr int kIntRows = 2;
constexpr int kIntPanels = 1;
constexpr int kSingleRowPanels = 2;
constexpr int kStreams = 2;

struct f32x16 {
  __m256 lo, hi;
};
struct i32x16 {
  __m256i lo, hi;
};
using bytes64 = i32x16;

inline f32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline f32x16 set1(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
inline f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, f32x16 v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
inline __m128i load_8_halves(const uint16_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline f32x16 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(load_8_halves(p)), _mm256_cvtph_ps(load_8_halves(p + 8))};
}
inline __m256 widen_bf16(__m128i v) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
inline f32x16 load_bf16(const uint16_t* p) {
  return {widen_bf16(load_8_halves(p)), widen_bf16(load_8_halves(p + 8))};
}
inline __m256 load_8_i8(const int8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline f32x16 load_i8(const int8_t* p) { return {load_8_i8(p), load_8_i8(p + 8)}; }
inline __m256i round_to_bf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  const __m256 chosen =
      _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan);
  return _mm256_srli_epi32(_mm256_castps_si256(chosen), 16);
}
inline void store_bf16(uint16_t* p, f32x16 v) {
  const __m256i packed = _mm256_packus_epi32(round_to_bf16(v.lo), round_to_bf16(v.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
}

inline f32x16 add(f32x16 a, f32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline f32x16 sub(f32x16 a, f32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline f32x16 mul(f32x16 a, f32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline f32x16 div(f32x16 a, f32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// As the instructions: the second operand where either is NaN.
inline f32x16 max(f32x16 a, f32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline f32x16 min(f32x16 a, f32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline f32x16 round(f32x16 v) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(v.lo, mode), _mm256_round_ps(v.hi, mode)};
}
inline f32x16 floor(f32x16 v) { return {_mm256_floor_ps(v.lo), _mm256_floor_ps(v.hi)}; }
inline __m256 power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
// In two steps, since 2 ** 128 is no float though v * 2 ** 128 may be one.
inline __m256 scale_by_power_of_two(__m256 v, __m256 n) {
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  return _mm256_mul_ps(_mm256_mul_ps(v, power_of_two(half)),
                       power_of_two(_mm256_sub_epi32(whole, half)));
}
inline f32x16 scale_by_power_of_two(f32x16 v, f32x16 n) {
  return {scale_by_power_of_two(v.lo, n.lo), scale_by_power_of_two(v.hi, n.hi)};
}
inline f32x16 zero_below(f32x16 x, float bound, f32x16 v) {
  const __m256 b = _mm256_set1_ps(bound);
  return {_mm256_and_ps(v.lo, _mm256_cmp_ps(x.lo, b, _CMP_NLT_UQ)),
          _mm256_and_ps(v.hi, _mm256_cmp_ps(x.hi, b, _CMP_NLT_UQ))};
}

inline i32x16 set1_i32(int32_t v) { return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
inline f32x16 to_float(i32x16 v) { return {_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)}; }
inline i32x16 to_int(f32x16 v) { return {_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi)}; }
inline i32x16 abs_bits(f32x16 v) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  return {_mm256_and_si256(_mm256_castps_si256(v.lo), mask),
          _mm256_and_si256(_mm256_castps_si256(v.hi), mask)};
}
inline i32x16 max_i32(i32x16 a, i32x16 b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
inline i32x16 add_i32(i32x16 a, i32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline void store_i32(int32_t* p, i32x16 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), v.hi);
}
inline void store_i8(int8_t* p, i32x16 v) {
  const __m256i words =
      _mm256_permute4x64_epi64(_mm256_packs_epi32(v.lo, v.hi), _MM_SHUFFLE(3, 1, 2, 0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(words),
                                   _mm256_extracti128_si256(words, 1)));
}

inline bytes64 load_bytes(const void* p) {
  const auto* half = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(half), _mm256_loadu_si256(half + 1)};
}
inline bytes64 low_nibbles(bytes64 v) {
  const __m256i mask = _mm256_set1_epi8(0x0f);
  return {_mm256_and_si256(v.lo, mask), _mm256_and_si256(v.hi, mask)};
}
inline bytes64 high_nibbles(bytes64 v) {
  return low_nibbles({_mm256_srli_epi16(v.lo, 4), _mm256_srli_epi16(v.hi, 4)});
}
inline bytes64 broadcast_4_bytes(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return set1_i32(word);
}

inline __m256i dot_u8_s8(__m256i acc, __m256i w, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(w, x);
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline __m256i dot_offset_s8(__m256i acc, __m256i w, __m256i x) {
  const __m256i value = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
  return dot_u8_s8(acc, _mm256_abs_epi8(value), _mm256_sign_epi8(x, value));
}
// acc[lane] += sum over 4 bytes of w (unsigned) * x (signed). Sums of two products must fit in 16
// bits.
inline i32x16 dot_u8_s8(i32x16 acc, bytes64 w, bytes64 x) {
  return {dot_u8_s8(acc.lo, w.lo, x.lo), dot_u8_s8(acc.hi, w.hi, x.hi)};
}
// acc[lane] += sum over 4 bytes of (w - 128 + kDotOffset) * x, for |x| < 128: as |w - 128| * (x
// with the other's sign), whose sums of two fit.
constexpr int kDotOffset = 0;
inline i32x16 dot_offset_s8(i32x16 acc, bytes64 w, bytes64 x) {
  return {dot_offset_s8(acc.lo, w.lo, x.lo), dot_offset_s8(acc.hi, w.hi, x.hi)};
}

inline f32x16 low_bf16(bytes64 w) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(w.lo, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(w.hi, 16))};
}
inline f32x16 high_bf16(bytes64 w) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000));
  return {_mm256_castsi256_ps(_mm256_and_si256(w.lo, mask)),
          _mm256_castsi256_ps(_mm256_and_si256(w.hi, mask))};
}

}  // namespace PAGELET_TIER
