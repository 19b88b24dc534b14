// The operations of one instruction set by their number; each is a file of its own, compiled with
// that set's flags and with PAGELET_TIER set to its name.
#define PAGELET_QUOTE(name) #name
#define PAGELET_NAME(name) PAGELET_QUOTE(name)

#include "ops.h"

namespace PAGELET_TIER {

using namespace pagelet;

void linear(const LinearArgs&, int64_t, ThreadPool&);
void rms_norm(const RmsNormArgs&, int64_t, ThreadPool&);
void gated_activation(const GatedActivationArgs&, int64_t, ThreadPool&);
void embedding(const EmbeddingArgs&, int64_t, ThreadPool&);
void rotary(const RotaryArgs&, int64_t, ThreadPool&);
void kv_write(const KvWriteArgs&, int64_t, ThreadPool&);
void paged_attention(const PagedAttentionArgs&, int64_t, ThreadPool&);
void sample(const SampleArgs&, int64_t, ThreadPool&);
void top_logprobs(const TopLogprobsArgs&, int64_t, ThreadPool&);
void token_mask(const TokenMaskArgs&, int64_t, ThreadPool&);
void lora(const LoraArgs&, int64_t, ThreadPool&);
void moe(const MoeArgs&, int64_t, ThreadPool&);
void decode_inputs(const DecodeInputsArgs&, int64_t, ThreadPool&);
void keep_tokens(const KeepTokensArgs&, int64_t, ThreadPool&);

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

extern const Tier tier = {
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
        op<TokenMaskArgs, token_mask>,
        op<LoraArgs, lora>,
        op<MoeArgs, moe>,
        op<DecodeInputsArgs, decode_inputs>,
        op<KeepTokensArgs, keep_tokens>,
    },
};

}  // namespace pagelet
