// The library's plain C interface.
#include <cpuid.h>

#include <cstdlib>
#include <cstring>

#include "ops.h"

namespace pagelet {

extern const Tier tier_avx2, tier_avx512, tier_avx512_vnni, tier_avx512_bf16;

namespace {

struct Candidate {
  const Tier* tier;
  bool supported;
};

uint64_t enabled_register_state() {
  uint32_t low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

// From the least to the most capable. What the CPU has, and the system saves on a switch of tasks.
const Candidate* candidates() {
  static const auto* const list = [] {
    unsigned a, b, c, d, b7 = 0, c7 = 0, d7 = 0, a71 = 0, highest = 0;
    __cpuid(1, a, b, c, d);
    const unsigned c1 = c;
    const bool xsave = c1 >> 27 & 1;
    __get_cpuid_count(7, 0, &highest, &b7, &c7, &d7);
    if (highest >= 1) __get_cpuid_count(7, 1, &a71, &b, &c, &d);
    const uint64_t state = xsave ? enabled_register_state() : 0;
    const bool fma = c1 >> 12 & 1, f16c = c1 >> 29 & 1, avx2 = b7 >> 5 & 1;
    const bool f = b7 >> 16 & 1, dq = b7 >> 17 & 1, bw = b7 >> 30 & 1, vl = b7 >> 31 & 1;
    const bool has_avx2 = (state & 0x06) == 0x06 && avx2 && fma && f16c;
    const bool has_avx512 = has_avx2 && (state & 0xe6) == 0xe6 && f && dq && bw && vl;
    const bool has_vnni = has_avx512 && (c7 >> 11 & 1);
    const bool has_bf16 = has_vnni && (a71 >> 5 & 1);
    return new Candidate[4]{{&tier_avx2, has_avx2},
                            {&tier_avx512, has_avx512},
                            {&tier_avx512_vnni, has_vnni},
                            {&tier_avx512_bf16, has_bf16}};
  }();
  return list;
}

constexpr int kCandidates = 4;
const Tier* chosen = nullptr;

struct Scratch {
  void* memory = nullptr;
  int64_t size = 0;
  ~Scratch() { std::free(memory); }
};

}  // namespace

void* scratch(int64_t bytes) {
  thread_local Scratch mine;
  if (bytes > mine.size) {
    std::free(mine.memory);
    mine.size = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    mine.memory = std::aligned_alloc(4096, mine.size);
    if (!mine.memory) std::abort();  // out of memory, where nobody can be told
  }
  return mine.memory;
}

}  // namespace pagelet

#define PAGELET_EXPORT extern "C" __attribute__((visibility("default")))

// Names of the tiers that this machine can run, the most capable last; null behind the last.
PAGELET_EXPORT const char* pagelet_cpu_tier(int index) {
  for (int i = 0; i < pagelet::kCandidates; ++i) {
    const auto& candidate = pagelet::candidates()[i];
    if (candidate.supported && index-- == 0) return candidate.tier->name;
  }
  return nullptr;
}

// Takes the tier of that name; false if this machine cannot run it. Not while an operation runs.
PAGELET_EXPORT bool pagelet_cpu_use_tier(const char* name) {
  for (int i = 0; i < pagelet::kCandidates; ++i) {
    const auto& candidate = pagelet::candidates()[i];
    if (candidate.supported && std::strcmp(candidate.tier->name, name) == 0) {
      pagelet::chosen = candidate.tier;
      return true;
    }
  }
  return false;
}

PAGELET_EXPORT void pagelet_cpu_set_threads(int threads) {
  pagelet::ThreadPool::instance().set_threads(threads);
}

// One operation of a program, or the whole of a single call.
struct pagelet_call {
  int64_t op;
  const void* args;
};

// Runs `count` operations one after another with the given sizes.
PAGELET_EXPORT void pagelet_cpu_run(const pagelet_call* calls, int64_t count,
                                    const pagelet::Step* step) {
  auto& pool = pagelet::ThreadPool::instance();
  const auto* const tier = pagelet::chosen;
  for (int64_t i = 0; i < count; ++i) tier->ops[calls[i].op](calls[i].args, *step, pool);
}
