// The product of prepared rows and packed panels, in tiles that the registers hold.
#pragma once

#include "../cpu/rows.h"
#include "cpu_formats.h"

namespace PAGELET_TIER {

// Prepared rows of one piece of work fit into half of a core's L2 cache.
constexpr int64_t kRowBlockBytes = 256 << 10;

// Rows as a format prepares them.
struct PreparedRows {
  uint8_t* data;
  int64_t stride;  // in bytes

  uint8_t* operator[](int64_t row) const { return data + row * stride; }
};

// The stride of rows of k inputs: an odd number of cache lines, so that the rows of a tile do not
// share a set of the L1 cache.
template <class Format>
int64_t prepared_stride(int k) {
  return (ceil_div(Format::row_bytes(k), 64) | 1) * 64;
}

template <class Format, int R, int P, class Use>
void multiply_tile(const void* weight, PreparedRows x, int k, int64_t row, int64_t panel,
                   const Use& use) {
  f32x16 acc[R][P];
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) acc[r][p] = zero();
  }
  Format::template tile<R, P>(
      static_cast<const uint8_t*>(weight) + panel * Format::panel_bytes(k), x[row], x.stride, k,
      acc);
  for (int p = 0; p < P; ++p) {
    for (int r = 0; r < R; ++r) use(row + r, panel + p, acc[r][p]);
  }
}

// Calls multiply_tile<Format, rows, panels> with numbers known at compile time.
template <class Format, int R, int P, class Use>
void dispatch_tile(int rows, int panels, const void* weight, PreparedRows x, int k, int64_t row,
                   int64_t panel, const Use& use) {
  if constexpr (R > 1) {
    if (rows < R) {
      return dispatch_tile<Format, R - 1, P>(rows, panels, weight, x, k, row, panel, use);
    }
  }
  if constexpr (P > 1) {
    if (panels < P) {
      return dispatch_tile<Format, R, P - 1>(rows, panels, weight, x, k, row, panel, use);
    }
  }
  multiply_tile<Format, R, P>(weight, x, k, row, panel, use);
}

// Calls use(row, panel, sums) for some rows and some panels of a weight with k inputs; a group of
// panels stays in cache for all rows.
template <class Format, class Use>
void multiply(const void* weight, PreparedRows x, int k, Range rows, Range panels,
              const Use& use) {
  const bool single = rows.size() == 1;
  const int64_t panel_tiles = ceil_div(panels.size(), single ? kStreams : Format::kMaxPanels);
  const int64_t row_tiles = ceil_div(rows.size(), Format::kMaxRows);
  for (int64_t i = 0; i < panel_tiles; ++i) {
    const Range tile_panels = panels.part(i, panel_tiles);
    const int panel_count = static_cast<int>(tile_panels.size());
    for (int64_t j = 0; j < row_tiles; ++j) {
      const Range tile_rows = rows.part(j, row_tiles);
      if (single) {
        dispatch_tile<Format, 1, kStreams>(1, panel_count, weight, x, k, tile_rows.first,
                                           tile_panels.first, use);
      } else {
        dispatch_tile<Format, Format::kMaxRows, Format::kMaxPanels>(
            static_cast<int>(tile_rows.size()), panel_count, weight, x, k, tile_rows.first,
            tile_panels.first, use);
      }
    }
  }
}

constexpr int kNumFormats = 6;

// Calls body(Format{}) with the format that a PackedLinear's code names.
template <class Body>
void for_format(int code, const Body& body) {
  switch (code) {
    case 0: return body(Float32Format{});
    case 1: return body(BFloat16Format{});
    case 2: return body(Int8Format<Float16Scales>{});
    case 3: return body(Int8Format<Float32Scales>{});
    case 4: return body(Int4Format<Float16Scales>{});
    case 5: return body(Int4Format<Float32Scales>{});
  }
}

}  // namespace PAGELET_TIER
