// Single numbers to float16 and back, rounded to nearest, ties to even.
#pragma once

#include <cstdint>

#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

namespace pagelet {

inline uint16_t float_to_half(float value) {
#if defined(__aarch64__)
  return __builtin_bit_cast(uint16_t, static_cast<__fp16>(value));
#else
  return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#endif
}

inline float half_to_float(uint16_t bits) {
#if defined(__aarch64__)
  return __builtin_bit_cast(__fp16, bits);
#else
  return _cvtsh_ss(bits);
#endif
}

}  // namespace pagelet
