"""Token embedding and language-model head, divided over ranks by vocabulary."""

import dataclasses

import torch
from torch.nn import functional

from pagelet.engine.layers.context import TensorParallel
from pagelet.engine.layers.linear import all_reduce_rows
from pagelet.engine.layers.linear_weight import LinearWeight
from pagelet.engine.layers.placement import Placement, Weight, Weights
from pagelet.engine.layers.recording import Recorder
from pagelet.engine.weights.quantized_tensor import QuantizedTensor, StoredTensor, as_floats
from pagelet.kernels.cpu.program import Program
from pagelet.kernels.embedding import embedding
from pagelet.kernels.embedding.cpu import record_embedding


@dataclasses.dataclass(frozen=True)
class VocabularyShard:
    """This rank's rows of a [vocab_size, hidden_size] table, padded to equal shards."""

    vocab_size: int
    tp: TensorParallel

    @property
    def num_rows(self) -> int:
        """Of each rank."""
        return -(-self.vocab_size // self.tp.size)

    @property
    def first_id(self) -> int:
        """The token of this rank's first row."""
        return self.tp.rank * self.num_rows

    def take(self, full: StoredTensor) -> StoredTensor:
        """This rank's rows of the full table, with zeros for those that are no tokens."""
        first = min(self.first_id, self.vocab_size)
        count = min(self.num_rows, self.vocab_size - first)
        rows, missing = full.narrow(0, first, count), self.num_rows - count
        if not missing:
            return rows
        if isinstance(rows, QuantizedTensor):
            return rows.pad_rows(missing)
        return functional.pad(rows, (0, 0, 0, missing))


class VocabParallelEmbedding:
    """Token ids [num_tokens] to embeddings [num_tokens, hidden_size]."""

    def __init__(self, vocab_size: int, hidden_size: int, placement: Placement) -> None:
        self.shard = VocabularyShard(vocab_size, placement.tp)
        self.weight = placement.empty(self.shard.num_rows, hidden_size)

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        rows = embedding(token_ids, self.weight, self.shard.first_id)
        return self.shard.tp.all_reduce(rows)

    def record(self, recorder: Recorder, out: torch.Tensor, scale: float) -> None:
        """Appends the look-up of the step's tokens, times `scale`."""
        tp, first_id = self.shard.tp, self.shard.first_id
        record_embedding(
            recorder.program, recorder.input_ids, self.weight, out, first_id=first_id, scale=scale
        )
        if tp.size > 1:
            recorder.call(lambda num_tokens: all_reduce_rows(tp, out, num_tokens))

    def weights(self, prefix: str) -> Weights:
        shape = self.shard.vocab_size, self.weight.shape[1]
        yield Weight(f"{prefix}.weight", shape, self._load, self.weight)

    def _load(self, full: StoredTensor) -> None:
        self.weight.copy_(as_floats(self.shard.take(full), self.weight.dtype))


class ParallelLMHead:
    """Hidden states [num_rows, hidden_size] to logits [num_rows, vocab_size] on every rank.

    A head that is `tied_to` an embedding shares its table; on the CPU library, which reads a
    packed weight faster, it has a copy of its own."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        placement: Placement,
        tied_to: VocabParallelEmbedding | None = None,
    ) -> None:
        self.shard = VocabularyShard(vocab_size, placement.tp)
        sizes = [self.shard.num_rows]
        unrounded = dataclasses.replace(placement, rounding=None)
        self.weight = LinearWeight(sizes, hidden_size, unrounded, placement.head_packing)
        self._shares_table = tied_to is not None and placement.head_packing is None
        if tied_to is not None and self._shares_table:
            self.weight.tensor = tied_to.weight

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.weight.packed:
            program = Program()
            local = self.record(program, hidden)
            program.run(len(hidden))
        else:
            local = self.weight(hidden)
        logits = self.shard.tp.all_gather(local)
        # The rows that pad the last shard are no tokens.
        return logits[:, : self.shard.vocab_size]

    def record(self, program: Program, hidden: torch.Tensor) -> torch.Tensor:
        """Appends the product of a packed weight; returns where it puts this rank's logits
        [max_rows, num_rows of the shard] of hidden [max_rows, hidden_size], in float32."""
        local = hidden.new_empty(len(hidden), self.shard.num_rows, dtype=torch.float32)
        self.weight.record(program, hidden, local)
        return local

    def weights(self, prefix: str) -> Weights:
        """`prefix` is the embedding's if the head is tied to it."""
        if not self._shares_table:
            shape = self.shard.vocab_size, self.weight.in_size
            yield Weight(f"{prefix}.weight", shape, self._load, self.weight)

    def _load(self, full: StoredTensor) -> None:
        self.weight.load(0, self.shard.take(full))
