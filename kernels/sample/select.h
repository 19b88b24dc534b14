// The weighted selection behind top-k and top-p.
#pragma once

#include <algorithm>
#include <cstdint>

namespace PAGELET_TIER {

// The largest t for which the values >= t measure at least `needed`; the smallest value where even
// all do not. measure(value) is not negative. Quickselect, which leaves `values` in disorder; only
// integers are added, so that its choice of pivots cannot be seen in its result.
template <class Measure>
int64_t select_from_top(int64_t* values, int64_t count, int64_t needed, const Measure& measure) {
  int64_t smallest = values[0];
  for (int64_t above = 0; count > 0;) {  // `above` measures the values that are too large
    int64_t a = values[0], b = values[count / 2], c = values[count - 1];
    const int64_t pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    int64_t larger = 0, equal = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t size = measure(values[i]);
      larger += values[i] > pivot ? size : 0;
      equal += values[i] == pivot ? size : 0;
    }
    const bool go_up = above + larger >= needed;
    if (!go_up && above + larger + equal >= needed) return pivot;
    if (!go_up) {
      above += larger + equal;
      smallest = pivot;
    }
    int64_t left = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t value = values[i];
      values[left] = value;
      left += go_up ? value > pivot : value < pivot;
    }
    count = left;
  }
  return smallest;
}

}  // namespace PAGELET_TIER
