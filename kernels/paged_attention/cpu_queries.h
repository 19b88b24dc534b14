// Products of query rows and panels of keys.
#pragma once

#include "cpu_pages.h"

namespace PAGELET_TIER {

#define PAGELET_INLINE inline __attribute__((always_inline))

constexpr int kMaxQueryRows = 24;  // tokens x heads that share a pass over a tile
constexpr int kMaxHeadDim = 256;

// The pages of a context are anywhere in memory, so that the hardware foresees nothing: every load
// asks for its counterpart this many panels later, into the L2 cache, which can wait for more lines
// at once than the L1 can.
constexpr int kPanelsAhead = 6;

template <class Cache>
PAGELET_INLINE void prefetch(const Cache* p) {
  __builtin_prefetch(p, 0, 2);
}

// Query rows, transposed so that a register tile reads them at constant offsets. bf16 keys are
// multiplied by queries rounded to bf16, in every tier.
template <class Cache>
struct Queries {  // float or int8 keys
  alignas(64) float data[kMaxHeadDim * kMaxQueryRows];  // [head_dim][rows]

  template <class T>
  void set(int row, const T* query, int head_dim) {
    for (int d = 0; d < head_dim; ++d) assign(data[d * kMaxQueryRows + row], query[d]);
  }

  template <int R, int P>
  PAGELET_INLINE void multiply(const Cache* const* keys, int row, int head_dim,
                               f32x16 (&acc)[R][P]) const {
    const float* q = data + row;
    for (int d = 0; d < head_dim; ++d, q += kMaxQueryRows) {
      const int line = d * kPanelTokens;
      f32x16 key[P];
      for (int p = 0; p < P; ++p) {
        key[p] = load(keys[p] + line);
        if (line * sizeof(Cache) % 64 == 0) prefetch(keys[p + kPanelsAhead] + line);
      }
      for (int r = 0; r < R; ++r) {
        const f32x16 value = set1(q[r]);
        for (int p = 0; p < P; ++p) acc[r][p] = fma(key[p], value, acc[r][p]);
      }
    }
  }
};

template <>
struct Queries<uint16_t> {
#if defined(PAGELET_BF16_DOT)
  using Element = uint16_t;
#else
  using Element = float;
#endif
  alignas(64) Element data[kMaxHeadDim * kMaxQueryRows];  // [head_dim / 2][rows][2]

  template <class T>
  void set(int row, const T* query, int head_dim) {
    for (int d = 0; d < head_dim; ++d) {
      uint16_t rounded;
      assign(rounded, query[d]);
      assign(data[(d / 2 * kMaxQueryRows + row) * 2 + d % 2], rounded);
    }
  }

  template <int R, int P>
  PAGELET_INLINE void multiply(const uint16_t* const* keys, int row, int head_dim,
                               f32x16 (&acc)[R][P]) const {
    const Element* q = data + 2 * row;
    for (int d = 0; d < head_dim; d += 2, q += 2 * kMaxQueryRows) {
      const int line = d * kPanelTokens;
      bytes64 key[P];
      for (int p = 0; p < P; ++p) {
        key[p] = load_bytes(keys[p] + line);
        prefetch(keys[p + kPanelsAhead] + line);
      }
      for (int r = 0; r < R; ++r) {
#if defined(PAGELET_BF16_DOT)
        const bf16_pair value = broadcast_bf16_pair(q + 2 * r);
        for (int p = 0; p < P; ++p) acc[r][p] = dot_bf16(acc[r][p], key[p], value);
#else
        const f32x16 even = set1(q[2 * r]), odd = set1(q[2 * r + 1]);
        for (int p = 0; p < P; ++p) {
          acc[r][p] = fma(low_bf16(key[p]), even, acc[r][p]);
          acc[r][p] = fma(high_bf16(key[p]), odd, acc[r][p]);
        }
#endif
      }
    }
  }
};

// The tokens of a tile that a row sees, by their index in the tile; none if end <= begin.
struct Seen {
  int begin, end;
  bool empty() const { return end <= begin; }
};
inline Seen hull(Seen a, Seen b) {
  if (a.empty() || b.empty()) return a.empty() ? b : a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}
inline Seen common(Seen a, Seen b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

}  // namespace PAGELET_TIER
