// Dividing work into nearly equal parts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "threads.h"

namespace PAGELET_TIER {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Range {
  int64_t first, end;
  int64_t size() const { return end - first; }
  // The i-th of `parts` nearly equal parts.
  Range part(int64_t i, int64_t parts) const {
    return {first + size() * i / parts, first + size() * (i + 1) / parts};
  }
};

// Below this many elements a second thread costs more than it saves.
constexpr int64_t kElementsWorthAThread = 8192;

// Calls body(row) for every row, on one thread where they are few and short.
template <class Body>
void for_rows(pagelet::ThreadPool& pool, int64_t rows, int64_t elements_of_a_row,
              const Body& body) {
  const int64_t pieces =
      std::min(rows, ceil_div(rows * elements_of_a_row, kElementsWorthAThread));
  pool.parallel_for(pieces, [&](int64_t i) {
    const Range part = Range{0, rows}.part(i, pieces);
    for (int64_t row = part.first; row < part.end; ++row) body(row);
  });
}

}  // namespace PAGELET_TIER
