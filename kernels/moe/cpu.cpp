// The mixture of experts: tokens are routed, the (token, choice) pairs sorted by expert, and each
// expert's matrices multiplied with blocks of its pairs. A token's sums run in one order, whatever
// the other tokens are, and over its choices from the most likely on.
#include <algorithm>
#include <cmath>
#include <vector>

#include "../cpu/ops.h"
#include "../linear/cpu_tiles.h"

namespace PAGELET_TIER {
namespace {

using pagelet::ExpertMatrix;
using pagelet::MoeArgs;

// Tokens that go through the experts together: what lies between the matrices stays small.
constexpr int64_t kTokensAtOnce = 512;
constexpr int64_t kPiecesPerThread = 8;

enum Part { kGate, kUp, kDown, kNumParts };

// Formats that differ in the width of their scales take rows that are prepared alike.
int preparation(int code) { return code < 2 ? code : code & ~1; }

struct Pair {
  int64_t token;  // of those at hand
  int64_t choice;
};

// Pairs of one expert, by their places in sorted order.
struct Block {
  int64_t expert;
  Range places;
};

// Lives from step to step, so that its memory does.
struct Routing {
  std::vector<int32_t> experts;      // [tokens, top_k], of those held here; -1 for all others
  std::vector<float> probabilities;  // [tokens, top_k]
  std::vector<int64_t> begins;       // [num_local + 1], an expert's first place
  std::vector<Pair> pairs;           // by place
  std::vector<Block> blocks;
};

// The most likely experts of a token; of equals the first.
template <class T>
void choose(const MoeArgs& args, const T* logits, int32_t* experts, float* probabilities) {
  thread_local std::vector<float> weights;
  weights.resize(args.num_experts);
  for_lanes(args.num_experts, [&](int64_t i, int count) {
    store_up_to(weights.data() + i, load_up_to(logits + i, count), count);
  });
  const float largest = *std::max_element(weights.begin(), weights.end());
  float total = 0;
  for (float& weight : weights) total += weight = std::exp(weight - largest);
  float sum = 0;
  for (int64_t choice = 0; choice < args.top_k; ++choice) {
    int64_t best = -1;  // a row of NaN has no largest, but its first
    for (int64_t i = 0; i < args.num_experts; ++i) {
      if (weights[i] != -1 && (best < 0 || weights[i] > weights[best])) best = i;
    }
    const int64_t local = best - args.first_expert;
    experts[choice] = local >= 0 && local < args.num_local ? static_cast<int32_t>(local) : -1;
    probabilities[choice] = weights[best] / total;
    sum += probabilities[choice];
    weights[best] = -1;
  }
  if (!args.renormalize) return;
  for (int64_t choice = 0; choice < args.top_k; ++choice) probabilities[choice] /= sum;
}

// Sorts the pairs by expert, and cuts each expert's into blocks of at most so many.
void sort_pairs(const MoeArgs& args, int64_t tokens, int64_t most, Routing& routing) {
  std::vector<int64_t>& begins = routing.begins;
  begins.assign(args.num_local + 1, 0);
  for (const int32_t expert : routing.experts) {
    if (expert >= 0) ++begins[expert + 1];
  }
  for (int64_t i = 0; i < args.num_local; ++i) begins[i + 1] += begins[i];
  routing.pairs.resize(begins.back());
  routing.blocks.clear();
  for (int64_t i = 0; i < args.num_local; ++i) {
    const Range places{begins[i], begins[i + 1]};
    const int64_t count = ceil_div(places.size(), most);
    for (int64_t j = 0; j < count; ++j) routing.blocks.push_back({i, places.part(j, count)});
  }
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t choice = 0; choice < args.top_k; ++choice) {
      const int32_t expert = routing.experts[token * args.top_k + choice];
      if (expert >= 0) routing.pairs[begins[expert]++] = {token, choice};
    }
  }
}

template <class T>
class Experts {
 public:
  Experts(const MoeArgs& args, pagelet::ThreadPool& pool) : args_(args), pool_(pool) {
    for (int64_t i = 0; i < args.num_local * kNumParts; ++i) {
      used_[i % kNumParts][preparation(args.matrices[i].format)] = true;
    }
    const int k = std::max(args.hidden, args.intermediate);
    for (int code = 0; code < kNumFormats; ++code) {
      if (!used_[kGate][code] && !used_[kUp][code] && !used_[kDown][code]) continue;
      for_format(code, [&](auto format) {
        stride_ = std::max(stride_, prepared_stride<decltype(format)>(k));
      });
    }
  }

  // Of tokens [first, end).
  void run(Range tokens) {
    thread_local Routing mine;
    Routing& routing = mine;  // the caller's, for all threads
    routing_ = &routing;
    first_token_ = tokens.first;
    const int64_t choices = tokens.size() * args_.top_k;
    routing.experts.resize(choices);
    routing.probabilities.resize(choices);
    for_rows(pool_, tokens.size(), args_.num_experts * args_.top_k, [&](int64_t token) {
      choose(args_, row<const T>(args_.router_logits, args_.logits_stride, token),
             routing.experts.data() + token * args_.top_k,
             routing.probabilities.data() + token * args_.top_k);
    });
    sort_pairs(args_, tokens.size(), std::max<int64_t>(1, kRowBlockBytes / stride_), routing);

    const int64_t pairs = static_cast<int64_t>(routing.pairs.size());
    const int64_t between = 2 * round_up(args_.intermediate, kLanes);
    auto* const memory = static_cast<uint8_t*>(
        pagelet::scratch(pairs * stride_ + 4 * (pairs * between + choices * args_.hidden)));
    prepared_ = {memory, stride_};
    between_ = {memory + pairs * stride_, 4 * between};
    results_ = {between_[pairs], 4 * int64_t{args_.hidden}};

    gate_and_up();
    down();
    for_rows(pool_, tokens.size(), args_.top_k * args_.hidden,
             [&](int64_t token) { sum_choices(token); });
  }

 private:
  template <class Row>
  Row* row(const void* data, int64_t stride, int64_t token) const {
    return const_cast<Row*>(static_cast<const Row*>(data)) + (first_token_ + token) * stride;
  }
  float* gate(int64_t place) const { return reinterpret_cast<float*>(between_[place]); }
  float* up(int64_t place) const {
    return gate(place) + round_up(args_.intermediate, kLanes);
  }
  float* result(int64_t token, int64_t choice) const {
    return reinterpret_cast<float*>(results_[token * args_.top_k + choice]);
  }

  void gate_and_up() {
    for (int code = 0; code < kNumFormats; ++code) {
      if (!used_[kGate][code] && !used_[kUp][code]) continue;
      prepare(code, args_.hidden, [&](int64_t place) {
        return row<const T>(args_.x, args_.x_stride, routing_->pairs[place].token);
      });
      for_pieces(args_.intermediate, 2, [&](const Block& block, int64_t part, Range panels) {
        multiply_by(block, static_cast<Part>(part), code, args_.hidden, panels,
                    [&](int64_t place, int64_t panel, f32x16 sums) {
                      store((part == kGate ? gate(place) : up(place)) + panel * kLanes, sums);
                    });
      });
    }
  }

  void down() {
    const int64_t pairs = static_cast<int64_t>(routing_->pairs.size());
    for_rows(pool_, pairs, args_.intermediate, [&](int64_t place) {
      for (int64_t i = 0; i < args_.intermediate; i += kLanes) {
        const f32x16 x = load(gate(place) + i);
        store(gate(place) + i, mul(mul(x, sigmoid(x)), load(up(place) + i)));
      }
    });
    for (int code = 0; code < kNumFormats; ++code) {
      if (!used_[kDown][code]) continue;
      prepare(code, args_.intermediate, [&](int64_t place) { return gate(place); });
      for_pieces(args_.hidden, 1, [&](const Block& block, int64_t, Range panels) {
        multiply_by(block, kDown, code, args_.intermediate, panels,
                    [&](int64_t place, int64_t panel, f32x16 sums) {
                      const Pair pair = routing_->pairs[place];
                      const int64_t first = panel * kLanes;
                      const int count = static_cast<int>(
                          std::min<int64_t>(kLanes, args_.hidden - first));
                      store_up_to(result(pair.token, pair.choice) + first, sums, count);
                    });
      });
    }
  }

  // Rows of all pairs, for matrices of one preparation.
  template <class Input>
  void prepare(int code, int k, const Input& input) {
    for_format(code, [&](auto format) {
      for_rows(pool_, static_cast<int64_t>(routing_->pairs.size()), k, [&](int64_t place) {
        decltype(format)::prepare(input(place), k, prepared_[place]);
      });
    });
  }

  // Calls body(block, part, panels) for pieces of all blocks' products of so many outputs.
  template <class Body>
  void for_pieces(int64_t outputs, int64_t parts, const Body& body) {
    const int64_t products = static_cast<int64_t>(routing_->blocks.size()) * parts;
    if (products == 0) return;
    const Range panels{0, ceil_div(outputs, kLanes)};
    const int64_t cuts = std::clamp<int64_t>(ceil_div(pool_.threads() * kPiecesPerThread, products),
                                             1, ceil_div(panels.size(), kStreams));
    pool_.parallel_for(products * cuts, [&](int64_t i) {
      const int64_t product = i / cuts;
      body(routing_->blocks[product / parts], product % parts, panels.part(i % cuts, cuts));
    });
  }

  // A block's rows times panels of its expert's matrix, if that takes rows of this preparation.
  template <class Use>
  void multiply_by(const Block& block, Part part, int code, int k, Range panels, const Use& use) {
    const ExpertMatrix& matrix = args_.matrices[block.expert * kNumParts + part];
    if (preparation(matrix.format) != code) return;
    for_format(matrix.format, [&](auto format) {
      multiply<decltype(format)>(matrix.data, prepared_, k, block.places, panels, use);
    });
  }

  void sum_choices(int64_t token) {
    T* const out = row<T>(args_.out, args_.out_stride, token);
    const int64_t first = token * args_.top_k;
    for_lanes(args_.hidden, [&](int64_t i, int count) {
      f32x16 sum = zero();
      for (int64_t choice = 0; choice < args_.top_k; ++choice) {
        if (routing_->experts[first + choice] < 0) continue;
        const f32x16 probability = set1(routing_->probabilities[first + choice]);
        sum = fma(load_up_to(result(token, choice) + i, count), probability, sum);
      }
      store_up_to(out + i, sum, count);
    });
  }

  const MoeArgs& args_;
  pagelet::ThreadPool& pool_;
  bool used_[kNumParts][kNumFormats] = {};
  int64_t stride_ = 0;  // of prepared rows, of any format and matrix
  Routing* routing_ = nullptr;
  int64_t first_token_ = 0;
  PreparedRows prepared_{}, between_{}, results_{};  // by place, by place, and by pair
};

template <class T>
void run(const MoeArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  Experts<T> experts(args, pool);
  const int64_t turns = ceil_div(rows, kTokensAtOnce);
  for (int64_t i = 0; i < turns; ++i) experts.run(Range{0, rows}.part(i, turns));
}

}  // namespace

void moe(const MoeArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  if (args.dtype == pagelet::kFloat32) return run<float>(args, rows, pool);
  run<uint16_t>(args, rows, pool);
}

}  // namespace PAGELET_TIER
