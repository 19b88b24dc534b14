// All operations in one instruction set: compiled once for each tier, with its flags and with
// PAGELET_TIER set to its name.
#define PAGELET_QUOTE(name) #name
#define PAGELET_NAME(name) PAGELET_QUOTE(name)
#define PAGELET_JOIN(a, b) a##b
#define PAGELET_SYMBOL(prefix, name) PAGELET_JOIN(prefix, name)

#include "../embedding/cpu.cpp"
#include "../gated_activation/cpu.cpp"
#include "../kv_write/cpu.cpp"
#include "../linear/cpu.cpp"
#include "../paged_attention/cpu.cpp"
#include "../rms_norm/cpu.cpp"
#include "../rotary/cpu.cpp"
#include "../sample/cpu.cpp"
#include "../top_logprobs/cpu.cpp"
#include "ops.h"

namespace PAGELET_TIER {
namespace {

template <class Args, void (*function)(const Args&, int64_t, pagelet::ThreadPool&)>
void op(const void* raw, const pagelet::Step& step, pagelet::ThreadPool& pool) {
  const Args& args = *static_cast<const Args*>(raw);
  if (const int64_t rows = step.sizes[args.rows]) function(args, rows, pool);
}

}  // namespace
}  // namespace PAGELET_TIER

namespace pagelet {

using namespace PAGELET_TIER;

extern const Tier PAGELET_SYMBOL(tier_, PAGELET_TIER) = {
    PAGELET_NAME(PAGELET_TIER),
    {
        op<LinearArgs, linear>,
        op<RmsNormArgs, rms_norm>,
        op<GatedActivationArgs, gated_activation>,
        op<EmbeddingArgs, embedding>,
        op<RotaryArgs, rotary>,
        op<KvWriteArgs, kv_write>,
        op<PagedAttentionArgs, paged_attention>,
        op<SampleArgs, sample>,
        op<TopLogprobsArgs, top_logprobs>,
    },
};

}  // namespace pagelet
