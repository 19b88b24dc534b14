// Sampling as pagelet.kernels.sample defines it, a row after another, without a sort.
//
// Weights are monotone in the logit. So a block of logits whose largest one weighs too little is
// passed over, and the k-th largest of the blocks' maxima bounds the k-th largest logit from below.
#include <cmath>

#include "../cpu/ops.h"
#include "../cpu/rows.h"
#include "../cpu/simd.h"
#include "cpu_row.h"
#include "select.h"

namespace PAGELET_TIER {
namespace {

using pagelet::SampleArgs;

constexpr int kUnitBits = 40;
constexpr int64_t kUnit = int64_t{1} << kUnitBits;
constexpr double kLog2E = 1.4426950408889634;
// 2 ** f on [0, 1], as in weights.py.
constexpr float kPowerOfTwo[] = {1.0f,
                                 0.6931470036506653f,
                                 0.2402295172214508f,
                                 0.05548415333032608f,
                                 0.009678063914179802f,
                                 0.00124408770352602f,
                                 0.00021715025650337338f};
constexpr int kDegree = 6;

// A block's weights, in the operations of weights.py.
void weigh(const float* logits, float maximum, float scale, int64_t* weights) {
  alignas(64) float powers[kBlockLogits];
  alignas(64) int32_t exponents[kBlockLogits];
  for (int i = 0; i < kBlockLogits; i += 16) {
    const f32x16 scaled = mul(sub(load(logits + i), set1(maximum)), set1(scale));
    const f32x16 exponent = max(scaled, set1(-(kUnitBits + 2.0f)));
    const f32x16 whole = floor(exponent), fraction = sub(exponent, whole);
    f32x16 power = set1(kPowerOfTwo[kDegree]);
    for (int d = kDegree - 1; d >= 0; --d) power = add(mul(power, fraction), set1(kPowerOfTwo[d]));
    store(powers + i, power);
    store_i32(exponents + i, to_int(whole));
  }
  for (int i = 0; i < kBlockLogits; ++i) {
    // Of a power in [1, 2], bits less the exponent of 1/2 are power * 2 ** 23.
    const uint32_t mantissa = __builtin_bit_cast(uint32_t, powers[i]) - (126u << 23);
    weights[i] = static_cast<int64_t>(uint64_t{mantissa} << (kUnitBits - 23) >> -exponents[i]);
  }
}

int64_t sum_from(const int64_t* weights, int64_t count, int64_t least) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += weights[i] >= least ? weights[i] : 0;
  return sum;
}

// Memory for a row's work; sizes are in whole blocks.
struct Memory {
  explicit Memory(int64_t vocab_size) {
    const int64_t blocks = LogitRow::num_blocks(vocab_size);
    const int64_t size = blocks * kBlockLogits;
    const int64_t padded = LogitRow::num_blocks(blocks) * kBlockLogits;
    weights = static_cast<int64_t*>(
        pagelet::scratch((2 * size + kCopySlack + 3 * padded) * 8 + padded * 4));
    bounds = weights + size;
    sums = bounds + padded;
    active = sums + padded;
    candidates = active + padded;
    maxima = reinterpret_cast<float*>(candidates + size + kCopySlack);
  }
  int64_t* weights;     // [size] of the active blocks
  int64_t* bounds;      // [padded] each block's largest weight
  int64_t* sums;        // [padded] of the active blocks
  int64_t* active;      // [padded] which blocks they are
  int64_t* candidates;  // [size + kCopySlack]
  float* maxima;        // [padded]
};

// Draws from one row that is not broken.
class Draw {
 public:
  Draw(const LogitRow& logits, int64_t vocab_size, double temperature, const Memory& memory)
      : logits_(logits),
        vocab_size_(vocab_size),
        scale_(static_cast<float>(kLog2E / temperature)),
        memory_(memory) {
    for (int64_t b = 0; b < logits.blocks(); b += kBlockLogits) {
      weigh(logits.maxima() + b, logits.maximum(), scale_, memory.bounds + b);
    }
  }

  int64_t run(double uniform, double min_p, int64_t top_k, double top_p) {
    least_ = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(min_p * kUnit)));
    const bool limits_count = 0 < top_k && top_k < vocab_size_;
    if (limits_count && top_k <= logits_.blocks()) {
      std::copy(memory_.bounds, memory_.bounds + logits_.blocks(), memory_.candidates);
      least_ = std::max(least_, kth_largest(logits_.blocks(), top_k));
    }
    weigh_active_blocks();
    if (limits_count) {
      const int64_t count = collect(least_);
      if (count > top_k) raise_least(kth_largest(count, top_k));
    }
    if (top_p < 1.0) raise_least(nucleus_threshold(top_p));
    return draw(uniform);
  }

 private:
  void weigh_active_blocks() {
    active_ = 0;
    for (int64_t b = 0; b < logits_.blocks(); ++b) {
      if (memory_.bounds[b] < least_) continue;
      int64_t* const weights = memory_.weights + active_ * kBlockLogits;
      weigh(logits_.block(b), logits_.maximum(), scale_, weights);
      memory_.sums[active_] = sum_from(weights, kBlockLogits, least_);
      memory_.active[active_++] = b;
    }
  }

  // Drops the weights below a threshold.
  void raise_least(int64_t threshold) {
    if (threshold <= least_) return;
    least_ = threshold;
    for (int64_t a = 0; a < active_; ++a) {
      memory_.sums[a] = memory_.bounds[memory_.active[a]] < least_
                            ? 0
                            : sum_from(memory_.weights + a * kBlockLogits, kBlockLogits, least_);
    }
  }

  int64_t total() const { return sum_from(memory_.sums, active_, 0); }

  // Fills `candidates` with the weights of at least `least`.
  int64_t collect(int64_t least) {
    int64_t count = 0;
    for (int64_t a = 0; a < active_; ++a) {
      if (memory_.bounds[memory_.active[a]] < least) continue;
      count += copy_range(memory_.weights + a * kBlockLogits, kBlockLogits, least, INT64_MAX,
                          memory_.candidates + count);
    }
    return count;
  }

  int64_t kth_largest(int64_t count, int64_t k) {
    return select_from_top(memory_.candidates, count, k, [](int64_t) { return int64_t{1}; });
  }

  int64_t nucleus_threshold(double top_p) {
    const int64_t mass = total();
    const auto needed = static_cast<int64_t>(std::ceil(top_p * static_cast<double>(mass)));
    // Weights that a nucleus can do without even if all of the vocabulary had them.
    const int64_t spare = std::clamp<int64_t>(mass - needed, 0, mass - 1);
    const int64_t count = collect(std::max(least_, spare / vocab_size_ + 1));
    return select_from_top(memory_.candidates, count, std::max<int64_t>(1, needed),
                           [](int64_t weight) { return weight; });
  }

  int64_t draw(double uniform) {
    const int64_t mass = total();
    const auto scaled = static_cast<int64_t>(std::floor(uniform * static_cast<double>(mass)));
    int64_t left = std::min(scaled, mass - 1);
    int64_t a = 0;
    for (; memory_.sums[a] <= left; ++a) left -= memory_.sums[a];
    const int64_t* const weights = memory_.weights + a * kBlockLogits;
    int i = 0;
    for (;; ++i) {
      if (weights[i] < least_) continue;
      if (weights[i] > left) break;
      left -= weights[i];
    }
    return memory_.active[a] * kBlockLogits + i;
  }

  const LogitRow& logits_;
  const int64_t vocab_size_;
  const float scale_;
  const Memory memory_;
  int64_t least_ = 1;   // weights below are dropped
  int64_t active_ = 0;  // blocks with any weight that is not
};

int64_t first_of_largest(const LogitRow& logits) {
  const float largest = logits.maximum();
  const int64_t b = std::find(logits.maxima(), logits.maxima() + logits.blocks(), largest) -
                    logits.maxima();
  const float* const block = logits.block(b);
  return b * kBlockLogits + (std::find(block, block + kBlockLogits, largest) - block);
}

}  // namespace

void sample(const SampleArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  for_rows(pool, rows, args.vocab_size, [&](int64_t row) {
    const Memory memory(args.vocab_size);
    const LogitRow logits(args.logits + row * args.logits_stride, args.vocab_size, memory.maxima);
    args.broken[row] = logits.broken();
    if (logits.broken()) {
      args.token_ids[row] = 0;
    } else if (!args.temperature || args.temperature[row] == 0.0) {
      args.token_ids[row] = first_of_largest(logits);
    } else {
      args.token_ids[row] = Draw(logits, args.vocab_size, args.temperature[row], memory)
                                .run(args.uniforms[row], args.min_p ? args.min_p[row] : 0.0,
                                     args.top_k ? args.top_k[row] : 0,
                                     args.top_p ? args.top_p[row] : 1.0);
    }
  });
}

}  // namespace PAGELET_TIER
