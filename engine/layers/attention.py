"""Self-attention over the paged KV cache."""

import torch

from pagelet.engine.layers.context import ForwardContext
from pagelet.engine.layers.linear import RowParallelLinear, qkv_parallel_linear
from pagelet.engine.layers.norm import RMSNorm
from pagelet.engine.layers.placement import Placement, Weights
from pagelet.engine.layers.recording import NUM_REQUESTS, Recorder
from pagelet.engine.layers.rotary import Rotation
from pagelet.engine.layers.tensor_parallel import kv_heads_per_rank
from pagelet.engine.model_config import ModelConfig
from pagelet.kernels.paged_attention import paged_attention
from pagelet.kernels.paged_attention.cpu import record_paged_attention
from pagelet.kernels.rotary import rotary_kv_write
from pagelet.kernels.rotary.cpu import record_rotary_kv_write


class Attention:
    """Grouped-query attention with rotary positions; optionally biases, norms of queries and keys
    (per head), a sliding window and a soft cap on the scores."""

    def __init__(self, config: ModelConfig, layer: int, placement: Placement) -> None:
        self.layer = layer
        self.head_dim = config.head_dim
        self.num_heads = placement.share(config.num_heads)
        self.num_kv_heads = kv_heads_per_rank(config.num_kv_heads, placement.tp.size)
        self.scale = config.attention_scale or config.head_dim**-0.5
        self.window = config.window(layer)
        self.softcap = config.attention_logit_softcap
        self.qkv_proj = qkv_parallel_linear(
            config.hidden_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.qkv_bias,
            placement,
        )
        self.o_proj = RowParallelLinear(
            config.num_heads * config.head_dim, config.hidden_size, config.o_bias, placement
        )
        self.qk_norms: tuple[RMSNorm, RMSNorm] | None = None
        if config.qk_norm:
            eps, plus_one = config.rms_norm_eps, config.norm_plus_one
            self.qk_norms = (
                RMSNorm(config.head_dim, eps, plus_one, placement),
                RMSNorm(config.head_dim, eps, plus_one, placement),
            )

    def __call__(
        self, hidden: torch.Tensor, rotation: Rotation, ctx: ForwardContext
    ) -> torch.Tensor:
        """[num_tokens, hidden_size] to the same, writing this step's keys and values on the way."""
        heads = self.qkv_proj(hidden).view(hidden.shape[0], -1, self.head_dim)
        sizes = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        query, key, value = torch.split(heads, sizes, 1)
        if self.qk_norms is not None:
            query_norm, key_norm = self.qk_norms
            query, key = query_norm(query), key_norm(key)
        binding = ctx.kv[self.layer]
        meta = ctx.attention[binding.group]
        query = rotary_kv_write(
            query, key, value, rotation.cos, rotation.sin, binding.cache, meta.slot_mapping
        )
        out = paged_attention(
            query,
            binding.cache,
            meta.query_start_loc,
            meta.seq_lens,
            meta.block_table,
            max_query_len=meta.max_query_len,
            max_seq_len=meta.max_seq_len,
            query_lens_cpu=meta.query_lens_cpu,
            seq_lens_cpu=meta.seq_lens_cpu,
            scale=self.scale,
            sliding_window=self.window,
            softcap=self.softcap,
        )
        return self.o_proj(out.reshape(hidden.shape[0], -1))

    def record(
        self, recorder: Recorder, x: torch.Tensor, cos_sin: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Appends the layer on x to `out`; `cos_sin` is `RotaryEmbedding.table`."""
        qkv = recorder.buffer("qkv", self.qkv_proj.out_size)
        heads = qkv.view(len(qkv), -1, self.head_dim)
        attended = recorder.buffer("attended", self.num_heads * self.head_dim)
        self.qkv_proj.record(recorder, x, qkv)
        query = heads[:, : self.num_heads]
        if self.qk_norms is not None:
            key = heads[:, self.num_heads : self.num_heads + self.num_kv_heads]
            for norm, part in zip(self.qk_norms, (query, key), strict=True):
                norm.record(recorder, part, part)
        binding = recorder.kv[self.layer]
        group = recorder.groups[binding.group]
        record_rotary_kv_write(
            recorder.program,
            heads,
            recorder.positions,
            cos_sin,
            binding.cache,
            group.slot_mapping,
            num_heads=self.num_heads,
        )
        record_paged_attention(
            recorder.program,
            query,
            binding.cache,
            recorder.query_start_loc,
            recorder.seq_lens,
            group.block_table,
            attended.view(len(qkv), self.num_heads, self.head_dim),
            scale=self.scale,
            sliding_window=self.window,
            softcap=self.softcap,
            requests=NUM_REQUESTS,
        )
        self.o_proj.record(recorder, attended, out)

    def weights(self, prefix: str) -> Weights:
        yield from self.qkv_proj.weights(prefix)
        yield from self.o_proj.weights(f"{prefix}.o_proj")
        if self.qk_norms is not None:
            yield from self.qk_norms[0].weights(f"{prefix}.q_norm")
            yield from self.qk_norms[1].weights(f"{prefix}.k_norm")
