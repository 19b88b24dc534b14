// The linear layer on packed weights: rows are prepared once, then pieces of (rows x panels) are
// computed on all threads. Which piece a thread takes, and how rows are grouped into tiles, has no
// influence on any sum.
#include <algorithm>

#include "../cpu/ops.h"
#include "cpu_tiles.h"

namespace PAGELET_TIER {
namespace {

using pagelet::LinearArgs;

constexpr int kPiecesPerThread = 8;

template <class T>
void store_sums(const LinearArgs& args, int64_t row, int64_t panel, f32x16 value) {
  const int64_t first = panel * kLanes;
  const int count = static_cast<int>(std::min<int64_t>(kLanes, args.n - first));
  T* y = static_cast<T*>(args.y) + row * args.y_stride + first;
  if (args.bias) value = add(value, load_up_to(args.bias + first, count));
  if (args.accumulate) value = add(load_up_to(y, count), value);
  store_up_to(y, value, count);
}

template <class Format>
void compute_piece(const LinearArgs& args, PreparedRows x, Range rows, Range panels) {
  const auto product = [&](const auto& use) {
    multiply<Format>(args.weight, x, args.k, rows, panels, use);
  };
  if (args.y_dtype == pagelet::kFloat32) {
    product([&](int64_t row, int64_t panel, f32x16 sums) {
      store_sums<float>(args, row, panel, sums);
    });
  } else {
    product([&](int64_t row, int64_t panel, f32x16 sums) {
      store_sums<uint16_t>(args, row, panel, sums);
    });
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
  const int64_t stride = prepared_stride<Format>(args.k);
  const PreparedRows x{static_cast<uint8_t*>(pagelet::scratch(num_rows * stride)), stride};
  for_rows(pool, num_rows, args.k, [&](int64_t row) { prepare_row<Format>(args, row, x[row]); });

  const Range all_rows{0, num_rows};
  const Range all_panels{0, ceil_div(args.n, kLanes)};
  const int64_t row_blocks = ceil_div(num_rows * stride, kRowBlockBytes);
  const int64_t threads = pool.threads();
  const int panels_at_once = num_rows == 1 ? kStreams : Format::kMaxPanels;
  const int64_t shares = std::clamp<int64_t>(all_panels.size() / (threads * panels_at_once), 1,
                                             kPiecesPerThread);
  const int64_t panel_pieces = std::min(all_panels.size(), threads * shares);
  pool.parallel_for(row_blocks * panel_pieces, [&](int64_t i) {
    compute_piece<Format>(args, x, all_rows.part(i / panel_pieces, row_blocks),
                          all_panels.part(i % panel_pieces, panel_pieces));
  });
}

}  // namespace

void linear(const LinearArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  for_format(args.format, [&](auto format) { run<decltype(format)>(args, rows, pool); });
}

}  // namespace PAGELET_TIER
