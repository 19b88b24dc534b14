"""A model's forward pass as recorded programs of the CPU library.

Every layer has, beside its call on tensors, a `record` that appends the same computation to a
`Recorder`, over buffers that all steps reuse. A step is then one call per program: hundreds of
operations without Python between them, what CUDA graphs are on a GPU. Where the library has no
operation (collectives) a Python function stands between two programs.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch

from pagelet.engine.layers.context import AttentionMetadata, KVBinding
from pagelet.kernels.cpu.memory import empty_bytes
from pagelet.kernels.cpu.program import Program

NUM_TOKENS, NUM_REQUESTS = 0, 1
"""The sizes that a replay gives, by their index."""


@dataclasses.dataclass(frozen=True)
class RecordedGroup:
    """The buffers of one KV group's metadata."""

    slot_mapping: torch.Tensor  # [max_tokens] int64
    block_table: torch.Tensor  # [max_requests, max_blocks] int32


@dataclasses.dataclass
class ResidualStream:
    """The buffers between layers [max_tokens, hidden_size]."""

    residual: torch.Tensor
    hidden: torch.Tensor
    """The output of the last half layer, which the next norm adds to the residual."""
    normed: torch.Tensor
    """What that norm gives: the input of the next half layer."""
    pending: bool = False
    """Whether `hidden` holds something to be added; not before the first layer."""


class Recorder:
    """Buffers and programs of one rank's forward pass."""

    def __init__(
        self,
        *,
        dtype: torch.dtype,
        max_tokens: int,
        max_requests: int,
        max_model_len: int,
        kv: Mapping[int, KVBinding],
        num_groups: int,
    ) -> None:
        """`kv` is where each layer's keys and values live, in pages of `num_groups` groups."""
        self.dtype = dtype
        self.max_tokens = max_tokens
        self.max_requests = max_requests
        self.max_model_len = max_model_len
        self.kv = kv
        self.input_ids = torch.zeros(max_tokens, dtype=torch.int64)
        self.positions = torch.zeros(max_tokens, dtype=torch.int64)
        self.query_start_loc = torch.zeros(max_requests + 1, dtype=torch.int32)
        self.seq_lens = torch.zeros(max_requests, dtype=torch.int32)
        block_size = next(iter(kv.values())).cache.shape[3]
        max_blocks = -(-max_model_len // block_size)
        self.groups = [
            RecordedGroup(
                torch.zeros(max_tokens, dtype=torch.int64),
                torch.zeros(max_requests, max_blocks, dtype=torch.int32),
            )
            for _ in range(num_groups)
        ]
        self._steps: list[Program | Callable[[int], None]] = []
        self._shared: dict[tuple[str, int], torch.Tensor] = {}

    @property
    def program(self) -> Program:
        """The program that operations are appended to."""
        if not self._steps or not isinstance(self._steps[-1], Program):
            self._steps.append(Program())
        last = self._steps[-1]
        assert isinstance(last, Program)
        return last

    def stream(self, hidden_size: int) -> ResidualStream:
        """The residual stream; the embedding is to be written to its `residual`."""
        return ResidualStream(
            self.buffer("residual", hidden_size),
            self.buffer("hidden", hidden_size),
            self.buffer("normed", hidden_size),
        )

    def call(self, function: Callable[[int], None]) -> None:
        """Appends a Python function, which gets the number of tokens and works on the first rows
        of buffers."""
        self._steps.append(function)

    def buffer(self, name: str, size: int) -> torch.Tensor:
        """[max_tokens, size] in the model's dtype; layers that ask for the same name and size
        share it, as they run one after another."""
        key = name, size
        if key not in self._shared:
            data = empty_bytes(self.max_tokens * size * self.dtype.itemsize)
            self._shared[key] = data.view(self.dtype).view(self.max_tokens, size)
        return self._shared[key]

    def load(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: Sequence[AttentionMetadata],
    ) -> None:
        """Puts a step's inputs into the buffers."""
        first = attention[0]
        _copy(input_ids, self.input_ids)
        _copy(positions, self.positions)
        _copy(first.query_start_loc, self.query_start_loc)
        _copy(first.seq_lens, self.seq_lens)
        for group, meta in zip(self.groups, attention, strict=True):
            _copy(meta.slot_mapping, group.slot_mapping)
            _copy(meta.block_table, group.block_table)

    @property
    def only_program(self) -> Program | None:
        """All that was recorded, unless Python functions stand between."""
        [program, *others] = self._steps
        return program if isinstance(program, Program) and not others else None

    def replay(self, num_tokens: int, num_requests: int) -> None:
        """Runs what was recorded on the loaded inputs."""
        for step in self._steps:
            if isinstance(step, Program):
                step.run(num_tokens, num_requests)
            else:
                step(num_tokens)


def _copy(source: torch.Tensor, buffer: torch.Tensor) -> None:
    """Into the buffer's first places, by numpy: a copy of a few numbers takes torch ten times as
    long, and a step makes six of them while all cores wait."""
    buffer.numpy()[tuple(map(slice, source.shape))] = source.numpy()
