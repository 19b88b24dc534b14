"""What a model can reach on given hardware, from its configuration alone.

- Weights: each is read once a step, and multiplied once a token. A step's time is the longer of the
  two (roofline: Williams et al., CACM 52(4), 2009; for transformers: Pope et al., "Efficiently
  scaling transformer inference", arXiv 2211.05102).
- KV cache: 2 x layers x KV heads x head size numbers a token, read by each request for its own
  context.
- FLOPs a token: 2 a weight, and 4 x heads x head size a layer for each token attended to.
- Tensor parallelism (Megatron-LM, arXiv 1909.08053): weights, heads and FLOPs are divided by the
  number of GPUs; two all-reduces a layer and one for the embedding, in which each GPU sends and
  receives 2 (n - 1) / n of the activations (ring: Patarasu and Yuan, JPDC 69(2), 2009).
"""

import dataclasses

from pagelet.bench.offline.model_cost import ModelCost
from pagelet.bench.roofline.hardware import Hardware
from pagelet.engine.layers.tensor_parallel import check_tensor_parallel, kv_heads_per_rank
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.step_time import StepTime


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """What no data sheet tells. The defaults are guesses within what kernels usually reach; no
    figure here was measured."""

    read_efficiency: float = 0.8
    """Share of the memory's rate that kernels reach."""
    flops_efficiency: float = 0.6
    """Share of the matrix rate that a prefill reaches."""
    step_seconds: float = 1e-3
    """Of a step, whatever is in it: launches, sampling, what of the host is not hidden."""
    all_reduce_seconds: float = 10e-6
    """Of an all-reduce, whatever its size."""
    memory_utilization: float = 0.9
    """Share of the memory that the engine may use, as of `pagelet serve`."""
    activation_bytes: float = 2e9
    """Of the largest step."""


LIMIT = Assumptions(1.0, 1.0, 0.0, 0.0)
"""What the hardware could do if nothing was lost."""


@dataclasses.dataclass(frozen=True)
class Roofline:
    """One copy of a model on `tp` GPUs of one node. Raises ValueError if they cannot divide it."""

    cost: ModelCost
    hardware: Hardware
    tp: int = 1
    assumed: Assumptions = Assumptions()

    def __post_init__(self) -> None:
        check_tensor_parallel(self.config, self.tp)

    @property
    def config(self) -> ModelConfig:
        return self.cost.config

    @property
    def kv_token_bytes(self) -> float:
        """Of one token on one GPU; KV heads that are fewer than GPUs are held several times."""
        heads = self.config.num_kv_heads
        return self.cost.kv_token_bytes * kv_heads_per_rank(heads, self.tp) / heads

    @property
    def kv_cache_bytes(self) -> float:
        """Room for the KV cache on one GPU; negative if not even the weights fit."""
        usable = self.hardware.memory_bytes * self.assumed.memory_utilization
        return usable - self.cost.weight_bytes / self.tp - self.assumed.activation_bytes

    def largest_batch(self, context: int) -> int:
        """Requests of so many tokens that the KV cache holds."""
        return max(0, int(self.kv_cache_bytes // (self.kv_token_bytes * self.context(context))))

    def context(self, tokens: float) -> float:
        """Tokens that one token attends to, on average over the layers."""
        return self.cost.attended(tokens)

    def step_time(self, batch: int) -> StepTime:
        """Of a step of `batch` tokens or more: a mixture of experts reads more of them for more
        tokens. The same formula runs the simulated runner."""
        read = self.hardware.read_bytes * self.assumed.read_efficiency
        reduces = 2 * self.config.num_layers + 1 if self.tp > 1 else 0
        return StepTime(
            step_seconds=self.assumed.step_seconds + reduces * self.assumed.all_reduce_seconds,
            weights_seconds=self.cost.decode_bytes(batch, 0) / self.tp / read,
            token_seconds=self.cost.decode_flops(1, 0) / self._flops
            + reduces * self._all_reduce_token_seconds,
            context_token_seconds=self.kv_token_bytes / read,
        )

    @property
    def _flops(self) -> float:
        """A second, of all GPUs together."""
        return self.hardware.rate(self.cost.kind) * self.assumed.flops_efficiency * self.tp

    @property
    def _all_reduce_token_seconds(self) -> float:
        """Of one token's activations, two bytes a number; a link's rate counts both directions."""
        num_bytes = 2 * (self.tp - 1) / self.tp * 2 * self.config.hidden_size
        return num_bytes / (self.hardware.link_bytes / 2)

    def decode_seconds(self, batch: int, context: float) -> float:
        """Of a step in which each of `batch` requests has a context of so many tokens."""
        return self.step_time(batch).seconds(batch, batch * self.context(context))

    def decode_tokens_per_second(self, batch: int, context: float) -> float:
        """Of all requests together."""
        return batch / self.decode_seconds(batch, context)

    def ttft_seconds(self, prompt: int, cached: int = 0, chunk: int = 2048) -> float:
        """From the first step to the first token, for one prompt of which `cached` tokens are in
        the prefix cache, in chunks of at most `chunk` tokens; nothing else runs or waits, and the
        way to the client is not counted."""
        seconds = 0.0
        for start in range(cached, prompt, chunk):
            end = min(start + chunk, prompt)
            tokens = end - start
            attention = self.cost.attention_flops(start, end)
            seconds += self.step_time(tokens).seconds(tokens, self.context(end))
            seconds += attention / self._flops
        return seconds
