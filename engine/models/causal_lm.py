"""What every decoder-only model here shares: embedding, a stack of layers, head, and loading."""

import abc
import hashlib
import re
from collections.abc import Iterable
from typing import Protocol

import torch

from pagelet.engine.layers.context import ForwardContext
from pagelet.engine.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from pagelet.engine.layers.expert_weights import ExpertWeights
from pagelet.engine.layers.linear import ReplicatedLinear
from pagelet.engine.layers.linear_weight import LinearWeight
from pagelet.engine.layers.norm import RMSNorm
from pagelet.engine.layers.pipeline import stage_layers
from pagelet.engine.layers.placement import Placement, Weight, Weights
from pagelet.engine.layers.recording import Recorder, ResidualStream
from pagelet.engine.layers.rotary import RotaryEmbedding, Rotation
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.weights.quantized_tensor import StoredTensor
from pagelet.kernels.precision import accumulation_dtype


class DecoderLayer(Protocol):
    """One layer. Takes the last layer's output and the residual stream without it (None before the
    first layer) and returns the same two, so that each addition fuses with the norm after it."""

    def __call__(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor | None,
        rotation: Rotation,
        ctx: ForwardContext,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def record(self, recorder: Recorder, stream: ResidualStream, cos_sin: torch.Tensor) -> None: ...

    def weights(self, prefix: str) -> Weights: ...


class CausalLM(abc.ABC):
    """A decoder-only language model on one rank: of one pipeline stage's layers its part. The first
    stage has the embedding, the last one the norm after all layers and the head.

    A subclass says how a layer is made. Weights are uninitialised until `load_weights` or
    `init_dummy`.
    """

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        self.config = config
        self.placement = placement
        vocab_size, hidden_size = config.vocab_size, config.hidden_size
        self.pp = placement.ranks.pp
        self.embed_tokens: VocabParallelEmbedding | None = None
        if self.pp.is_first:
            self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size, placement)
        own = stage_layers(config.num_layers, self.pp.stage, self.pp.size)
        self.layers = {layer: self.make_layer(layer) for layer in own}
        self.norm: RMSNorm | None = None
        if self.pp.is_last:
            self.norm = RMSNorm(hidden_size, config.rms_norm_eps, config.norm_plus_one, placement)
        self.lm_head: ParallelLMHead | None = None
        if config.head == "lm" and self.pp.is_last:
            tied_to = self.embed_tokens if config.tie_word_embeddings else None
            self.lm_head = ParallelLMHead(vocab_size, hidden_size, placement, tied_to)
        self.score: ReplicatedLinear | None = None
        if config.head == "score" and self.pp.is_last:
            self.score = ReplicatedLinear(hidden_size, config.num_labels, placement)
        head_dim, max_position = config.head_dim, config.max_position_embeddings
        self.rope = RotaryEmbedding(head_dim, config.rope, max_position, placement)
        self.local_rope: RotaryEmbedding | None = None
        if config.local_rope is not None and config.local_rope != config.rope:
            self.local_rope = RotaryEmbedding(head_dim, config.local_rope, max_position, placement)

    @abc.abstractmethod
    def make_layer(self, layer: int) -> DecoderLayer: ...

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, ctx: ForwardContext
    ) -> torch.Tensor:
        """Token ids [num_tokens] at their positions to final hidden states
        [num_tokens, hidden_size]; writes the tokens' keys and values to the cache. A stage before
        the last sends its states on, and what it returns is not final."""
        residual: torch.Tensor | None = None
        if self.embed_tokens is not None:
            hidden = self.embed_tokens(input_ids)
            if self.config.embedding_scale is not None:
                hidden = hidden * self._embedding_scale()
        else:
            shape = len(input_ids), self.config.hidden_size
            hidden, residual = self.placement.empty(*shape), self.placement.empty(*shape)
            self.pp.receive(hidden)
            self.pp.receive(residual)
        rotation = self.rope(positions)
        local_rotation = rotation if self.local_rope is None else self.local_rope(positions)
        for layer, decoder_layer in self.layers.items():
            sliding = layer in self.config.sliding_layers
            hidden, residual = decoder_layer(
                hidden, residual, local_rotation if sliding else rotation, ctx
            )
        if self.norm is not None:
            return self.norm.add(hidden, residual)[0]
        assert residual is not None, "a stage has at least one layer"
        self.pp.send(hidden)
        self.pp.send(residual)
        return hidden

    def _embedding_scale(self) -> float:
        """Rounded to the weights' type, as in training."""
        scale = torch.tensor(self.config.embedding_scale or 1.0, dtype=self.placement.dtype)
        return float(scale)

    def record(self, recorder: Recorder) -> torch.Tensor:
        """Records the forward pass over the CPU library's operations, and returns the buffer
        [max_tokens, hidden_size] that will hold what `forward` returns.

        For a model whose placement has a packing, and in place of `forward`, which it has not.
        """
        stream = recorder.stream(self.config.hidden_size)
        tables = [
            rope.table(recorder.max_model_len) for rope in (self.rope, self.local_rope or self.rope)
        ]
        pp, hidden, residual = self.pp, stream.hidden, stream.residual
        if self.embed_tokens is not None:
            self.embed_tokens.record(recorder, residual, self._embedding_scale())
        else:
            recorder.call(lambda num_tokens: pp.receive(hidden[:num_tokens]))
            recorder.call(lambda num_tokens: pp.receive(residual[:num_tokens]))
            stream.pending = True
        for layer, decoder_layer in self.layers.items():
            sliding = layer in self.config.sliding_layers
            decoder_layer.record(recorder, stream, tables[sliding])
        if self.norm is not None:
            self.norm.record_add(recorder, stream)
            return stream.normed
        recorder.call(lambda num_tokens: pp.send(hidden[:num_tokens]))
        recorder.call(lambda num_tokens: pp.send(residual[:num_tokens]))
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final hidden states [num_rows, hidden_size] to logits [num_rows, vocab_size], complete
        on every rank, in float32 (float64 for a float64 model)."""
        assert self.lm_head is not None, "this model does not generate"
        logits = self.lm_head(hidden).to(accumulation_dtype(hidden.dtype))
        if (cap := self.config.final_logit_softcap) is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits

    def weights(self) -> Weights:
        """The tensors of a checkpoint of this model that this rank takes a part of, under Hugging
        Face's names; a name comes twice if two layers take the tensor."""
        if self.embed_tokens is not None:
            yield from self.embed_tokens.weights("model.embed_tokens")
        for layer, decoder_layer in self.layers.items():
            yield from decoder_layer.weights(f"model.layers.{layer}")
        if self.norm is not None:
            yield from self.norm.weights("model.norm")
        if self.lm_head is not None:
            tied = self.config.tie_word_embeddings
            yield from self.lm_head.weights("model.embed_tokens" if tied else "lm_head")
        if self.score is not None:
            yield from self.score.weights("score")

    @property
    def weight_bytes(self) -> int:
        """What this rank's loaded weights take in memory."""
        storages = {id(weight.storage): weight.storage for weight in self.weights()}
        return sum(storage.nbytes for storage in storages.values())

    @property
    def linear_formats(self) -> set[str]:
        """How this rank's linear layers hold their loaded weights: for the CPU library, or
        quantised on a GPU; none of it for floats on torch's operations."""
        layers = (weight.storage for weight in self.weights())
        kinds = (LinearWeight, ExpertWeights)
        return set().union(*(layer.formats for layer in layers if isinstance(layer, kinds)))

    def _is_elsewhere(self, name: str) -> bool:
        """Whether a tensor belongs to another rank: a stage's, or an expert's."""
        if (found := re.match(r"model\.layers\.(\d+)\.", name)) is not None:
            layer = int(found[1])
            if layer not in self.layers:
                return layer < self.config.num_layers
            found = re.search(r"\.experts\.(\d+)\.", name)
            experts = self.config.moe.num_experts if self.config.moe is not None else 0
            divided = self.placement.ranks.expert_parallel
            return divided and found is not None and int(found[1]) < experts
        if name.startswith("model.embed_tokens."):
            return not self.pp.is_first
        return name.startswith(("model.norm.", "lm_head.", "score.")) and not self.pp.is_last

    def load_weights(self, tensors: Iterable[tuple[str, StoredTensor]]) -> None:
        """Takes this rank's shards of full checkpoint tensors, in any order and type.

        Raises ValueError for a tensor that the model does not have, one of another shape, and at
        the end for those that are missing.
        """
        wanted: dict[str, list[Weight]] = {}
        for weight in self.weights():
            wanted.setdefault(weight.name, []).append(weight)
        missing = set(wanted)
        unexpected = []
        for name, tensor in tensors:
            if name not in wanted and self._is_elsewhere(name):
                continue
            if name not in wanted and _is_empty_bias(name, tensor):
                continue
            if name not in wanted:
                # A tied head is the embedding; some checkpoints store it twice. A model that does
                # not generate needs none.
                needless = self.lm_head is None or self.config.tie_word_embeddings
                if not (name == "lm_head.weight" and needless):
                    unexpected.append(name)
                continue
            shape = wanted[name][0].shape
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"{name}: the checkpoint has shape {list(tensor.shape)}, but its configuration "
                    f"asks for {list(shape)}"
                )
            for weight in wanted[name]:
                weight.load(tensor)
            missing.discard(name)
        problems = [
            f"{len(names)} {what}: {', '.join(sorted(names)[:5])}{', ...' if names[5:] else ''}"
            for what, names in (("missing", sorted(missing)), ("unexpected", unexpected))
            if names
        ]
        if problems:
            raise ValueError(
                f"the checkpoint does not fit {self.config.architecture}; tensors "
                f"{'; '.join(problems)}"
            )

    def init_dummy(self, seed: int = 0) -> None:
        """Random weights in place of a checkpoint: the same model for any number of ranks."""
        for weight in self.weights():
            if weight.is_norm:
                continue
            digest = hashlib.sha256(f"{seed}:{weight.name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
            weight.load(torch.randn(weight.shape, generator=generator) * 0.02)


def _is_empty_bias(name: str, tensor: StoredTensor) -> bool:
    """A bias of zeros, which GPTQ's tools store for every layer, is none."""
    return name.endswith(".bias") and isinstance(tensor, torch.Tensor) and not tensor.any()
