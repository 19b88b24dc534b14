// Gated activations: act(gate) * up, rounded once.
#include "../cpu/ops.h"
#include "../cpu/rows.h"
#include "../cpu/simd.h"

namespace PAGELET_TIER {
namespace {

using pagelet::GatedActivationArgs;

f32x16 silu(f32x16 x) { return mul(x, sigmoid(x)); }

// GELU's tanh approximation, where (1 + tanh(u)) / 2 = sigmoid(2 u).
f32x16 gelu_tanh(f32x16 x) {
  const f32x16 cubic = mul(mul(x, x), mul(x, set1(0.044715f)));
  return mul(x, sigmoid(mul(add(x, cubic), set1(1.59576912f))));  // 2 sqrt(2 / pi)
}

template <class T>
void run(const GatedActivationArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  for_rows(pool, rows, args.size, [&](int64_t row) {
    const T* gate = static_cast<const T*>(args.x) + row * args.x_stride;
    const T* up = gate + args.size;
    T* out = static_cast<T*>(args.out) + row * args.out_stride;
    for_lanes(args.size, [&](int64_t i, int count) {
      const f32x16 x = load_up_to(gate + i, count);
      const f32x16 activated = args.gelu_tanh ? gelu_tanh(x) : silu(x);
      store_up_to(out + i, mul(activated, load_up_to(up + i, count)), count);
    });
  });
}

}  // namespace

void gated_activation(const GatedActivationArgs& args, int64_t rows, pagelet::ThreadPool& pool) {
  if (args.dtype == pagelet::kFloat32) return run<float>(args, rows, pool);
  run<uint16_t>(args, rows, pool);
}

}  // namespace PAGELET_TIER
