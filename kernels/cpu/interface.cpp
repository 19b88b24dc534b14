// The library's plain C interface.
#include <cstdlib>

#include "ops.h"

namespace pagelet {

extern const Tier tier;

namespace {

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
  for (int64_t i = 0; i < count; ++i) pagelet::tier.ops[calls[i].op](calls[i].args, *step, pool);
}
