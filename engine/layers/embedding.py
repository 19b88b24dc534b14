"""Token embedding and language-model head, divided over ranks by vocabulary."""

import torch

from pagelet.engine.layers.linear import all_reduce_rows
from pagelet.engine.layers.placement import LoadFunction, Placement, Weight, Weights
from pagelet.engine.layers.recording import Recorder
from pagelet.kernels.embedding import embedding
from pagelet.kernels.embedding.cpu import record_embedding
from pagelet.kernels.linear import linear
from pagelet.kernels.linear.cpu import linear as packed_linear
from pagelet.kernels.linear.packed import LinearFormat, PackedLinear, pack_linear


class _VocabularyTable:
    """This rank's rows of a [vocab_size, hidden_size] table, padded to equal shards."""

    def __init__(self, vocab_size: int, hidden_size: int, placement: Placement) -> None:
        self.vocab_size = vocab_size
        self.tp = placement.tp
        rows = -(-vocab_size // self.tp.size)
        self.first_id = self.tp.rank * rows
        self.weight = placement.empty(rows, hidden_size)

    def weights(self, prefix: str) -> Weights:
        yield Weight(f"{prefix}.weight", (self.vocab_size, self.weight.shape[1]), self._load())

    def _load(self) -> LoadFunction:
        def load(full: torch.Tensor) -> None:
            rows = full[self.first_id : self.first_id + self.weight.shape[0]]
            self.weight[: rows.shape[0]].copy_(rows)
            self.weight[rows.shape[0] :].zero_()

        return load


class VocabParallelEmbedding(_VocabularyTable):
    """Token ids [num_tokens] to embeddings [num_tokens, hidden_size]."""

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.tp.all_reduce(embedding(token_ids, self.weight, self.first_id))

    def record(self, recorder: Recorder, out: torch.Tensor, scale: float) -> None:
        """Appends the look-up of the step's tokens, times `scale`."""
        record_embedding(
            recorder.program,
            recorder.input_ids,
            self.weight,
            out,
            first_id=self.first_id,
            scale=scale,
        )
        if self.tp.size > 1:
            recorder.call(lambda num_tokens: all_reduce_rows(self.tp, out, num_tokens))


class ParallelLMHead(_VocabularyTable):
    """Hidden states [num_rows, hidden_size] to logits [num_rows, vocab_size] on every rank."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        placement: Placement,
        tied_to: VocabParallelEmbedding | None = None,
    ) -> None:
        if tied_to is None:
            super().__init__(vocab_size, hidden_size, placement)
        else:
            self.vocab_size, self.tp, self.first_id = vocab_size, tied_to.tp, tied_to.first_id
            self.weight = tied_to.weight

        self._packed: PackedLinear | None = None

    def pack(self, linear_format: LinearFormat) -> None:
        """From now on computes with the CPU library, to float32. Lets go of the weight, which a
        tied embedding keeps."""
        self._packed = pack_linear(self.weight, linear_format)
        self.weight = self.weight.new_empty(0, 0)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._packed is None:
            local = linear(hidden, self.weight)
        else:
            local = hidden.new_empty(len(hidden), self._packed.out_size, dtype=torch.float32)
            packed_linear(hidden, self._packed, out=local)
        logits = self.tp.all_gather(local)
        # The rows that pad the last shard are no tokens.
        return logits[:, : self.vocab_size]
