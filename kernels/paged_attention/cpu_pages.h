// How a page of the KV cache lies in memory. A page holds block_size tokens of one KV head.
//
// Keys: panels of 16 tokens, in bf16 [head_dim / 2][16][2] and in float [head_dim][16]: lanes are
// tokens, so that a query's scores sum over head_dim in order, as in the linear layer.
// Values: [block_size][head_dim]: lanes are the elements of a value.
#pragma once

#include <cstdint>

#include "../cpu/simd.h"

namespace PAGELET_TIER {

constexpr int kPanelTokens = 16;

// Offset in a page of keys of element d of a token.
inline int64_t key_offset(const float*, int token, int d, int head_dim) {
  return int64_t{token / kPanelTokens} * kPanelTokens * head_dim + d * kPanelTokens +
         token % kPanelTokens;
}
inline int64_t key_offset(const uint16_t*, int token, int d, int head_dim) {
  return int64_t{token / kPanelTokens} * kPanelTokens * head_dim + (d / 2) * 2 * kPanelTokens +
         token % kPanelTokens * 2 + d % 2;
}

// One element in another dtype; to bf16 it is rounded.
inline void assign(float& to, float from) { to = from; }
inline void assign(float& to, uint16_t from) { to = bf16_to_float(from); }
inline void assign(uint16_t& to, float from) { to = float_to_bf16(from); }
inline void assign(uint16_t& to, uint16_t from) { to = from; }

// Puts a token's key and value into the pages of a KV head, as the token-th of the block.
template <class T, class Cache>
inline void store_token(const T* key, const T* value, int token, int head_dim, Cache* key_page,
                        Cache* value_page) {
  for (int d = 0; d < head_dim; ++d) {
    assign(key_page[key_offset(key_page, token, d, head_dim)], key[d]);
  }
  Cache* const stored = value_page + int64_t{token} * head_dim;
  for (int d = 0; d < head_dim; ++d) assign(stored[d], value[d]);
}

}  // namespace PAGELET_TIER
