// How a page of the KV cache lies in memory. A page holds block_size tokens of one KV head.
//
// A page is panels of 16 tokens. Keys: in bf16 [head_dim / 2][16][2], else [head_dim][16]: lanes
// are tokens, so that a query's scores sum over head_dim in order, as in the linear layer. Values:
// [16][head_dim]: lanes are the elements of a value. In int8, a panel ends with 16 float scales,
// one a token.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "../cpu/simd.h"

namespace PAGELET_TIER {

constexpr int kPanelTokens = 16;

// Elements of a page that a token takes.
template <class Cache>
constexpr int64_t token_size(int64_t head_dim) {
  return sizeof(Cache) == 1 ? head_dim + static_cast<int64_t>(sizeof(float)) : head_dim;
}

inline float* panel_scales(int8_t* panel, int64_t head_dim) {
  return reinterpret_cast<float*>(panel + kPanelTokens * head_dim);
}
inline const float* panel_scales(const int8_t* panel, int64_t head_dim) {
  return reinterpret_cast<const float*>(panel + kPanelTokens * head_dim);
}

// Offset in a panel of keys of element d of a token.
template <class Cache>
constexpr int64_t key_offset(int token, int d) {
  return sizeof(Cache) == 2 ? d / 2 * 2 * kPanelTokens + token * 2 + d % 2
                            : d * kPanelTokens + token;
}

// One element in another dtype; to bf16 it is rounded.
inline void assign(float& to, float from) { to = from; }
inline void assign(float& to, uint16_t from) { to = bf16_to_float(from); }
inline void assign(uint16_t& to, float from) { to = float_to_bf16(from); }
inline void assign(uint16_t& to, uint16_t from) { to = from; }

// To int8: as multiples of the largest absolute value's 127th part. A NaN spoils its token.
template <class T>
inline float int8_scale(const T* x, int head_dim) {
  float largest = 0;
  for (int d = 0; d < head_dim; ++d) {
    float value;
    assign(value, x[d]);
    if (value != value) return value;
    largest = std::fmax(largest, std::fabs(value));
  }
  return largest / 127;
}
inline float inverse(float scale) { return scale >= FLT_MIN ? 1 / scale : 0; }
template <class T>
inline void assign_scaled(int8_t& to, T from, float inverse_scale) {
  float value;
  assign(value, from);
  to = static_cast<int8_t>(std::lrint(value * inverse_scale));
}

// Puts a token's key and value into the pages of a KV head, as the token-th of the block.
template <class T, class Cache>
inline void store_token(const T* key, const T* value, int token, int head_dim, Cache* key_page,
                        Cache* value_page) {
  const int64_t panel = token / kPanelTokens * kPanelTokens * token_size<Cache>(head_dim);
  const int lane = token % kPanelTokens;
  Cache* const keys = key_page + panel;
  Cache* const values = value_page + panel + lane * head_dim;
  if constexpr (sizeof(Cache) == 1) {
    const float key_scale = int8_scale(key, head_dim), value_scale = int8_scale(value, head_dim);
    panel_scales(keys, head_dim)[lane] = key_scale;
    panel_scales(value_page + panel, head_dim)[lane] = value_scale;
    for (int d = 0; d < head_dim; ++d) {
      assign_scaled(keys[key_offset<Cache>(lane, d)], key[d], inverse(key_scale));
      assign_scaled(values[d], value[d], inverse(value_scale));
    }
  } else {
    for (int d = 0; d < head_dim; ++d) assign(keys[key_offset<Cache>(lane, d)], key[d]);
    for (int d = 0; d < head_dim; ++d) assign(values[d], value[d]);
  }
}

}  // namespace PAGELET_TIER
