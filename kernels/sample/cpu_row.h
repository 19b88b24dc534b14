// A row of logits in blocks, each with its maximum: what most blocks are told apart by.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "../cpu/simd.h"

namespace PAGELET_TIER {

constexpr int kBlockLogits = 256;  // logits

class LogitRow {
 public:
  // `maxima` is memory for num_blocks(size) rounded up to whole blocks.
  LogitRow(const float* logits, int64_t size, float* maxima)
      : logits_(logits), whole_(size / kBlockLogits), blocks_(num_blocks(size)), maxima_(maxima) {
    std::fill(tail_, tail_ + kBlockLogits, -kInfinity);
    std::copy(logits + whole_ * kBlockLogits, logits + size, tail_);
    std::fill(maxima, maxima + num_blocks(blocks_) * kBlockLogits, -kInfinity);
    i32x16 largest_bits = set1_i32(0);
    for (int64_t b = 0; b < blocks_; ++b) {
      const float* p = block(b);
      f32x16 largest = set1(-kInfinity);
      for (int i = 0; i < kBlockLogits; i += 16) {
        const f32x16 v = load(p + i);
        largest = max(largest, v);
        largest_bits = max_i32(largest_bits, abs_bits(v));
      }
      maxima[b] = fold_lanes(largest, [](float x, float y) { return x > y ? x : y; });
      maximum_ = std::max(maximum_, maxima[b]);
    }
    alignas(64) int32_t lanes[16];
    store_i32(lanes, largest_bits);
    has_nan_ = *std::max_element(lanes, lanes + 16) > 0x7f800000;  // the bits of infinity
  }

  static int64_t num_blocks(int64_t size) { return (size + kBlockLogits - 1) / kBlockLogits; }

  int64_t blocks() const { return blocks_; }
  // Logits of a block; beyond the row's end, -inf.
  const float* block(int64_t b) const { return b < whole_ ? logits_ + b * kBlockLogits : tail_; }
  const float* maxima() const { return maxima_; }
  float maximum() const { return maximum_; }
  bool has_nan() const { return has_nan_; }
  // Whether there is a NaN, a +inf or no finite logit at all.
  bool broken() const { return has_nan_ || !std::isfinite(maximum_); }

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();

  const float* logits_;
  int64_t whole_, blocks_;
  float* maxima_;
  float maximum_ = -kInfinity;
  bool has_nan_;
  alignas(64) float tail_[kBlockLogits];
};

}  // namespace PAGELET_TIER
