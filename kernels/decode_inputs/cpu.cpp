// What a step of one token a request reads beside weights and pages, from the requests' state rows,
// and the tokens that it adds to them.
#include <algorithm>

#include "../cpu/ops.h"
#include "../cpu/rows.h"

namespace PAGELET_TIER {

void decode_inputs(const pagelet::DecodeInputsArgs& args, int64_t rows, pagelet::ThreadPool&) {
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = args.row_index[i], position = args.positions[i];
    args.input_ids[i] = args.token_ids[row * args.token_ids_stride + position];
    args.query_start_loc[i + 1] = static_cast<int32_t>(i + 1);
    args.seq_lens[i] = static_cast<int32_t>(position + 1);
    for (int64_t g = 0; g < args.num_groups; ++g) {
      const pagelet::BlockTables& tables = args.groups[g];
      const int32_t* const blocks = tables.of_rows + row * tables.stride;
      tables.slots[i] =
          int64_t{blocks[position / args.block_size]} * args.block_size + position % args.block_size;
      std::copy_n(blocks, position / args.block_size + 1, tables.of_step + i * tables.stride);
    }
  }
}

void keep_tokens(const pagelet::KeepTokensArgs& args, int64_t rows, pagelet::ThreadPool&) {
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t place = args.positions[i] + 1;
    // One behind the longest context has no place: its request ends with it.
    if (place == args.token_ids_stride) continue;
    args.token_ids[args.row_index[i] * args.token_ids_stride + place] =
        static_cast<int32_t>(args.drawn[i]);
  }
}

}  // namespace PAGELET_TIER
