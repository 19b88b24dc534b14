// RMSNorm, a vector after another; sums run over 16 lanes in order and then over the lanes.
#include <cmath>

#include "../cpu/ops.h"
#include "../cpu/rows.h"
#include "../cpu/simd.h"

namespace PAGELET_TIER {
namespace {

using pagelet::RmsNormArgs;

template <class T>
void normalise(const RmsNormArgs& args, const T* x, T* out) {
  f32x16 squares = zero();
  for_lanes(args.size, [&](int64_t i, int count) {
    const f32x16 v = load_up_to(x + i, count);
    squares = fma(v, v, squares);
  });
  const float mean = sum_lanes(squares) / static_cast<float>(args.size);
  const f32x16 root = set1(std::sqrt(mean + args.eps));
  const f32x16 offset = set1(args.weight_offset);
  for_lanes(args.size, [&](int64_t i, int count) {
    const f32x16 scale = add(load_up_to(args.weight + i, count), offset);
    store_up_to(out + i, mul(div(load_up_to(x + i, count), root), scale), count);
  });
}

template <class T>
void add_to_residual(const RmsNormArgs& args, const T* x, T* residual) {
  for_lanes(args.size, [&](int64_t i, int count) {
    const f32x16 sum = add(load_up_to(residual + i, count), load_up_to(x + i, count));
    store_up_to(residual + i, sum, count);
  });
}

template <class T>
void run(const RmsNormArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  const int64_t row_size = int64_t{args.groups} * args.size;
  for_rows(pool, rows, row_size, [&](int64_t row) {
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    T* out = static_cast<T*>(args.out) + row * args.out_stride;
    if (args.residual) {
      T* residual = static_cast<T*>(args.residual) + row * args.residual_stride;
      add_to_residual(args, x, residual);
      x = residual;
    }
    for (int64_t i = 0; i < row_size; i += args.size) normalise(args, x + i, out + i);
  });
}

}  // namespace

void rms_norm(const RmsNormArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  if (args.dtype == pagelet::kFloat32) return run<float>(args, rows, pool);
  run<uint16_t>(args, rows, pool);
}

}  // namespace PAGELET_TIER
