// Paged attention: reads the pages where they are, for prefill chunks and decodes alike.
//
// The work is cut into units, each some tokens of a request and the query heads of one KV head. A
// unit goes through its context tile by tile, and joins what it gathers as it goes. Where a few
// units are a large part of all work (a single request that decodes at a long context), their
// tiles are given to several threads and joined at the end, in the same order.
#include <vector>

#include "../cpu/ops.h"
#include "../cpu/rows.h"
#include "cpu_tile.h"

namespace PAGELET_TIER {
namespace {

using pagelet::PagedAttentionArgs;

// Work is counted in passes of a row over a token, about a nanosecond each. A token of the context
// costs its loads too, however few rows share them.
constexpr int64_t kRowsWorthALoad = 8;
constexpr int64_t kWorkWorthAThread = 4096;
constexpr int64_t kUnitPiecesPerThread = 4;

struct Unit {
  int request;
  int first_token;  // of the step
  int tokens;
  int position;  // of the first token in its request
  Range tiles;
  int64_t partials;  // where its tiles' results are kept until they are joined, in rows; or -1
};

// Some of a unit's tiles.
struct Piece {
  int unit;
  Range tiles;
};

struct Plan {
  std::vector<Unit> units;
  std::vector<Piece> pieces;
  std::vector<Unit> split;  // units whose tiles are in several pieces
  int64_t work;
  int64_t partial_rows;
};

// How the query heads of a KV head are dealt out to units.
struct Heads {
  int group;       // query heads of a KV head
  int64_t parts;   // units that share it
  int max_heads;   // of a unit
  int max_tokens;  // of a unit

  explicit Heads(const PagedAttentionArgs& args)
      : group(args.num_heads / args.num_kv_heads),
        parts(ceil_div(group, kMaxQueryRows)),
        max_heads(static_cast<int>(ceil_div(group, parts))),
        max_tokens(kMaxQueryRows / max_heads) {}
};

int first_seen(const PagedAttentionArgs& args, int position) {
  return args.sliding_window ? std::max(0, position + 1 - args.sliding_window) : 0;
}

int64_t work_of(const PagedAttentionArgs& args, const Heads& heads, const Unit& unit) {
  const int64_t context = unit.position + unit.tokens - first_seen(args, unit.position);
  return context * (kRowsWorthALoad + int64_t{unit.tokens} * heads.max_heads);
}

void add_units(const PagedAttentionArgs& args, int64_t requests, const Heads& heads, Plan& plan) {
  plan.units.clear();
  plan.work = 0;
  for (int request = 0; request < requests; ++request) {
    const int start = args.query_start_loc[request];
    const int length = args.query_start_loc[request + 1] - start;
    const int64_t count = ceil_div(length, heads.max_tokens);
    for (int64_t i = 0; i < count; ++i) {
      const Range tokens = Range{0, length}.part(i, count);
      Unit unit;
      unit.request = request;
      unit.first_token = start + static_cast<int>(tokens.first);
      unit.tokens = static_cast<int>(tokens.size());
      unit.position = args.seq_lens[request] - length + static_cast<int>(tokens.first);
      unit.tiles = {first_seen(args, unit.position) / kTileTokens,
                    ceil_div(unit.position + unit.tokens, kTileTokens)};
      plan.units.push_back(unit);
      plan.work += work_of(args, heads, unit);
    }
  }
}

// Splits the units that would keep a thread busy when the others have nothing left to do.
void add_pieces(const PagedAttentionArgs& args, const Heads& heads, int threads, Plan& plan) {
  plan.pieces.clear();
  plan.split.clear();
  plan.partial_rows = 0;
  const int64_t copies = args.num_kv_heads * heads.parts;
  const int64_t fair = std::max(kWorkWorthAThread, plan.work * copies / (threads * kUnitPiecesPerThread));
  for (size_t i = 0; i < plan.units.size(); ++i) {
    Unit& unit = plan.units[i];
    const int64_t wanted = threads == 1 ? 1 : ceil_div(work_of(args, heads, unit), fair);
    const int64_t count = std::min(wanted, unit.tiles.size());
    unit.partials = -1;
    if (count > 1) {
      unit.partials = plan.partial_rows;
      plan.partial_rows += copies * unit.tiles.size() * unit.tokens * heads.max_heads;
      plan.split.push_back(unit);
    }
    for (int64_t j = 0; j < count; ++j) {
      plan.pieces.push_back({static_cast<int>(i), unit.tiles.part(j, count)});
    }
  }
}

// The query heads of one unit.
struct Share {
  int kv_head;
  int first_head, heads;
  int64_t copy;  // which of those that a unit stands for

  Share(const Heads& all, int64_t copy) : kv_head(static_cast<int>(copy / all.parts)), copy(copy) {
    const Range part = Range{0, all.group}.part(copy % all.parts, all.parts);
    first_head = kv_head * all.group + static_cast<int>(part.first);
    heads = static_cast<int>(part.size());
  }
};

template <class T, class Cache>
class Attention {
 public:
  explicit Attention(const PagedAttentionArgs& args)
      : args_(args), heads_(args), scale_(args.scale, args.softcap) {}

  void run(int64_t requests, pagelet::ThreadPool& pool) {
    thread_local Plan plan;
    add_units(args_, requests, heads_, plan);
    add_pieces(args_, heads_, pool.threads(), plan);
    const int64_t row_bytes = GatheredRows::bytes(args_.head_dim);
    partials_ = pagelet::scratch(plan.partial_rows * row_bytes);

    const int64_t copies = args_.num_kv_heads * heads_.parts;
    const int64_t pieces = static_cast<int64_t>(plan.pieces.size()) * copies;
    const int64_t portions = std::min(pieces, ceil_div(plan.work * copies, kWorkWorthAThread));
    const Plan& fixed = plan;  // the caller's, for all threads
    pool.parallel_for(portions, [&](int64_t i) {
      const Range portion = Range{0, pieces}.part(i, portions);
      for (int64_t j = portion.first; j < portion.end; ++j) {
        const Piece& piece = fixed.pieces[j / copies];
        attend(fixed.units[piece.unit], Share(heads_, j % copies), piece.tiles);
      }
    });
    const int64_t joins = static_cast<int64_t>(fixed.split.size()) * copies;
    pool.parallel_for(joins, [&](int64_t i) {
      join_tiles(fixed.split[i / copies], Share(heads_, i % copies));
    });
  }

 private:
  // Takes a unit through some of its tiles.
  void attend(const Unit& unit, const Share& share, Range tiles) {
    const int rows = unit.tokens * share.heads;
    RowBlock<Cache> block(rows, args_.head_dim, scale_);
    for (int row = 0; row < rows; ++row) block.set_query(row, query(unit, share, row));

    constexpr int64_t kBytes = kMaxQueryRows * GatheredRows::bytes(kMaxHeadDim);
    alignas(64) char all_memory[kBytes], tile_memory[kBytes];
    const GatheredRows all(all_memory, args_.head_dim), of_tile(tile_memory, args_.head_dim);
    for (int64_t tile = tiles.first; tile < tiles.end; ++tile) {
      Seen seen[kMaxQueryRows];
      for (int row = 0; row < rows; ++row) seen[row] = seen_by(unit, share, row, tile);
      const TilePanels<Cache> panels =
          find_panels(unit, share, tile, Seen{seen[0].begin, seen[rows - 1].end});
      if (unit.partials >= 0) {
        block.attend(panels, seen, partials(unit, share, tile));
      } else if (tile == tiles.first) {
        block.attend(panels, seen, all);
      } else {
        block.attend(panels, seen, of_tile);
        for (int row = 0; row < rows; ++row) {
          const Range seen_tiles = tiles_of(unit, share, row);
          if (tile == seen_tiles.first) {
            __builtin_memcpy(&all[row], &of_tile[row], GatheredRows::bytes(args_.head_dim));
          } else if (tile > seen_tiles.first && tile < seen_tiles.end) {
            join(all[row], of_tile[row], args_.head_dim);
          }
        }
      }
    }
    if (unit.partials >= 0) return;
    for (int row = 0; row < rows; ++row) finish(all[row], args_.head_dim, out(unit, share, row));
  }

  void join_tiles(const Unit& unit, const Share& share) {
    for (int row = 0; row < unit.tokens * share.heads; ++row) {
      const Range tiles = tiles_of(unit, share, row);
      Gathered& all = partials(unit, share, tiles.first)[row];
      for (int64_t tile = tiles.first + 1; tile < tiles.end; ++tile) {
        join(all, partials(unit, share, tile)[row], args_.head_dim);
      }
      finish(all, args_.head_dim, out(unit, share, row));
    }
  }

  // Rows are a unit's tokens, each with all its heads.
  static int position(const Unit& unit, const Share& share, int row) {
    return unit.position + row / share.heads;
  }
  int64_t offset(const Unit& unit, const Share& share, int row, int64_t stride) const {
    return (unit.first_token + row / share.heads) * stride +
           int64_t{share.first_head + row % share.heads} * args_.head_dim;
  }
  const T* query(const Unit& unit, const Share& share, int row) const {
    return static_cast<const T*>(args_.query) + offset(unit, share, row, args_.query_stride);
  }
  T* out(const Unit& unit, const Share& share, int row) const {
    return static_cast<T*>(args_.out) + offset(unit, share, row, args_.out_stride);
  }

  Range tiles_of(const Unit& unit, const Share& share, int row) const {
    const int last = position(unit, share, row);
    return {first_seen(args_, last) / kTileTokens, last / kTileTokens + 1};
  }
  Seen seen_by(const Unit& unit, const Share& share, int row, int64_t tile) const {
    const int last = position(unit, share, row);
    const int64_t start = tile * kTileTokens;
    return {static_cast<int>(std::max<int64_t>(first_seen(args_, last) - start, 0)),
            static_cast<int>(std::min<int64_t>(last + 1 - start, kTileTokens))};
  }

  GatheredRows partials(const Unit& unit, const Share& share, int64_t tile) const {
    const int64_t index = share.copy * unit.tiles.size() + tile - unit.tiles.first;
    const int64_t row = unit.partials + index * unit.tokens * heads_.max_heads;
    return {static_cast<char*>(partials_) + row * GatheredRows::bytes(args_.head_dim),
            args_.head_dim};
  }

  // Goes through the panels of a request's context. Keys and values begin at the same offset.
  class PanelOffsets {
   public:
    PanelOffsets(const PagedAttentionArgs& args, int request, int kv_head, int64_t token)
        : block_(args.block_table + request * args.block_table_stride + token / args.block_size),
          token_(token % args.block_size),
          block_size_(args.block_size),
          token_size_(token_size<Cache>(args.head_dim)),
          head_(kv_head * page()),
          heads_(args.num_kv_heads * page()) {}

    int64_t operator*() const { return *block_ * heads_ + head_ + token_ * token_size_; }
    void operator++() {
      token_ += kPanelTokens;
      if (token_ == block_size_) {
        token_ = 0;
        ++block_;
      }
    }

   private:
    int64_t page() const { return block_size_ * token_size_; }

    const int32_t* block_;
    int64_t token_, block_size_, token_size_;
    int64_t head_, heads_;  // elements before this head's page and in all heads' pages of a block
  };

  TilePanels<Cache> find_panels(const Unit& unit, const Share& share, int64_t tile,
                                Seen seen) const {
    const auto* const keys = static_cast<const Cache*>(args_.k_cache);
    const auto* const values = static_cast<const Cache*>(args_.v_cache);
    TilePanels<Cache> panels;
    panels.first = seen.begin / kPanelTokens;
    panels.end = static_cast<int>(ceil_div(seen.end, kPanelTokens));
    const int count = panels.end - panels.first;
    int64_t token = tile * kTileTokens + panels.first * kPanelTokens;
    PanelOffsets offset(args_, unit.request, share.kv_head, token);
    const Cache** next = panels.in_order;
    for (int i = 0; i < count; ++i, ++next, ++offset, token += kPanelTokens) {
      next[0] = keys + *offset;
      next[count] = values + *offset;
    }
    next += count;
    const int64_t context = unit.position + unit.tokens;
    for (int i = 0; i < kPanelsAhead; ++i, ++next, token += kPanelTokens) {
      next[0] = next[-1];
      if (token < context) {
        next[0] = keys + *offset;
        ++offset;
      }
    }
    return panels;
  }

  const PagedAttentionArgs& args_;
  const Heads heads_;
  const ScoreScale scale_;
  void* partials_ = nullptr;
};

template <class T>
void run(const PagedAttentionArgs& args, int64_t requests, pagelet::ThreadPool& pool) {
  switch (args.cache_dtype) {
    case pagelet::kFloat32: return Attention<T, float>(args).run(requests, pool);
    case pagelet::kBFloat16: return Attention<T, uint16_t>(args).run(requests, pool);
    case pagelet::kInt8: return Attention<T, int8_t>(args).run(requests, pool);
  }
}

}  // namespace

void paged_attention(const PagedAttentionArgs& args, int64_t requests, pagelet::ThreadPool& pool) {
  if (args.dtype == pagelet::kFloat32) return run<float>(args, requests, pool);
  run<uint16_t>(args, requests, pool);
}

}  // namespace PAGELET_TIER
