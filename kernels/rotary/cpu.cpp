// Rotary positions and the KV write in one pass over the projected heads.
#include "../cpu/ops.h"
#include "../cpu/rows.h"
#include "../cpu/simd.h"
#include "../paged_attention/cpu_pages.h"

namespace PAGELET_TIER {
namespace {

using pagelet::RotaryArgs;

template <class T>
void rotate(T* head, const float* cos, const float* sin, int half) {
  for_lanes(half, [&](int64_t i, int count) {
    const f32x16 first = load_up_to(head + i, count), second = load_up_to(head + half + i, count);
    const f32x16 c = load_up_to(cos + i, count), s = load_up_to(sin + i, count);
    store_up_to(head + i, sub(mul(first, c), mul(second, s)), count);
    store_up_to(head + half + i, add(mul(second, c), mul(first, s)), count);
  });
}

template <class T, class Cache>
void run(const RotaryArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  const int dim = args.head_dim;
  const int64_t page = args.block_size * token_size<Cache>(dim);
  const int64_t row_size = int64_t{args.num_heads + 2 * args.num_kv_heads} * dim;
  for_rows(pool, rows, row_size, [&](int64_t row) {
    T* heads = static_cast<T*>(args.x) + row * args.x_stride;
    const float* cos = args.cos_sin + args.positions[row] * dim;
    for (int head = 0; head < args.num_heads + args.num_kv_heads; ++head) {
      rotate(heads + int64_t{head} * dim, cos, cos + dim / 2, dim / 2);
    }
    const int64_t block = args.slots[row] / args.block_size;
    const int token = static_cast<int>(args.slots[row] % args.block_size);
    const T* key = heads + int64_t{args.num_heads} * dim;
    const T* value = key + int64_t{args.num_kv_heads} * dim;
    for (int head = 0; head < args.num_kv_heads; ++head) {
      const int64_t start = (block * args.num_kv_heads + head) * page;
      store_token(key + int64_t{head} * dim, value + int64_t{head} * dim, token, dim,
                  static_cast<Cache*>(args.k_cache) + start,
                  static_cast<Cache*>(args.v_cache) + start);
    }
  });
}

template <class T>
void run(const RotaryArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  switch (args.cache_dtype) {
    case pagelet::kFloat32: return run<T, float>(args, rows, pool);
    case pagelet::kBFloat16: return run<T, uint16_t>(args, rows, pool);
    case pagelet::kInt8: return run<T, int8_t>(args, rows, pool);
  }
}

}  // namespace

void rotary(const RotaryArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  if (args.dtype == pagelet::kFloat32) return run<float>(args, rows, pool);
  run<uint16_t>(args, rows, pool);
}

}  // namespace PAGELET_TIER
