// Forbids tokens by rows of bits.
#include <algorithm>
#include <limits>

#include "../cpu/ops.h"
#include "../cpu/rows.h"

namespace PAGELET_TIER {

void token_mask(const pagelet::TokenMaskArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  for_rows(pool, rows, args.vocab_size, [&](int64_t i) {
    float* const logits = args.logits + args.row_index[i] * args.logits_stride;
    const uint32_t* const words = args.words + i * args.num_words;
    const int64_t whole = std::min(args.vocab_size / 32, args.num_words);
    for (int64_t w = 0; w < whole; ++w) {
      const uint32_t word = words[w];
      for (int bit = 0; bit < 32; ++bit) {  // without branches, to be vectorised
        logits[w * 32 + bit] = word >> bit & 1 ? logits[w * 32 + bit] : kForbidden;
      }
    }
    for (int64_t token = whole * 32; token < args.vocab_size; ++token) {
      const uint32_t word = token / 32 < args.num_words ? words[token / 32] : 0;
      if (!(word >> token % 32 & 1)) logits[token] = kForbidden;
    }
  });
}

}  // namespace PAGELET_TIER
