// The machine's limits, measured: what the operations' rates are compared with.
#include <cstdint>
#include <cstring>

#include "threads.h"

// Reads memory on all threads, as fast as it comes; returns a sum of it, so that it is read.
extern "C" __attribute__((visibility("default"))) uint64_t pagelet_cpu_read(const void* memory,
                                                                            int64_t bytes) {
  constexpr int64_t kPiece = 256 << 10;
  std::atomic<uint64_t> total{0};
  const auto* const start = static_cast<const char*>(memory);
  pagelet::ThreadPool::instance().parallel_for(bytes / kPiece, [&](int64_t piece) {
    // Four streams at a time, as panels of weights are read.
    using Vector = uint64_t __attribute__((vector_size(64)));
    Vector sum = {};
    for (int64_t offset = 0; offset < kPiece / 4; offset += 64) {
      for (int stream = 0; stream < 4; ++stream) {
        const char* p = start + piece * kPiece + stream * (kPiece / 4) + offset;
        __builtin_prefetch(p + 2048);
        Vector v;
        std::memcpy(&v, p, sizeof v);
        sum += v;
      }
    }
    uint64_t folded = 0;
    for (int i = 0; i < 8; ++i) folded += sum[i];
    total.fetch_add(folded, std::memory_order_relaxed);
  });
  return total.load();
}
