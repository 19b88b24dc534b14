// The vectors of simd.h in NEON (AArch64), four registers each, with the dot products of integers and
// of bf16 pairs where the tier has them.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace PAGELET_TIER {

constexpr int kFloatRows = 4;  // a vector takes four of 32 registers
constexpr int kFloatPanels = 1;
constexpr int kIntRows = 2;
constexpr int kIntPanels = 1;
constexpr int kSingleRowPanels = 2;
constexpr int kStreams = 2;

struct f32x16 {
  float32x4_t part[4];
};
struct i32x16 {
  int32x4_t part[4];
};
using bytes64 = i32x16;

// A vector of what body(i) gives for each of its parts.
template <class Vector, class Body>
inline Vector of_parts(const Body& body) {
  return {body(0), body(1), body(2), body(3)};
}

inline f32x16 set1(float v) {
  return of_parts<f32x16>([&](int) { return vdupq_n_f32(v); });
}
inline f32x16 zero() { return set1(0.0f); }
inline f32x16 load(const float* p) {
  return of_parts<f32x16>([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, f32x16 v) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, v.part[i]);
}
inline f32x16 load_f16(const uint16_t* p) {
  return of_parts<f32x16>(
      [&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline f32x16 load_bf16(const uint16_t* p) {
  return of_parts<f32x16>(
      [&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
inline f32x16 load_i8(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
          vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
          vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))};
}
inline uint16x4_t round_to_bf16(float32x4_t v) {
  const uint32x4_t bits = vreinterpretq_u32_f32(v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16);
}
inline void store_bf16(uint16_t* p, f32x16 v) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, round_to_bf16(v.part[i]));
}

inline f32x16 add(f32x16 a, f32x16 b) {
  return of_parts<f32x16>([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
}
inline f32x16 sub(f32x16 a, f32x16 b) {
  return of_parts<f32x16>([&](int i) { return vsubq_f32(a.part[i], b.part[i]); });
}
inline f32x16 mul(f32x16 a, f32x16 b) {
  return of_parts<f32x16>([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
}
inline f32x16 div(f32x16 a, f32x16 b) {
  return of_parts<f32x16>([&](int i) { return vdivq_f32(a.part[i], b.part[i]); });
}
inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return of_parts<f32x16>([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
}
// As on x86: the second operand where either is NaN.
inline f32x16 max(f32x16 a, f32x16 b) {
  return of_parts<f32x16>(
      [&](int i) { return vbslq_f32(vcgtq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]); });
}
inline f32x16 min(f32x16 a, f32x16 b) {
  return of_parts<f32x16>(
      [&](int i) { return vbslq_f32(vcltq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]); });
}
inline f32x16 round(f32x16 v) {
  return of_parts<f32x16>([&](int i) { return vrndnq_f32(v.part[i]); });
}
inline f32x16 floor(f32x16 v) {
  return of_parts<f32x16>([&](int i) { return vrndmq_f32(v.part[i]); });
}
inline float32x4_t power_of_two(int32x4_t n) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}
// In two steps, since 2 ** 128 is no float though v * 2 ** 128 may be one.
inline f32x16 scale_by_power_of_two(f32x16 v, f32x16 n) {
  return of_parts<f32x16>([&](int i) {
    const int32x4_t whole = vcvtnq_s32_f32(n.part[i]), half = vshrq_n_s32(whole, 1);
    return vmulq_f32(vmulq_f32(v.part[i], power_of_two(half)), power_of_two(vsubq_s32(whole, half)));
  });
}
inline f32x16 zero_below(f32x16 x, float bound, f32x16 v) {
  return of_parts<f32x16>([&](int i) {
    const uint32x4_t below = vcltq_f32(x.part[i], vdupq_n_f32(bound));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v.part[i]), below));
  });
}

inline i32x16 set1_i32(int32_t v) {
  return of_parts<i32x16>([&](int) { return vdupq_n_s32(v); });
}
inline f32x16 to_float(i32x16 v) {
  return of_parts<f32x16>([&](int i) { return vcvtq_f32_s32(v.part[i]); });
}
inline i32x16 to_int(f32x16 v) {
  return of_parts<i32x16>([&](int i) { return vcvtnq_s32_f32(v.part[i]); });
}
inline i32x16 abs_bits(f32x16 v) {
  return of_parts<i32x16>([&](int i) {
    return vandq_s32(vreinterpretq_s32_f32(v.part[i]), vdupq_n_s32(0x7fffffff));
  });
}
inline i32x16 max_i32(i32x16 a, i32x16 b) {
  return of_parts<i32x16>([&](int i) { return vmaxq_s32(a.part[i], b.part[i]); });
}
inline i32x16 add_i32(i32x16 a, i32x16 b) {
  return of_parts<i32x16>([&](int i) { return vaddq_s32(a.part[i], b.part[i]); });
}
inline void store_i32(int32_t* p, i32x16 v) {
  for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, v.part[i]);
}
inline void store_i8(int8_t* p, i32x16 v) {
  for (int i = 0; i < 4; i += 2) {
    const int16x8_t words =
        vcombine_s16(vqmovn_s32(v.part[i]), vqmovn_s32(v.part[i + 1]));
    vst1_s8(p + 4 * i, vqmovn_s16(words));
  }
}

inline bytes64 load_bytes(const void* p) {
  return of_parts<bytes64>(
      [&](int i) { return vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(p) + 16 * i)); });
}
inline bytes64 low_nibbles(bytes64 v) {
  return of_parts<bytes64>([&](int i) { return vandq_s32(v.part[i], vdupq_n_s32(0x0f0f0f0f)); });
}
inline bytes64 high_nibbles(bytes64 v) {
  return of_parts<bytes64>([&](int i) {
    return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(v.part[i]), 4));
  });
}
inline bytes64 broadcast_4_bytes(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return set1_i32(word);
}

// acc[lane] += sum over 4 bytes of w * x, both signed.
inline int32x4_t dot_s8_s8(int32x4_t acc, int8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(acc, w, x);
#else
  const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_high_s8(w, x);
  return vaddq_s32(acc, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}
// acc[lane] += sum over 4 bytes of w (unsigned, below 128) * x (signed).
inline i32x16 dot_u8_s8(i32x16 acc, bytes64 w, bytes64 x) {
  return of_parts<i32x16>([&](int i) {
    return dot_s8_s8(acc.part[i], vreinterpretq_s8_s32(w.part[i]), vreinterpretq_s8_s32(x.part[i]));
  });
}

// acc[lane] += sum over 4 bytes of (w - 128 + kDotOffset) * x.
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int kDotOffset = 128;
inline i32x16 dot_offset_s8(i32x16 acc, bytes64 w, bytes64 x) {
  return of_parts<i32x16>([&](int i) {
    return vusdotq_s32(acc.part[i], vreinterpretq_u8_s32(w.part[i]),
                       vreinterpretq_s8_s32(x.part[i]));
  });
}
#else
constexpr int kDotOffset = 0;
inline i32x16 dot_offset_s8(i32x16 acc, bytes64 w, bytes64 x) {
  return of_parts<i32x16>([&](int i) {
    const int8x16_t value = veorq_s8(vreinterpretq_s8_s32(w.part[i]), vdupq_n_s8(-128));
    return dot_s8_s8(acc.part[i], value, vreinterpretq_s8_s32(x.part[i]));
  });
}
#endif

#if defined(PAGELET_BF16_DOT)
// acc[lane] += w[2 lane] * x[0] + w[2 lane + 1] * x[1], in bf16.
using bf16_pair = bytes64;
inline bf16_pair broadcast_bf16_pair(const uint16_t* x) { return broadcast_4_bytes(x); }
inline f32x16 dot_bf16(f32x16 acc, bytes64 w, bf16_pair x) {
  return of_parts<f32x16>([&](int i) {
    return vbfdotq_f32(acc.part[i], vreinterpretq_bf16_s32(w.part[i]),
                       vreinterpretq_bf16_s32(x.part[i]));
  });
}
#else
inline f32x16 low_bf16(bytes64 w) {
  return of_parts<f32x16>(
      [&](int i) { return vreinterpretq_f32_s32(vshlq_n_s32(w.part[i], 16)); });
}
inline f32x16 high_bf16(bytes64 w) {
  return of_parts<f32x16>([&](int i) {
    const int32x4_t mask = vdupq_n_s32(static_cast<int32_t>(0xffff0000));
    return vreinterpretq_f32_s32(vandq_s32(w.part[i], mask));
  });
}
#endif

}  // namespace PAGELET_TIER
