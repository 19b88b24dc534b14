// The linear layer on packed weights: rows are prepared once, then pieces of (rows x panels) are
// computed on all threads. Which piece a thread takes, and how rows are grouped into tiles, has no
// influence on any sum.
#include <algorithm>

#include "../cpu/ops.h"
#include "../cpu/rows.h"
#include "cpu_formats.h"

namespace PAGELET_TIER {
namespace {

using pagelet::LinearArgs;

// Prepared rows of one piece of work fit into half of a core's L2 cache.
constexpr int64_t kRowBlockBytes = 256 << 10;
constexpr int kPiecesPerThread = 8;

// One call's numbers.
struct Problem {
  const LinearArgs& args;
  const uint8_t* prepared;
  int64_t row_stride;  // bytes between prepared rows
};

template <class T, int R, int P>
void store_tile(const LinearArgs& args, int64_t row, int64_t panel, const f32x16 (&acc)[R][P]) {
  for (int p = 0; p < P; ++p) {
    const int64_t first = (panel + p) * kLanes;
    const int count = static_cast<int>(std::min<int64_t>(kLanes, args.n - first));
    const f32x16 bias = args.bias ? load_up_to(args.bias + first, count) : zero();
    for (int r = 0; r < R; ++r) {
      T* y = static_cast<T*>(args.y) + (row + r) * args.y_stride + first;
      f32x16 value = args.bias ? add(acc[r][p], bias) : acc[r][p];
      if (args.accumulate) value = add(load_up_to(y, count), value);
      store_up_to(y, value, count);
    }
  }
}

template <class Format, int R, int P>
void compute_tile(const Problem& problem, int64_t row, int64_t panel) {
  const LinearArgs& args = problem.args;
  f32x16 acc[R][P];
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) acc[r][p] = zero();
  }
  Format::template tile<R, P>(
      static_cast<const uint8_t*>(args.weight) + panel * Format::panel_bytes(args.k),
      problem.prepared + row * problem.row_stride, problem.row_stride, args.k, acc);
  if (args.y_dtype == pagelet::kFloat32) {
    store_tile<float>(args, row, panel, acc);
  } else {
    store_tile<uint16_t>(args, row, panel, acc);
  }
}

// Calls compute_tile<Format, rows, panels> with numbers known at compile time.
template <class Format, int R, int P>
void dispatch(int rows, int panels, const Problem& problem, int64_t row, int64_t panel) {
  if constexpr (R > 1) {
    if (rows < R) return dispatch<Format, R - 1, P>(rows, panels, problem, row, panel);
  }
  if constexpr (P > 1) {
    if (panels < P) return dispatch<Format, R, P - 1>(rows, panels, problem, row, panel);
  }
  compute_tile<Format, R, P>(problem, row, panel);
}

// All tiles of some rows and panels; a group of panels stays in cache for all rows.
template <class Format>
void compute_piece(const Problem& problem, Range rows, Range panels) {
  const bool single = rows.size() == 1;
  const int64_t panel_tiles =
      ceil_div(panels.size(), single ? kStreams : Format::kMaxPanels);
  const int64_t row_tiles = ceil_div(rows.size(), Format::kMaxRows);
  for (int64_t i = 0; i < panel_tiles; ++i) {
    const Range tile_panels = panels.part(i, panel_tiles);
    const int panel_count = static_cast<int>(tile_panels.size());
    for (int64_t j = 0; j < row_tiles; ++j) {
      const Range tile_rows = rows.part(j, row_tiles);
      if (single) {
        dispatch<Format, 1, kStreams>(1, panel_count, problem, tile_rows.first,
                                              tile_panels.first);
      } else {
        dispatch<Format, Format::kMaxRows, Format::kMaxPanels>(
            static_cast<int>(tile_rows.size()), panel_count, problem, tile_rows.first,
            tile_panels.first);
      }
    }
  }
}

template <class Format>
void prepare_row(const LinearArgs& args, int64_t row, uint8_t* prepared) {
  if (args.x_dtype == pagelet::kFloat32) {
    Format::prepare(static_cast<const float*>(args.x) + row * args.x_stride, args.k, prepared);
  } else {
    Format::prepare(static_cast<const uint16_t*>(args.x) + row * args.x_stride, args.k, prepared);
  }
}

template <class Format>
void run(const LinearArgs& args, int64_t num_rows, pagelet::ThreadPool& pool) {
  // An odd number of cache lines, so that the rows of a tile do not share a set of the L1 cache.
  const int64_t row_stride = (ceil_div(Format::row_bytes(args.k), 64) | 1) * 64;
  auto* const prepared = static_cast<uint8_t*>(pagelet::scratch(num_rows * row_stride));
  const Problem problem{args, prepared, row_stride};

  for_rows(pool, num_rows, args.k, [&](int64_t row) {
    prepare_row<Format>(args, row, prepared + row * row_stride);
  });

  const Range all_rows{0, num_rows};
  const Range all_panels{0, ceil_div(args.n, kLanes)};
  const int64_t row_blocks = ceil_div(num_rows * row_stride, kRowBlockBytes);
  const int64_t threads = pool.threads();
  const int panels_at_once = num_rows == 1 ? kStreams : Format::kMaxPanels;
  const int64_t shares = std::clamp<int64_t>(all_panels.size() / (threads * panels_at_once), 1,
                                             kPiecesPerThread);
  const int64_t panel_pieces = std::min(all_panels.size(), threads * shares);
  pool.parallel_for(row_blocks * panel_pieces, [&](int64_t i) {
    compute_piece<Format>(problem, all_rows.part(i / panel_pieces, row_blocks),
                          all_panels.part(i % panel_pieces, panel_pieces));
  });
}

}  // namespace

// Numbered as in PackedLinear.
void linear(const LinearArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  switch (args.format) {
    case 0: return run<Float32Format>(args, rows, pool);
    case 1: return run<BFloat16Format>(args, rows, pool);
    case 2: return run<Int8Format<Float16Scales>>(args, rows, pool);
    case 3: return run<Int8Format<Float32Scales>>(args, rows, pool);
    case 4: return run<Int4Format<Float16Scales>>(args, rows, pool);
    case 5: return run<Int4Format<Float32Scales>>(args, rows, pool);
  }
}

}  // namespace PAGELET_TIER
