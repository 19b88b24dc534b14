// Attention of a few query rows to one tile of their context.
//
// A context is cut into tiles of 256 tokens at fixed positions. What a row gets from a tile (the
// largest score, the sum of exponentials, the weighted sum of values) is computed on its own, and
// the tiles are joined in the order of their positions, as in flash decoding. Inside of a tile all
// sums run in a fixed order, whatever the number of rows that share the work. So a row's result is
// the same bits alone and in any batch, in any chunk of its prompt, and on any number of threads.
//
// Tokens that a row does not see never enter its sums, not even multiplied by zero.
#pragma once

#include <algorithm>
#include <limits>

#include "../cpu/rows.h"
#include "../cpu/simd.h"
#include "cpu_queries.h"

namespace PAGELET_TIER {

constexpr int kTileTokens = 256;
constexpr int kTilePanels = kTileTokens / kPanelTokens;

// Register tiles: rows x panels of scores, and rows x vectors of values.
constexpr int kAccumulators = kFloatRows * kFloatPanels;
constexpr int kScoreRows = kFloatRows;
constexpr int kValueRows = std::min(6, kAccumulators);
constexpr int score_panels(int rows) {
  return std::clamp(kAccumulators / rows, 1, kSingleRowPanels);
}
constexpr int value_vectors(int rows) { return std::clamp(kAccumulators / rows, 1, 4); }

// The panels of a tile that some row sees: [first, end) of its keys, the same of its values, and
// some that are read afterwards.
template <class Cache>
struct TilePanels {
  int first, end;
  const Cache* in_order[2 * kTilePanels + kPanelsAhead];

  const Cache* const* keys(int panel) const { return in_order + panel - first; }
  const Cache* const* values(int panel) const { return keys(panel) + end - first; }
};

// What a row has gathered from its context.
struct Gathered {
  float max;                   // the largest score, in units of log 2
  alignas(64) float sums[16];  // lanes of the sum of 2 ** (score - max)
  // Followed by the sum of values weighted with 2 ** (score - max).
  float* values() { return reinterpret_cast<float*>(this + 1); }
  const float* values() const { return reinterpret_cast<const float*>(this + 1); }
};

// Gathered of several rows, one after another.
class GatheredRows {
 public:
  GatheredRows(void* memory, int head_dim) : memory_(memory), size_(bytes(head_dim)) {}
  Gathered& operator[](int64_t row) const {
    return *reinterpret_cast<Gathered*>(static_cast<char*>(memory_) + row * size_);
  }
  static constexpr int64_t bytes(int head_dim) {
    return sizeof(Gathered) + (head_dim + 15) / 16 * 16 * sizeof(float);
  }

 private:
  void* memory_;
  int64_t size_;
};

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// v in the lanes [begin, end), `other` outside.
inline f32x16 keep_lanes(f32x16 v, int begin, int end, f32x16 other) {
  if (begin <= 0 && end >= 16) return v;
  alignas(64) float lanes[16], others[16];
  store(lanes, v);
  store(others, other);
  for (int i = 0; i < 16; ++i) lanes[i] = i >= begin && i < end ? lanes[i] : others[i];
  return load(lanes);
}

// 2 ** x for x <= 0, within 1.6e-7 of it; 2 ** -126 for less than that, NaN for NaN.
inline f32x16 exp2_of_negative(f32x16 x) {
  const f32x16 bounded = max(set1(-126.0f), x);  // keeps a NaN
  const f32x16 n = round(bounded);
  const f32x16 r = sub(bounded, n);  // the minimax polynomial for |r| <= 1/2 that is 1 at 0
  f32x16 p = set1(1.3264746e-3f);
  p = fma(p, r, set1(9.6715130e-3f));
  p = fma(p, r, set1(5.5507336e-2f));
  p = fma(p, r, set1(2.4022242e-1f));
  p = fma(p, r, set1(6.9314700e-1f));
  p = fma(p, r, set1(1.0f));
  return scale_by_power_of_two(p, n);
}

// Within 1e-7 of it.
inline f32x16 tanh(f32x16 x) {
  return sub(mul(set1(2.0f), sigmoid(add(x, x))), set1(1.0f));
}

// scale * score, bounded by softcap * tanh(scale * score / softcap) unless softcap is 0; times
// log2(e), for powers of two are what is taken of it.
struct ScoreScale {
  f32x16 factor, softcap;
  bool bounded;

  ScoreScale(float scale, float cap)
      : factor(set1(cap > 0 ? scale / cap : scale * kLog2e)),
        softcap(set1(cap * kLog2e)),
        bounded(cap > 0) {}

  f32x16 operator()(f32x16 score) const {
    const f32x16 scaled = mul(score, factor);
    return bounded ? mul(tanh(scaled), softcap) : scaled;
  }

  static constexpr float kLog2e = 1.44269504f;
};

// Query rows on their way through the tiles of a context.
template <class Cache>
class RowBlock {
 public:
  RowBlock(int rows, int head_dim, const ScoreScale& scale)
      : rows_(rows), head_dim_(head_dim), scale_(scale) {}

  template <class T>
  void set_query(int row, const T* query) {
    queries_.set(row, query, head_dim_);
  }

  // What each row gathers from a tile. Rows that see none of it gather nothing.
  void attend(const TilePanels<Cache>& panels, const Seen* seen, GatheredRows gathered) {
    for_row_tiles(kScoreRows, [&](int row, int rows) {
      Seen any = seen[row];
      for (int r = row + 1; r < row + rows; ++r) any = hull(any, seen[r]);
      if (!any.empty()) score_rows<kScoreRows>(rows, row, any, panels);
    });
    for (int row = 0; row < rows_; ++row) {
      if (!seen[row].empty()) weigh(row, seen[row], panels, gathered[row]);
    }
    for_row_tiles(kValueRows, [&](int row, int rows) {
      sum_rows<kValueRows>(rows, row, seen, panels, gathered);
    });
  }

 private:
  template <class Body>
  void for_row_tiles(int rows_of_a_tile, const Body& body) {
    const int64_t tiles = ceil_div(rows_, rows_of_a_tile);
    for (int64_t i = 0; i < tiles; ++i) {
      const Range rows = Range{0, rows_}.part(i, tiles);
      body(static_cast<int>(rows.first), static_cast<int>(rows.size()));
    }
  }

  template <int R>
  void score_rows(int rows, int row, Seen tokens, const TilePanels<Cache>& panels) {
    if constexpr (R > 1) {
      if (rows < R) return score_rows<R - 1>(rows, row, tokens, panels);
    }
    constexpr int P = score_panels(R);
    const int end = static_cast<int>(ceil_div(tokens.end, kPanelTokens));
    int panel = tokens.begin / kPanelTokens;
    for (; panel + P <= end; panel += P) score_tile<R, P>(row, panel, panels);
    score_rest<R, P - 1>(end - panel, row, panel, panels);
  }

  template <int R, int P>
  void score_rest(int count, int row, int panel, const TilePanels<Cache>& panels) {
    if constexpr (P > 0) {
      if (count < P) return score_rest<R, P - 1>(count, row, panel, panels);
      score_tile<R, P>(row, panel, panels);
    }
  }

  template <int R, int P>
  void score_tile(int row, int panel, const TilePanels<Cache>& panels) {
    f32x16 acc[R][P];
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) acc[r][p] = zero();
    }
    queries_.multiply(panels.keys(panel), row, head_dim_, acc);
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) {
        const f32x16 score = scaled(acc[r][p], panels.keys(panel + p)[0]);
        store(scores(row + r) + (panel + p) * kPanelTokens, score);
      }
    }
  }

  // Lanes of tokens times their scales, where the cache has any.
  f32x16 scaled(f32x16 lanes, const Cache* panel) const {
    if constexpr (sizeof(Cache) == 1) return mul(lanes, load(panel_scales(panel, head_dim_)));
    return lanes;
  }

  // Turns a row's scores into weights.
  void weigh(int row, Seen seen, const TilePanels<Cache>& panels, Gathered& gathered) {
    float* const weights = scores(row);
    const int first = seen.begin / kPanelTokens * kPanelTokens;
    const f32x16 lowest = set1(-kInfinity);
    f32x16 largest = lowest;
    for (int token = first; token < seen.end; token += kPanelTokens) {
      const f32x16 score = scale_(load(weights + token));
      store(weights + token, score);
      largest = max(largest, keep_lanes(score, seen.begin - token, seen.end - token, lowest));
    }
    gathered.max = fold_lanes(largest, [](float a, float b) { return a > b ? a : b; });
    const f32x16 offset = set1(gathered.max);
    f32x16 sum = zero();
    for (int token = first; token < seen.end; token += kPanelTokens) {
      const f32x16 weight = exp2_of_negative(sub(load(weights + token), offset));
      store(weights + token, scaled(weight, panels.values(token / kPanelTokens)[0]));
      sum = add(sum, keep_lanes(weight, seen.begin - token, seen.end - token, zero()));
    }
    store(gathered.sums, sum);
  }

  // Sums the values of the tokens that each row sees: those that all rows of a tile see together,
  // and what is before and behind row by row.
  template <int R>
  void sum_rows(int rows, int row, const Seen* seen, const TilePanels<Cache>& panels,
                GatheredRows gathered) {
    if constexpr (R > 1) {
      if (rows < R) return sum_rows<R - 1>(rows, row, seen, panels, gathered);
    }
    Seen all = seen[row];
    for (int r = row + 1; r < row + R; ++r) all = common(all, seen[r]);
    if (all.empty()) all = {kTileTokens, kTileTokens};
    bool fresh = true;
    for (int r = row; r < row + R; ++r) fresh = fresh && seen[r].begin == all.begin;
    if (!fresh) {
      for (int r = row; r < row + R; ++r) {
        const Seen before{seen[r].begin, std::min(seen[r].end, all.begin)};
        if (!seen[r].empty()) sum_head<1>(r, before, true, panels, gathered);
      }
    }
    if (!all.empty()) sum_head<R>(row, all, fresh, panels, gathered);
    for (int r = row; r < row + R; ++r) {
      const Seen behind{all.end, seen[r].end};
      if (!behind.empty()) sum_head<1>(r, behind, false, panels, gathered);
    }
  }

  template <int R>
  void sum_head(int row, Seen tokens, bool fresh, const TilePanels<Cache>& panels,
                GatheredRows gathered) {
    constexpr int V = value_vectors(R);
    int d = 0;
    for (; d + 16 * V <= head_dim_; d += 16 * V) {
      sum_tile<R, V, 16>(row, tokens, d, fresh, panels, gathered);
    }
    for (; d + 16 <= head_dim_; d += 16) sum_tile<R, 1, 16>(row, tokens, d, fresh, panels, gathered);
    if (d < head_dim_) sum_tile<R, 1, 8>(row, tokens, d, fresh, panels, gathered);
  }

  template <int R, int V, int Lanes>
  static PAGELET_INLINE void add_tokens(const Cache* value, const Cache* ahead, int64_t stride,
                                        const float* weights, int count, f32x16 (&sums)[R][V]) {
    f32x16 acc[R][V];  // a copy, which the compiler keeps in registers
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) acc[r][v] = sums[r][v];
    }
    for (int token = 0; token < count; ++token, value += stride, ahead += stride) {
      f32x16 values[V];
      for (int v = 0; v < V; ++v) {
        values[v] = load_up_to(value + 16 * v, Lanes);
        if (v * 16 * sizeof(Cache) % 64 == 0) prefetch(ahead + 16 * v);
      }
      for (int r = 0; r < R; ++r) {
        const f32x16 weight = set1(weights[r * kTileTokens + token]);
        for (int v = 0; v < V; ++v) acc[r][v] = fma(values[v], weight, acc[r][v]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) sums[r][v] = acc[r][v];
    }
  }

  template <int R, int V, int Lanes>
  void sum_tile(int row, Seen tokens, int d, bool fresh, const TilePanels<Cache>& panels,
                GatheredRows gathered) {
    f32x16 acc[R][V];
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) acc[r][v] = zero();
    }
    if (!fresh) {
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) acc[r][v] = load(gathered[row + r].values() + d + 16 * v);
      }
    }
    const float* const weights = scores(row);
    for (int panel = tokens.begin / kPanelTokens; panel * kPanelTokens < tokens.end; ++panel) {
      const int start = panel * kPanelTokens;
      const int begin = std::max(tokens.begin - start, 0);
      const int end = std::min(tokens.end - start, kPanelTokens);
      const Cache* const* const values = panels.values(panel);
      const int64_t offset = int64_t{begin} * head_dim_ + d;
      add_tokens<R, V, Lanes>(values[0] + offset, values[kPanelsAhead] + offset, head_dim_,
                              weights + start + begin, end - begin, acc);
    }
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) store(gathered[row + r].values() + d + 16 * v, acc[r][v]);
    }
  }

  float* scores(int row) { return scores_ + row * kTileTokens; }

  int rows_, head_dim_;
  ScoreScale scale_;
  Queries<Cache> queries_;
  alignas(64) float scores_[kMaxQueryRows * kTileTokens];
};

// Adds what a row gathered from its next tile to what it has.
inline void join(Gathered& row, const Gathered& next, int head_dim) {
  const float largest = next.max > row.max ? next.max : row.max;
  const f32x16 old_weight = exp2_of_negative(set1(row.max - largest));
  const f32x16 new_weight = exp2_of_negative(set1(next.max - largest));
  const auto add_weighted = [&](float* a, const float* b) {
    store(a, fma(load(b), new_weight, mul(load(a), old_weight)));
  };
  row.max = largest;
  add_weighted(row.sums, next.sums);
  for (int d = 0; d < head_dim; d += 16) add_weighted(row.values() + d, next.values() + d);
}

template <class T>
void finish(const Gathered& row, int head_dim, T* out) {
  const f32x16 inverse = set1(1.0f / sum_lanes(load(row.sums)));
  for_lanes(head_dim, [&](int64_t d, int count) {
    store_up_to(out + d, mul(load(row.values() + d), inverse), count);
  });
}

}  // namespace PAGELET_TIER
