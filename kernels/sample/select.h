// The weighted selection behind top-k and top-p.
#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>

namespace PAGELET_TIER {

constexpr int64_t kCopySlack = 8;  // values behind the copied ones that a copy may overwrite

// Copies the values from `least` to `greatest` in their order, and returns how many they are. `to`
// may be `from`; otherwise it has room for kCopySlack more.
inline int64_t copy_range(const int64_t* from, int64_t count, int64_t least, int64_t greatest,
                          int64_t* to) {
  int64_t copied = 0, i = 0;
#if defined(__AVX512F__)
  const __m512i low = _mm512_set1_epi64(least), high = _mm512_set1_epi64(greatest);
  for (; i + 8 <= count; i += 8) {
    const __m512i v = _mm512_loadu_si512(from + i);
    const __mmask8 kept =
        _mm512_mask_cmple_epi64_mask(_mm512_cmpge_epi64_mask(v, low), v, high);
    _mm512_storeu_si512(to + copied, _mm512_maskz_compress_epi64(kept, v));
    copied += __builtin_popcount(kept);
  }
#endif
  for (; i < count; ++i) {
    const int64_t value = from[i];
    to[copied] = value;
    copied += value >= least && value <= greatest;
  }
  return copied;
}

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
      larger += size & -static_cast<int64_t>(values[i] > pivot);  // a mask, to be vectorised
      equal += size & -static_cast<int64_t>(values[i] == pivot);
    }
    const bool go_up = above + larger >= needed;
    if (!go_up && above + larger + equal >= needed) return pivot;
    if (!go_up) {
      above += larger + equal;
      smallest = pivot;
    }
    count = copy_range(values, count, go_up ? pivot + 1 : INT64_MIN,
                       go_up ? INT64_MAX : pivot - 1, values);
  }
  return smallest;
}

}  // namespace PAGELET_TIER
