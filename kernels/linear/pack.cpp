// Packs and quantises weights at load, in the formats that cpu_formats.h describes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "../cpu/half.h"
#include "../cpu/threads.h"

namespace {

constexpr int64_t kPanel = 16;  // outputs, a lane each
constexpr int64_t kGroup = 32;  // inputs that share a scale
constexpr int64_t kBlock = 64;  // inputs of two groups

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Calls body(panel, lane, row, chunk) for all lanes of all panels and all chunks of their inputs;
// row is -1 for lanes without an output. Lanes are innermost: they share cache lines.
template <class Body>
void for_lanes_of_panels(int64_t n, int64_t chunks, const Body& body) {
  pagelet::ThreadPool::instance().parallel_for(ceil_div(n, kPanel), [&](int64_t panel) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (int64_t lane = 0; lane < kPanel; ++lane) {
        const int64_t row = panel * kPanel + lane;
        body(panel, lane, row < n ? row : -1, chunk);
      }
    }
  });
}

// [n, k] to [panels][k / pair][16][pair]; zeros where there is no weight.
template <class T, int kPair>
void pack_pairs(const T* weight, int64_t n, int64_t k, T* out) {
  constexpr int64_t kChunk = 32;
  const int64_t pairs = ceil_div(k, kPair);
  const auto pack = [&](int64_t panel, int64_t lane, int64_t row, int64_t chunk) {
    T* to = out + ((panel * pairs + chunk * kChunk / kPair) * kPanel + lane) * kPair;
    const int64_t first = chunk * kChunk, end = std::min(first + kChunk, pairs * kPair);
    for (int64_t i = first; i < end; i += kPair, to += kPanel * kPair) {
      for (int64_t j = 0; j < kPair; ++j) {
        to[j] = row >= 0 && i + j < k ? weight[row * k + i + j] : T{0};
      }
    }
  };
  for_lanes_of_panels(n, ceil_div(k, kChunk), pack);
}

void store_scale(float value, bool wide, uint8_t* out, int64_t lane) {
  if (wide) {
    std::memcpy(out + 4 * lane, &value, 4);
  } else {
    const uint16_t half = pagelet::float_to_half(value);
    std::memcpy(out + 2 * lane, &half, 2);
  }
}

// What lies in memory for a block of 64 inputs: the first group's weights, of both groups one or two
// kinds of numbers, and the second group's weights.
struct BlockLayout {
  int64_t group_bytes, scale_bytes, kinds;
  int64_t size() const { return 2 * (group_bytes + kinds * scale_bytes); }
  int64_t weights(int64_t group) const { return group * (group_bytes + 2 * kinds * scale_bytes); }
  int64_t scales(int64_t kind, int64_t group) const {
    return group_bytes + (group * kinds + kind) * scale_bytes;
  }
};

// Puts the weights of each lane and group by put(values, the group's bytes, lane), and its numbers. `scales` are up to two arrays [n, groups].
template <class T, class Put>
void pack_groups(const T* values, const float* const (&scales)[2], const BlockLayout& layout,
                 int64_t n, int64_t k, bool wide, uint8_t* out, const Put& put) {
  const int64_t groups = ceil_div(k, kGroup), blocks = ceil_div(k, kBlock);
  const auto pack = [&](int64_t panel, int64_t lane, int64_t row, int64_t g) {
    uint8_t* block = out + (panel * blocks + g / 2) * layout.size();
    const bool real = row >= 0 && g < groups;
    const int64_t count = real ? std::min(kGroup, k - g * kGroup) : 0;
    T padded[kGroup] = {};
    if (real) std::memcpy(padded, values + row * k + g * kGroup, count * sizeof(T));
    put(padded, block + layout.weights(g % 2), lane);
    for (int64_t kind = 0; kind < layout.kinds; ++kind) {
      const float scale = real ? scales[kind][row * groups + g] : 0.0f;
      store_scale(scale, wide, block + layout.scales(kind, g % 2), lane);
    }
  };
  for_lanes_of_panels(n, 2 * blocks, pack);
}

float to_half(float value) {
  return pagelet::half_to_float(pagelet::float_to_half(value));
}

// Calls body(first weight, how many, index of the group) for all groups of [n, k].
template <class Body>
void for_groups(const float* weight, int64_t n, int64_t k, const Body& body) {
  const int64_t groups = ceil_div(k, kGroup);
  pagelet::ThreadPool::instance().parallel_for(n, [&](int64_t row) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = row * k + g * kGroup;
      body(weight, first, std::min(kGroup, k - g * kGroup), row * groups + g);
    }
  });
}

// Rounds |value| < 2 ** 22 to the nearest integer, ties to even.
float round_small(float value) { return value + 12582912.0f - 12582912.0f; }

float sum_lanes(const float (&lanes)[8]) {
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

struct Affine {
  float scale, minimum, error;
  float quantised[kGroup];
};

// The nearest of 16 steps from the minimum, and the squared error of that.
void quantise_affine(const float* weight, Affine& result) {
  const float step = result.scale > 0 ? result.scale : 1.0f;
  float errors[8] = {};
  for (int i = 0; i < kGroup; i += 8) {
    for (int lane = 0; lane < 8; ++lane) {
      const float position = (weight[i + lane] - result.minimum) / step;
      const float clamped = std::min(std::max(position, 0.0f), 15.0f);
      const float nearest = round_small(clamped);
      const float error = nearest * result.scale + result.minimum - weight[i + lane];
      result.quantised[i + lane] = nearest;
      errors[lane] += error * error;
    }
  }
  result.error = sum_lanes(errors);
}

// The scale and minimum that fit the chosen steps best: the least squares of a line.
void refit(const float* weight, Affine& result) {
  float steps[8] = {}, squares[8] = {}, weights[8] = {}, products[8] = {};
  for (int i = 0; i < kGroup; i += 8) {
    for (int lane = 0; lane < 8; ++lane) {
      const float step = result.quantised[i + lane];
      steps[lane] += step;
      squares[lane] += step * step;
      weights[lane] += weight[i + lane];
      products[lane] += step * weight[i + lane];
    }
  }
  const float mean_step = sum_lanes(steps) / kGroup, mean = sum_lanes(weights) / kGroup;
  const float variance = sum_lanes(squares) / kGroup - mean_step * mean_step;
  if (variance <= 0) return;  // all in one step
  const float slope = (sum_lanes(products) / kGroup - mean_step * mean) / variance;
  if (slope <= 0) return;  // nothing but rounding errors
  result.scale = to_half(slope);
  result.minimum = to_half(mean - slope * mean_step);
}

constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();

bool all_finite(const float* weight, int64_t count) {
  return std::all_of(weight, weight + count, [](float value) { return std::isfinite(value); });
}

}  // namespace

#define PAGELET_EXPORT extern "C" __attribute__((visibility("default")))

PAGELET_EXPORT void pagelet_cpu_pack_f32(const float* weight, int64_t n, int64_t k, float* out) {
  pack_pairs<float, 1>(weight, n, k, out);
}

PAGELET_EXPORT void pagelet_cpu_pack_bf16(const uint16_t* weight, int64_t n, int64_t k,
                                          uint16_t* out) {
  pack_pairs<uint16_t, 2>(weight, n, k, out);
}

PAGELET_EXPORT void pagelet_cpu_pack_q8(const float* scales, const int8_t* values, int64_t n,
                                        int64_t k, bool wide, uint8_t* out) {
  const BlockLayout layout{kGroup * kPanel, kPanel * (wide ? 4 : 2), 1};
  pack_groups(values, {scales, nullptr}, layout, n, k, wide, out,
              [](const int8_t* group, uint8_t* to, int64_t lane) {
                for (int word = 0; word < 8; ++word) {
                  uint32_t bytes;
                  std::memcpy(&bytes, group + 4 * word, 4);
                  bytes ^= 0x80808080;  // value + 128
                  std::memcpy(to + 64 * word + 4 * lane, &bytes, 4);
                }
              });
}

PAGELET_EXPORT void pagelet_cpu_pack_q4(const float* scales, const float* minima,
                                        const uint8_t* values, int64_t n, int64_t k, bool wide,
                                        uint8_t* out) {
  const BlockLayout layout{kGroup * kPanel / 2, kPanel * (wide ? 4 : 2), 2};
  pack_groups(values, {scales, minima}, layout, n, k, wide, out,
              [](const uint8_t* group, uint8_t* to, int64_t lane) {
                for (int word = 0; word < 4; ++word) {
                  uint32_t low, high;
                  std::memcpy(&low, group + 4 * word, 4);
                  std::memcpy(&high, group + 16 + 4 * word, 4);
                  const uint32_t bytes = low | high << 4;
                  std::memcpy(to + 64 * word + 4 * lane, &bytes, 4);
                }
              });
}

// Weights that are no numbers make the scale of their group none: a model that is broken must not
// seem sound.
PAGELET_EXPORT void pagelet_cpu_quantise_q8(const float* weight, int64_t n, int64_t k,
                                            float* scales, int8_t* values) {
  for_groups(weight, n, k, [&](const float* all, int64_t first, int64_t count, int64_t group) {
    if (!all_finite(all + first, count)) {
      scales[group] = kNoNumber;
      std::fill_n(values + first, count, int8_t{0});
      return;
    }
    float bound = 0;
    for (int64_t i = 0; i < count; ++i) bound = std::max(bound, std::fabs(all[first + i]));
    const float scale = to_half(bound / 127.0f), step = scale > 0 ? scale : 1.0f;
    for (int64_t i = 0; i < count; ++i) {
      const float position = std::min(std::max(all[first + i] / step, -127.0f), 127.0f);
      values[first + i] = static_cast<int8_t>(round_small(position));
    }
    scales[group] = scale;
  });
}

// Starts from several ranges, each a little narrower than the group's, fits each to the steps that
// it leads to, and takes what has the least squared error: cutting off an extreme weight can pay
// for a finer step between the others.
PAGELET_EXPORT void pagelet_cpu_quantise_q4(const float* weight, int64_t n, int64_t k,
                                            float* scales, float* minima, uint8_t* values) {
  constexpr float kShrink[] = {0.0f, 0.06f, 0.12f, 0.18f, 0.25f};
  for_groups(weight, n, k, [&](const float* all, int64_t first, int64_t count, int64_t group) {
    if (!all_finite(all + first, count)) {
      scales[group] = minima[group] = kNoNumber;
      std::fill_n(values + first, count, uint8_t{0});
      return;
    }
    float padded[kGroup];
    for (int64_t i = 0; i < kGroup; ++i) padded[i] = all[first + std::min(i, count - 1)];
    const auto [low, high] = std::minmax_element(padded, padded + kGroup);
    Affine best{};
    for (const float shrink : kShrink) {
      const float cut = (*high - *low) * (shrink / 2);
      Affine candidate;
      candidate.scale = to_half((*high - *low - 2 * cut) / 15.0f);
      candidate.minimum = to_half(*low + cut);
      quantise_affine(padded, candidate);
      if (shrink == 0.0f) best = candidate;
      refit(padded, candidate);
      quantise_affine(padded, candidate);
      if (candidate.error < best.error) best = candidate;
    }
    scales[group] = best.scale;
    minima[group] = best.minimum;
    for (int64_t i = 0; i < count; ++i) {
      values[first + i] = static_cast<uint8_t>(best.quantised[i]);
    }
  });
}
