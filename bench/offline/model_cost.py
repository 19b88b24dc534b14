"""What a step of a model must read and compute at least, from its architecture."""

import dataclasses

from pagelet.engine.model_config import ModelConfig

BITS = {
    "float64": 64.0,
    "float32": 32.0,
    "bfloat16": 16.0,
    "float16": 16.0,
    "fp8": 8.0,
    "int8": 8.5,
    "int4": 5.0,
}
"""Of a weight; quantised ones with their share of the scales."""


@dataclasses.dataclass(frozen=True)
class ModelCost:
    """`kind` is the type of the linear layers' weights, a key of `BITS`, and `head_kind` of the
    vocabulary's, if it is another; `kv_bits` of a number in the KV cache."""

    config: ModelConfig
    kind: str
    kv_bits: float
    head_kind: str | None = None

    def decode_bytes(self, batch: int, context: int) -> float:
        """Read by a step of `batch` requests with `context` tokens each: every weight once, and
        the keys and values of every request."""
        config = self.config
        per_token = 2 * config.num_kv_heads * config.head_dim * self.kv_bits / 8
        return self._bytes(batch) + batch * per_token * self._attended(context)

    def decode_flops(self, batch: int, context: int) -> float:
        """Of a step of `batch` requests with `context` tokens each."""
        return batch * (2 * self._active_weights() + self._attention_flops(context))

    def prefill_flops(self, batch: int, prompt: int) -> float:
        """Of `batch` prompts, of whose tokens only the last needs the vocabulary."""
        return batch * self.chunk_flops(0, prompt)

    def chunk_flops(self, start: int, end: int) -> float:
        """Of a prompt's tokens [start, end), where those before are cached, and the draw of one."""
        body = self._active_weights() - self._vocabulary()
        products = (end - start) * 2 * body + 2 * self._vocabulary()
        return products + self.attention_flops(start, end)

    def attention_flops(self, start: int, end: int) -> float:
        """Of a prompt's tokens [start, end), which attend to all before them."""
        return (end - start) * self._attention_flops((start + 1 + end) / 2)

    @property
    def kv_token_bytes(self) -> float:
        """Of one token's keys and values in all layers."""
        config = self.config
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * self.kv_bits / 8

    @property
    def weight_bytes(self) -> float:
        """In memory: every expert, and an embedding that is not the head."""
        table = 0 if self.config.tie_word_embeddings else self._vocabulary() * 2
        return self._bytes(1 << 30) + table

    def attended(self, context: float) -> float:
        """Tokens that one token attends to, on average over the layers."""
        return self._attended(context) / self.config.num_layers

    def _attention_flops(self, context: float) -> float:
        """Of one token: a product with the keys and one with the values."""
        return 4 * self.config.num_heads * self.config.head_dim * self._attended(context)

    def _attended(self, context: float) -> float:
        """Tokens that one token attends to, summed over the layers."""
        windows = (self.config.window(layer) for layer in range(self.config.num_layers))
        return sum(context if window is None else min(context, window) for window in windows)

    def _vocabulary(self) -> int:
        return self.config.vocab_size * self.config.hidden_size

    def _attention_weights(self) -> int:
        config = self.config
        heads = 2 * config.num_heads + 2 * config.num_kv_heads  # query and output, key and value
        return config.hidden_size * config.head_dim * heads

    def _bytes(self, batch: int) -> float:
        """Of the weights that `batch` tokens need."""
        layers = (self._weights(batch) - self._vocabulary()) * BITS[self.kind]
        return (layers + self._vocabulary() * BITS[self.head_kind or self.kind]) / 8

    def _active_weights(self) -> float:
        """Multiplied for one token."""
        return self._weights(1)

    def _weights(self, batch: int) -> float:
        """Of all linear layers, as far as `batch` tokens need them: of a mixture of experts, those
        that at least one token is expected to choose."""
        config, moe = self.config, self.config.moe
        total: float = self._vocabulary() + config.num_layers * self._attention_weights()
        dense = 3 * config.hidden_size * config.intermediate_size
        if moe is None:
            return total + config.num_layers * dense
        expert = 3 * config.hidden_size * moe.intermediate_size
        missed = (1 - moe.num_experts_per_token / moe.num_experts) ** batch
        sparse = moe.num_experts * (config.hidden_size + (1 - missed) * expert)
        num_dense = len(moe.dense_layers)
        return total + num_dense * dense + (config.num_layers - num_dense) * sparse
