// Logprobs of a row: exponentials are summed over lanes within a block, in double over blocks.
#include <cmath>
#include <functional>

#include "../cpu/ops.h"
#include "../cpu/rows.h"
#include "../cpu/simd.h"
#include "../sample/cpu_row.h"

namespace PAGELET_TIER {
namespace {

using pagelet::TopLogprobsArgs;

struct Token {
  float logit;
  int64_t id;
  bool operator<(const Token& other) const {  // the likelier first
    return logit != other.logit ? logit > other.logit : id < other.id;
  }
};

double log_of_sum(const LogitRow& logits) {
  const f32x16 maximum = set1(logits.maximum());
  double sum = 0;
  for (int64_t b = 0; b < logits.blocks(); ++b) {
    f32x16 of_block = zero();
    for (int i = 0; i < kBlockLogits; i += 16) {
      of_block = add(of_block, exp(sub(load(logits.block(b) + i), maximum)));
    }
    sum += sum_lanes(of_block);
  }
  return std::log(sum);
}

int64_t count_above(const LogitRow& logits, float bound) {
  int64_t count = 0;
  for (int64_t b = 0; b < logits.blocks(); ++b) {
    if (!(logits.maxima()[b] > bound)) continue;
    int32_t of_block = 0;
    for (int i = 0; i < kBlockLogits; ++i) of_block += logits.block(b)[i] > bound;
    count += of_block;
  }
  return count;
}

// Puts the `num_top` most likely tokens first; `tokens` has room for the vocabulary.
void find_top(const LogitRow& logits, int64_t vocab_size, int64_t num_top, float* bounds,
              Token* tokens) {
  float bound = -std::numeric_limits<float>::infinity();
  if (num_top <= logits.blocks()) {
    // As many blocks have a logit of at least this.
    std::copy(logits.maxima(), logits.maxima() + logits.blocks(), bounds);
    std::nth_element(bounds, bounds + num_top - 1, bounds + logits.blocks(), std::greater<>());
    bound = bounds[num_top - 1];
  }
  int64_t found = 0;
  for (int64_t b = 0; b < logits.blocks(); ++b) {
    if (logits.maxima()[b] < bound) continue;
    const int64_t first = b * kBlockLogits, end = std::min(first + kBlockLogits, vocab_size);
    for (int64_t id = first; id < end; ++id) {
      const float logit = logits.block(b)[id - first];
      if (logit >= bound) tokens[found++] = {logit, id};
    }
  }
  std::partial_sort(tokens, tokens + num_top, tokens + found);
}

}  // namespace

void top_logprobs(const TopLogprobsArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  const int64_t blocks = LogitRow::num_blocks(args.vocab_size);
  const int64_t padded = LogitRow::num_blocks(blocks) * kBlockLogits;
  for_rows(pool, rows, args.vocab_size, [&](int64_t row) {
    auto* const tokens = static_cast<Token*>(
        pagelet::scratch(args.vocab_size * sizeof(Token) + 2 * padded * sizeof(float)));
    auto* const maxima = reinterpret_cast<float*>(tokens + args.vocab_size);
    const LogitRow logits(args.logits + row * args.logits_stride, args.vocab_size, maxima);
    const int64_t chosen = args.chosen[row];
    const float of_chosen = args.logits[row * args.logits_stride + chosen];
    if (logits.broken()) {
      std::fill(tokens, tokens + args.num_top, Token{logits.maximum(), 0});
    } else if (args.num_top > 0) {
      find_top(logits, args.vocab_size, args.num_top, maxima + padded, tokens);
    }
    const double log_sum = logits.broken() ? std::nan("") : log_of_sum(logits);
    const auto put = [&](int64_t i, const Token& token) {
      const int64_t at = row * (1 + args.num_top) + i;
      args.ids[at] = token.id;
      args.logprobs[at] =
          static_cast<float>(double{token.logit} - double{logits.maximum()} - log_sum);
    };
    put(0, {of_chosen, chosen});
    for (int64_t i = 0; i < args.num_top; ++i) put(1 + i, tokens[i]);
    args.ranks[row] = 1 + count_above(logits, of_chosen);
  });
}

}  // namespace PAGELET_TIER
