// The KV write, for models whose keys are not turned by their positions.
#include "../cpu/ops.h"
#include "../cpu/rows.h"
#include "../paged_attention/cpu_pages.h"

namespace PAGELET_TIER {
namespace {

using pagelet::KvWriteArgs;

template <class T, class Cache>
void run(const KvWriteArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  const int64_t dim = args.head_dim;
  const int64_t row_size = args.num_kv_heads * dim;
  for_rows(pool, rows, 2 * row_size, [&](int64_t row) {
    const T* key = static_cast<const T*>(args.key) + row * args.key_stride;
    const T* value = static_cast<const T*>(args.value) + row * args.value_stride;
    const int64_t block = args.slots[row] / args.block_size;
    const int token = static_cast<int>(args.slots[row] % args.block_size);
    for (int64_t head = 0; head < args.num_kv_heads; ++head) {
      const int64_t page =
          (block * args.num_kv_heads + head) * args.block_size * token_size<Cache>(dim);
      store_token(key + head * dim, value + head * dim, token, args.head_dim,
                  static_cast<Cache*>(args.k_cache) + page,
                  static_cast<Cache*>(args.v_cache) + page);
    }
  });
}

template <class T>
void run(const KvWriteArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  switch (args.cache_dtype) {
    case pagelet::kFloat32: return run<T, float>(args, rows, pool);
    case pagelet::kBFloat16: return run<T, uint16_t>(args, rows, pool);
    case pagelet::kInt8: return run<T, int8_t>(args, rows, pool);
  }
}

}  // namespace

void kv_write(const KvWriteArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  if (args.dtype == pagelet::kFloat32) return run<float>(args, rows, pool);
  run<uint16_t>(args, rows, pool);
}

}  // namespace PAGELET_TIER
