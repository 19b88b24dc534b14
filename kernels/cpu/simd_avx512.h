// The vectors of simd.h in AVX-512 (F, BW, DQ, VL), with VNNI and BF16 where the tier has them.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace PAGELET_TIER {

constexpr int kFloatRows = 8;  // rows x panels of a floating-point tile
constexpr int kFloatPanels = 3;
constexpr int kIntRows = 6;  // integer tiles hold two accumulators an output
constexpr int kIntPanels = 2;
constexpr int kSingleRowPanels = 4;
constexpr int kStreams = 8;  // panels that one row reads at once where memory is the bound

using f32x16 = __m512;
using i32x16 = __m512i;
using bytes64 = __m512i;

inline f32x16 zero() { return _mm512_setzero_ps(); }
inline f32x16 set1(float v) { return _mm512_set1_ps(v); }
inline f32x16 load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, f32x16 v) { _mm512_storeu_ps(p, v); }
inline f32x16 load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline f32x16 load_bf16(const uint16_t* p) {
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline f32x16 load_i8(const int8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline void store_bf16(uint16_t* p, f32x16 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

inline f32x16 add(f32x16 a, f32x16 b) { return _mm512_add_ps(a, b); }
inline f32x16 sub(f32x16 a, f32x16 b) { return _mm512_sub_ps(a, b); }
inline f32x16 mul(f32x16 a, f32x16 b) { return _mm512_mul_ps(a, b); }
inline f32x16 div(f32x16 a, f32x16 b) { return _mm512_div_ps(a, b); }
inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return _mm512_fmadd_ps(a, b, c); }
// As the instructions: the second operand where either is NaN.
inline f32x16 max(f32x16 a, f32x16 b) { return _mm512_max_ps(a, b); }
inline f32x16 min(f32x16 a, f32x16 b) { return _mm512_min_ps(a, b); }
inline f32x16 round(f32x16 v) {
  return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline f32x16 floor(f32x16 v) {
  return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
inline f32x16 scale_by_power_of_two(f32x16 v, f32x16 n) { return _mm512_scalef_ps(v, n); }
inline f32x16 zero_below(f32x16 x, float bound, f32x16 v) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set1(bound), _CMP_NLT_UQ), v);
}

inline i32x16 set1_i32(int32_t v) { return _mm512_set1_epi32(v); }
inline f32x16 to_float(i32x16 v) { return _mm512_cvtepi32_ps(v); }
inline i32x16 to_int(f32x16 v) { return _mm512_cvtps_epi32(v); }
inline i32x16 abs_bits(f32x16 v) {
  return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
}
inline i32x16 max_i32(i32x16 a, i32x16 b) { return _mm512_max_epi32(a, b); }
inline i32x16 add_i32(i32x16 a, i32x16 b) { return _mm512_add_epi32(a, b); }
inline void store_i32(int32_t* p, i32x16 v) { _mm512_storeu_si512(p, v); }
inline void store_i8(int8_t* p, i32x16 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(v));
}

inline bytes64 load_bytes(const void* p) { return _mm512_loadu_si512(p); }
inline bytes64 low_nibbles(bytes64 v) { return _mm512_and_si512(v, _mm512_set1_epi8(0x0f)); }
inline bytes64 high_nibbles(bytes64 v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
inline bytes64 broadcast_4_bytes(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}

// acc[lane] += sum over 4 bytes of w (unsigned) * x (signed). Without VNNI, sums of two products
// must fit in 16 bits.
inline i32x16 dot_u8_s8(i32x16 acc, bytes64 w, bytes64 x) {
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(acc, w, x);
#else
  const __m512i pairs = _mm512_maddubs_epi16(w, x);
  return _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
}

// acc[lane] += sum over 4 bytes of (w - 128 + kDotOffset) * x, for |x| < 128.
#if defined(__AVX512VNNI__)
constexpr int kDotOffset = 128;
inline i32x16 dot_offset_s8(i32x16 acc, bytes64 w, bytes64 x) { return dot_u8_s8(acc, w, x); }
#else
constexpr int kDotOffset = 0;
inline i32x16 dot_offset_s8(i32x16 acc, bytes64 w, bytes64 x) {
  const __m512i value = _mm512_xor_si512(w, _mm512_set1_epi8(-128));
  const __mmask64 negative = _mm512_movepi8_mask(value);  // |value| * (x with value's sign)
  return dot_u8_s8(acc, _mm512_abs_epi8(value),
                   _mm512_mask_sub_epi8(x, negative, _mm512_setzero_si512(), x));
}
#endif

// acc[lane] += w[2 lane] * x[0] + w[2 lane + 1] * x[1], in bf16.
#if defined(PAGELET_BF16_DOT)
using bf16_pair = __m512i;
inline bf16_pair broadcast_bf16_pair(const uint16_t* x) { return broadcast_4_bytes(x); }
inline f32x16 dot_bf16(f32x16 acc, bytes64 w, bf16_pair x) {
  return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
}
#else
inline f32x16 low_bf16(bytes64 w) { return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)); }
inline f32x16 high_bf16(bytes64 w) {
  return _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(0xffff0000)));
}
#endif

}  // namespace PAGELET_TIER
