// Embedding lookup, with the factor that some models apply to it.
#include "../cpu/ops.h"
#include "../cpu/rows.h"
#include "../cpu/simd.h"

namespace PAGELET_TIER {
namespace {

using pagelet::EmbeddingArgs;

template <class T>
void run(const EmbeddingArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  for_rows(pool, rows, args.size, [&](int64_t row) {
    T* out = static_cast<T*>(args.out) + row * args.out_stride;
    const int64_t index = args.ids[row] - args.first_id;
    if (index < 0 || index >= args.table_rows) {
      __builtin_memset(out, 0, args.size * sizeof(T));
      return;
    }
    const T* source = static_cast<const T*>(args.table) + index * args.size;
    for_lanes(args.size, [&](int64_t i, int count) {
      store_up_to(out + i, mul(load_up_to(source + i, count), set1(args.scale)), count);
    });
  });
}

}  // namespace

void embedding(const EmbeddingArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  if (args.dtype == pagelet::kFloat32) return run<float>(args, rows, pool);
  run<uint16_t>(args, rows, pool);
}

}  // namespace PAGELET_TIER
