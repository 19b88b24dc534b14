// The formats of packed weights: how a row of activations is prepared for each, and the product of
// a tile of rows and panels.
//
// A panel holds the weights of 16 outputs, one output a lane. A lane's sum runs over the inputs in
// order, by the same instructions for every shape of tile, so that a row's result depends neither
// on the number of rows nor on which other rows are in the call.
#pragma once

#include "../cpu/simd.h"

namespace PAGELET_TIER {

constexpr int kLanes = 16;

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

#define PAGELET_INLINE inline __attribute__((always_inline))

// Weights come from memory once. Their lines are asked for this many bytes ahead, and into L2: the
// panels of a tile that begin in the same sets of L1 would drive one another out of it. Each panel's
// are asked for in ascending order, which hardware prefetchers follow.
constexpr int kPrefetchBytes = 2048;
PAGELET_INLINE void prefetch(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }

// What to ask for beside a line of the first panel at `w`, one of a tile of P; the other panels are
// as far from there as here. Near the end of the panels these are lines of the next tile.
template <int P>
PAGELET_INLINE const uint8_t* lines_ahead(const uint8_t* w, const uint8_t* line, int64_t panel) {
  const uint8_t* const ahead = line + kPrefetchBytes;
  return ahead - w < panel ? ahead : ahead + (P - 1) * panel;
}

// Panel: [k][16] float.
struct Float32Format {
  static constexpr int kMaxRows = kFloatRows, kMaxPanels = kFloatPanels;

  static int64_t panel_bytes(int k) { return int64_t{64} * k; }
  static int64_t row_bytes(int k) { return int64_t{4} * k; }

  template <class T>
  static void prepare(const T* x, int k, uint8_t* row) {
    auto* out = reinterpret_cast<float*>(row);
    for_lanes(k, [&](int64_t i, int count) { store_up_to(out + i, load_up_to(x + i, count), count); });
  }

  template <int R, int P>
  static PAGELET_INLINE void tile(const uint8_t* w, const uint8_t* x, int64_t x_stride, int k,
                                  f32x16 (&acc)[R][P]) {
    const int64_t panel = panel_bytes(k);
    for (int i = 0; i < k; ++i) {
      const uint8_t* const line = w + int64_t{64} * i;
      const uint8_t* const ahead = lines_ahead<P>(w, line, panel);
      f32x16 weight[P];
      for (int p = 0; p < P; ++p) {
        weight[p] = load(reinterpret_cast<const float*>(line + p * panel));
        prefetch(ahead + p * panel);
      }
      for (int r = 0; r < R; ++r) {
        const f32x16 value = set1(reinterpret_cast<const float*>(x + r * x_stride)[i]);
        for (int p = 0; p < P; ++p) acc[r][p] = fma(weight[p], value, acc[r][p]);
      }
    }
  }
};

// Panel: [k / 2][16][2] bf16. Activations are rounded to bf16.
struct BFloat16Format {
  static constexpr int kMaxRows = kFloatRows, kMaxPanels = kFloatPanels;

  static int64_t panel_bytes(int k) { return round_up(k, 2) * 32; }

#if defined(PAGELET_BF16_DOT)
  using Activation = uint16_t;
#else
  using Activation = float;
#endif
  static int64_t row_bytes(int k) { return round_up(k, 2) * sizeof(Activation); }

  template <class T>
  static void prepare(const T* x, int k, uint8_t* row) {
    auto* out = reinterpret_cast<Activation*>(row);
    out[round_up(k, 2) - 1] = 0;
    for_lanes(k, [&](int64_t i, int count) {
      uint16_t rounded[16];
      store(rounded, load_up_to(x + i, count));
      store_up_to(out + i, load(rounded), count);
    });
  }

  template <int R, int P>
  static PAGELET_INLINE void tile(const uint8_t* w, const uint8_t* x, int64_t x_stride, int k,
                                  f32x16 (&acc)[R][P]) {
    const int64_t panel = panel_bytes(k);
    for (int i = 0; i < (k + 1) / 2; ++i) {
      const uint8_t* const line = w + int64_t{64} * i;
      const uint8_t* const ahead = lines_ahead<P>(w, line, panel);
      bytes64 weight[P];
      for (int p = 0; p < P; ++p) {
        weight[p] = load_bytes(line + p * panel);
        prefetch(ahead + p * panel);
      }
      for (int r = 0; r < R; ++r) {
        const auto* pair = reinterpret_cast<const Activation*>(x + r * x_stride) + 2 * i;
#if defined(PAGELET_BF16_DOT)
        const bf16_pair value = broadcast_bf16_pair(pair);
        for (int p = 0; p < P; ++p) acc[r][p] = dot_bf16(acc[r][p], weight[p], value);
#else
        const f32x16 first = set1(pair[0]), second = set1(pair[1]);
        for (int p = 0; p < P; ++p) {
          acc[r][p] = fma(low_bf16(weight[p]), first, acc[r][p]);
          acc[r][p] = fma(high_bf16(weight[p]), second, acc[r][p]);
        }
#endif
      }
    }
  }
};

// Integer formats work in groups of 32 inputs with a scale of each output and group, and in blocks
// of two groups, which are whole cache lines. Activations are quantised to int8 by row and group:
// the products inside a group are summed exactly, and the groups in order in float.
//
// A block is the first group's weights, the numbers of both groups, and the second group's weights:
// its lines are read one after another.
constexpr int kGroup = 32;
constexpr int kBlock = 64;

// The lines of a block that are asked for with a group.
template <int kBlockBytes>
struct GroupLines {
  static_assert(kBlockBytes % 64 == 0);
  static constexpr int kAll = kBlockBytes / 64, kFirst = (kAll + 1) / 2;
  const uint8_t* first;
  int count;
  GroupLines(const uint8_t* block, int64_t group)
      : first(block + (group % 2) * kFirst * 64), count(group % 2 ? kAll - kFirst : kFirst) {}
};

struct IntActivations {
  static int64_t padded(int k) { return round_up(k, kBlock); }
  static int64_t groups(int k) { return padded(k) / kGroup; }
  static int64_t row_bytes(int k) { return padded(k) + groups(k) * 8; }

  // A row is [padded] int8, then [groups] float scales, then [groups] correction terms.
  template <class T, class Correction>
  static void quantise(const T* x, int k, uint8_t* row, const Correction& correction) {
    auto* values = reinterpret_cast<int8_t*>(row);
    auto* scales = reinterpret_cast<float*>(row + padded(k));
    auto* terms = scales + groups(k);
    for (int64_t g = 0; g < groups(k); ++g) {
      const int64_t start = g * kGroup;
      const auto lanes = [&](int64_t i) {
        return i + kLanes <= k ? load(x + i) : i < k ? load_first(x + i, int(k - i)) : zero();
      };
      const f32x16 a = lanes(start), b = lanes(start + kLanes);
      alignas(64) int32_t largest[kLanes];  // compared as integers, a NaN is the largest
      store_i32(largest, max_i32(abs_bits(a), abs_bits(b)));
      int32_t bits = 0;
      for (int32_t candidate : largest) bits = bits < candidate ? candidate : bits;
      const float bound = __builtin_bit_cast(float, bits);
      const f32x16 inverse = set1(bound > 0 ? 127.0f / bound : 0.0f);
      const i32x16 qa = to_int(mul(a, inverse)), qb = to_int(mul(b, inverse));
      store_i8(values + start, qa);
      store_i8(values + start + kLanes, qb);
      alignas(64) int32_t partial[kLanes];
      store_i32(partial, add_i32(qa, qb));
      int32_t sum = 0;
      for (int32_t value : partial) sum += value;
      scales[g] = bound / 127.0f;
      const auto term = correction(sum, scales[g]);
      __builtin_memcpy(terms + g, &term, 4);
    }
  }

  // Of one row.
  struct View {
    const uint8_t* values;
    const float* scales;
    const void* terms;
    View(const uint8_t* row, int k)
        : values(row),
          scales(reinterpret_cast<const float*>(row + padded(k))),
          terms(scales + groups(k)) {}
  };
};

struct Float16Scales {
  static constexpr int kBytes = 2 * kLanes;
  static f32x16 load_scales(const uint8_t* p) {
    return load_f16(reinterpret_cast<const uint16_t*>(p));
  }
};
struct Float32Scales {
  static constexpr int kBytes = 4 * kLanes;
  static f32x16 load_scales(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
};

// Group: [8][16][4] bytes weight + 128, and numbers [16] scales. weight = scale * int8.
template <class Scales>
struct Int8Format {
  static constexpr int kMaxRows = kIntRows, kMaxPanels = kIntPanels;
  static constexpr int kGroupBytes = 512, kNumberBytes = Scales::kBytes;
  static constexpr int kBlockBytes = 2 * (kGroupBytes + kNumberBytes);

  static int64_t panel_bytes(int k) { return round_up(k, kBlock) / kBlock * kBlockBytes; }
  static int64_t row_bytes(int k) { return IntActivations::row_bytes(k); }

  template <class T>
  static void prepare(const T* x, int k, uint8_t* row) {
    IntActivations::quantise(x, k, row, [](int32_t sum, float) { return -kDotOffset * sum; });
  }

  template <int R, int P>
  static PAGELET_INLINE void tile(const uint8_t* w, const uint8_t* x, int64_t x_stride, int k,
                                  f32x16 (&acc)[R][P]) {
    const int64_t panel = panel_bytes(k);
    const IntActivations::View row(x, k);
    const int64_t groups = IntActivations::groups(k);
    for (int64_t g = 0; g < groups; ++g) {
      const uint8_t* block = w + (g / 2) * kBlockBytes;
      const uint8_t* data = block + (g % 2) * (kGroupBytes + 2 * kNumberBytes);
      const GroupLines<kBlockBytes> lines(block, g);
      const uint8_t* const ahead = lines_ahead<P>(w, lines.first, panel);
      i32x16 dot[R][P];
      for (int r = 0; r < R; ++r) {
        const auto* term = static_cast<const uint8_t*>(row.terms) + r * x_stride + 4 * g;
        for (int p = 0; p < P; ++p) dot[r][p] = broadcast_4_bytes(term);
      }
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        bytes64 weight[P];
        for (int p = 0; p < P; ++p) {
          weight[p] = load_bytes(data + p * panel + 64 * j);
          prefetch(ahead + p * panel + 64 * j);
        }
        for (int r = 0; r < R; ++r) {
          const bytes64 value = broadcast_4_bytes(row.values + r * x_stride + kGroup * g + 4 * j);
          for (int p = 0; p < P; ++p) dot[r][p] = dot_offset_s8(dot[r][p], weight[p], value);
        }
      }
      const uint8_t* scales = block + kGroupBytes + (g % 2) * kNumberBytes;
      for (int p = 0; p < P; ++p) {
        for (int line = 8; line < lines.count; ++line) prefetch(ahead + p * panel + 64 * line);
        const f32x16 weight_scale = Scales::load_scales(scales + p * panel);
        for (int r = 0; r < R; ++r) {
          const auto* row_scales = reinterpret_cast<const uint8_t*>(row.scales) + r * x_stride;
          const f32x16 scale = mul(weight_scale, set1(reinterpret_cast<const float*>(row_scales)[g]));
          acc[r][p] = fma(to_float(dot[r][p]), scale, acc[r][p]);
        }
      }
    }
  }
};

// Group: [4][16][4] bytes, the low nibbles of byte rows 0..3 before the high ones, and numbers [16]
// scales, [16] minima. weight = scale * nibble + minimum.
template <class Scales>
struct Int4Format {
  static constexpr int kMaxRows = kIntRows, kMaxPanels = kIntPanels;
  static constexpr int kGroupBytes = 256, kNumberBytes = 2 * Scales::kBytes;
  static constexpr int kBlockBytes = 2 * (kGroupBytes + kNumberBytes);

  static int64_t panel_bytes(int k) { return round_up(k, kBlock) / kBlock * kBlockBytes; }
  static int64_t row_bytes(int k) { return IntActivations::row_bytes(k); }

  template <class T>
  static void prepare(const T* x, int k, uint8_t* row) {
    IntActivations::quantise(x, k, row, [](int32_t sum, float scale) { return scale * sum; });
  }

  template <int R, int P>
  static PAGELET_INLINE void tile(const uint8_t* w, const uint8_t* x, int64_t x_stride, int k,
                                  f32x16 (&acc)[R][P]) {
    const int64_t panel = panel_bytes(k);
    const IntActivations::View row(x, k);
    const int64_t groups = IntActivations::groups(k);
    for (int64_t g = 0; g < groups; ++g) {
      const uint8_t* block = w + (g / 2) * kBlockBytes;
      const uint8_t* data = block + (g % 2) * (kGroupBytes + 2 * kNumberBytes);
      const GroupLines<kBlockBytes> lines(block, g);
      const uint8_t* const ahead = lines_ahead<P>(w, lines.first, panel);
      i32x16 dot[R][P];
      for (int r = 0; r < R; ++r) {
        for (int p = 0; p < P; ++p) dot[r][p] = set1_i32(0);
      }
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        bytes64 low[P], high[P];
        for (int p = 0; p < P; ++p) {
          const bytes64 weight = load_bytes(data + p * panel + 64 * j);
          prefetch(ahead + p * panel + 64 * j);
          low[p] = low_nibbles(weight);
          high[p] = high_nibbles(weight);
        }
        for (int r = 0; r < R; ++r) {
          const uint8_t* values = row.values + r * x_stride + kGroup * g + 4 * j;
          const bytes64 first = broadcast_4_bytes(values), second = broadcast_4_bytes(values + 16);
          for (int p = 0; p < P; ++p) {
            dot[r][p] = dot_u8_s8(dot[r][p], low[p], first);
            dot[r][p] = dot_u8_s8(dot[r][p], high[p], second);
          }
        }
      }
      const uint8_t* scales = block + kGroupBytes + (g % 2) * kNumberBytes;
      const uint8_t* minima = scales + Scales::kBytes;
      for (int p = 0; p < P; ++p) {
        for (int line = 4; line < lines.count; ++line) prefetch(ahead + p * panel + 64 * line);
        const f32x16 weight_scale = Scales::load_scales(scales + p * panel);
        const f32x16 minimum = Scales::load_scales(minima + p * panel);
        for (int r = 0; r < R; ++r) {
          const auto* row_scales = reinterpret_cast<const uint8_t*>(row.scales) + r * x_stride;
          const auto* terms = static_cast<const uint8_t*>(row.terms) + r * x_stride;
          const f32x16 scale = mul(weight_scale, set1(reinterpret_cast<const float*>(row_scales)[g]));
          acc[r][p] = fma(to_float(dot[r][p]), scale, acc[r][p]);
          acc[r][p] = fma(minimum, set1(reinterpret_cast<const float*>(terms)[g]), acc[r][p]);
        }
      }
    }
  }
};

}  // namespace PAGELET_TIER
