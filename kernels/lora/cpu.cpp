// What low-rank adapters add to a linear layer's outputs: rows of one adapter come in blocks, a
// block's rows are multiplied with its adapter's first matrix, and the products with its second.
// The sums of a row run in one order, whatever the other rows are.
#include <algorithm>

#include "../cpu/ops.h"
#include "../linear/cpu_tiles.h"

namespace PAGELET_TIER {
namespace {

using pagelet::LoraArgs;
using pagelet::LoraMatrices;

constexpr int64_t kPanelsOfAPiece = 16;

struct Block {
  int32_t slot, first, count;  // of an adapter, and of the rows in `row_ids`
};

// One call's numbers. Prepared rows and products are by place in `row_ids`.
struct Problem {
  const LoraArgs& args;
  const Block* blocks;
  int64_t num_blocks;
  uint8_t* prepared;
  int64_t prepared_stride;
  uint8_t* products;
  int64_t product_stride, part_stride, sums_bytes;

  const LoraMatrices& matrices(const Block& block, int64_t part) const {
    return args.matrices[int64_t{block.slot} * args.num_parts + part];
  }
  // Of one row with a first matrix, as it is, and as prepared for the second.
  float* sums(int64_t place, int64_t part) const {
    return reinterpret_cast<float*>(products + place * product_stride + part * part_stride);
  }
  uint8_t* product(int64_t place, int64_t part) const {
    return reinterpret_cast<uint8_t*>(sums(place, part)) + sums_bytes;
  }
};

// A block's rows times the first matrix of one part.
template <class Format>
void shrink(const Problem& problem, const Block& block, int64_t part) {
  const LoraMatrices& matrices = problem.matrices(block, part);
  const int rank = static_cast<int>(matrices.rank);
  if (rank == 0) return;
  const PreparedRows x{problem.prepared + block.first * problem.prepared_stride,
                       problem.prepared_stride};
  multiply<Format>(matrices.a, x, problem.args.k, {0, block.count}, {0, ceil_div(rank, kLanes)},
                   [&](int64_t row, int64_t panel, f32x16 sums) {
                     store(problem.sums(block.first + row, part) + panel * kLanes, sums);
                   });
  for (int64_t row = 0; row < block.count; ++row) {
    const int64_t place = block.first + row;
    Format::prepare(problem.sums(place, part), rank, problem.product(place, part));
  }
}

// Adds to some columns of a part, panels of the second matrix, what comes of a block's products.
template <class T, class Format>
void expand(const Problem& problem, const Block& block, int64_t part, int64_t column,
            Range panels) {
  const LoraArgs& args = problem.args;
  const LoraMatrices& matrices = problem.matrices(block, part);
  if (matrices.rank == 0) return;
  const PreparedRows x{problem.product(block.first, part), problem.product_stride};
  multiply<Format>(matrices.b, x, static_cast<int>(matrices.rank), {0, block.count}, panels,
                   [&](int64_t row, int64_t panel, f32x16 sums) {
                     const int64_t first = panel * kLanes;
                     const int count = static_cast<int>(
                         std::min<int64_t>(kLanes, args.part_sizes[part] - first));
                     T* y = static_cast<T*>(args.y) +
                            args.row_ids[block.first + row] * args.y_stride + column + first;
                     store_up_to(y, add(load_up_to(y, count), sums), count);
                   });
}

template <class T, class Format>
void run(const LoraArgs& args, pagelet::ThreadPool& pool) {
  const int64_t num_blocks = args.num_blocks[0];
  if (num_blocks == 0) return;
  Problem problem{args, reinterpret_cast<const Block*>(args.blocks), num_blocks};
  const Block& last = problem.blocks[num_blocks - 1];
  const int64_t num_rows = last.first + last.count;
  int64_t rank = 0;
  for (int64_t i = 0; i < num_blocks; ++i) {
    for (int64_t part = 0; part < args.num_parts; ++part) {
      rank = std::max(rank, problem.matrices(problem.blocks[i], part).rank);
    }
  }
  if (rank == 0) return;
  problem.prepared_stride = prepared_stride<Format>(args.k);
  problem.sums_bytes = round_up(rank, kLanes) * 4;
  problem.part_stride =
      problem.sums_bytes + round_up(Format::row_bytes(static_cast<int>(rank)), 64);
  problem.product_stride = args.num_parts * problem.part_stride;
  problem.prepared = static_cast<uint8_t*>(
      pagelet::scratch(num_rows * (problem.prepared_stride + problem.product_stride)));
  problem.products = problem.prepared + num_rows * problem.prepared_stride;

  for_rows(pool, num_rows, args.k, [&](int64_t place) {
    Format::prepare(static_cast<const T*>(args.x) + args.row_ids[place] * args.x_stride, args.k,
                    problem.prepared + place * problem.prepared_stride);
  });
  pool.parallel_for(num_blocks * args.num_parts, [&](int64_t i) {
    shrink<Format>(problem, problem.blocks[i / args.num_parts], i % args.num_parts);
  });
  const auto pieces_of = [&](int64_t part) {
    return ceil_div(ceil_div(args.part_sizes[part], kLanes), kPanelsOfAPiece);
  };
  int64_t pieces = 0;
  for (int64_t part = 0; part < args.num_parts; ++part) pieces += pieces_of(part);
  pool.parallel_for(num_blocks * pieces, [&](int64_t i) {
    int64_t piece = i % pieces, part = 0, column = 0;
    for (; piece >= pieces_of(part); ++part) {
      piece -= pieces_of(part);
      column += args.part_sizes[part];
    }
    const Range panels{0, ceil_div(args.part_sizes[part], kLanes)};
    expand<T, Format>(problem, problem.blocks[i / pieces], part, column,
                      panels.part(piece, pieces_of(part)));
  });
}

}  // namespace

void lora(const LoraArgs& args, int64_t, pagelet::ThreadPool& pool) {
  if (args.dtype == pagelet::kFloat32) return run<float, Float32Format>(args, pool);
  run<uint16_t, BFloat16Format>(args, pool);
}

}  // namespace PAGELET_TIER
