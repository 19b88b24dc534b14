"""Decode steps, and those with drafts, replayed from CUDA graphs.

A small model's step is hundreds of kernels that each take less time than Python needs to launch
them. A CUDA graph is all of them in one launch, but it fixes their addresses and sizes. So there is
one graph for each of a ladder of batch sizes, over buffers that never move; a step is padded up to
the next size with rows that read and write nothing but the null block. A request that computes a
few tokens, as with drafts that are to be verified, has a row for each: as all keys of a step are
written before a layer attends, a token is a decode whose context ends with it. Steps that prefill
more are not replayed: they are of any shape, and long enough to hide their launches.
"""

import os
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.layers.context import AttentionMetadata
from pagelet.protocol.config import CudaOptions

Forward = Callable[[torch.Tensor, torch.Tensor, list[AttentionMetadata]], torch.Tensor]
"""Token ids and positions [num_tokens] and each KV group's metadata, to hidden states."""

_DRIVER_BYTES = 8 << 20
"""An estimate of what a captured graph's nodes take."""
_LONGEST_QUERY = 8
"""Tokens of a request that are rows of their own, which all read its context."""
_LARGEST = 512
"""Of the sizes chosen here. Beyond it a step's kernels are long enough to hide their launches."""


class GraphBackend(Protocol):
    """Where graphs come from."""

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Records what `function` does on the device, and returns what does it again, on the same
        memory. Graphs may share the memory that they need between their first and last operation,
        as no two of them run at once."""
        ...


class CudaGraphs:
    """Implements `GraphBackend` with one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """See `GraphBackend`. Runs the function once before: kernels are compiled and libraries
        take their workspaces at their first call, which a capture does not allow."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            function()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as NCCL's watchdog, may use the device meanwhile.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            function()
        return graph.replay


def make_graph_backend(options: CudaOptions, device: torch.device) -> GraphBackend | None:
    """That of a device; None where steps are to run without graphs: on a CPU, if so asked, and if
    `PAGELET_KERNELS` chooses implementations, which need not be capturable."""
    if device.type != "cuda" or options.enforce_eager or os.environ.get("PAGELET_KERNELS"):
        return None
    return CudaGraphs(device)


def choose_capture_sizes(asked: Sequence[int] | None, max_num_seqs: int) -> list[int]:
    """The batch sizes to have graphs of, ascending: those asked for as far as a step can have so
    many requests, or else vLLM's ladder, 1, 2, 4, multiples of 8 to 256 and of 16 to 512. The
    largest batch is always among the latter, so that no decode step of up to 512 goes without."""
    if asked is not None:
        return sorted({min(size, max_num_seqs) for size in asked})
    largest = min(max_num_seqs, _LARGEST)
    ladder = {1, 2, 4, *range(8, 256, 8), *range(256, _LARGEST + 1, 16)}
    return sorted({size for size in ladder if size < largest} | {largest})


def graph_bytes(sizes: Sequence[int], largest: int, row_bytes: int) -> int:
    """What graphs of these batch sizes will take: the pool that they share holds the bytes that the
    layers need for the `largest` batch, the block tables of each of its rows are `row_bytes`, and
    the driver keeps some for each graph."""
    return largest + max(sizes) * row_bytes + len(sizes) * _DRIVER_BYTES


class GraphForward:
    """Takes the place of a forward pass: replays decode steps, and hands on all others."""

    def __init__(
        self,
        forward: Forward,
        backend: GraphBackend,
        sizes: Sequence[int],
        *,
        num_groups: int,
        block_size: int,
        max_model_len: int,
        device: torch.device,
        stage: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Captures a graph for each of `sizes`, which are ascending, the largest first: the smaller
        ones fit into the memory that it took. `forward` must not depend on the host for anything
        but the sizes of its arguments: `max_query_len` is 1, and the lengths that the metadata has
        on the host are upper bounds. Raises `ConfigurationError` if it cannot be captured."""
        assert list(sizes) == sorted(set(sizes)), sizes
        self._forward = forward
        self.sizes = list(sizes)
        self._max_model_len = max_model_len
        most = self.sizes[-1]
        max_blocks = -(-max_model_len // block_size)
        self._input_ids = torch.zeros(most, dtype=torch.int64, device=device)
        self._positions = torch.zeros(most, dtype=torch.int64, device=device)
        self._query_start_loc = torch.arange(most + 1, dtype=torch.int32, device=device)
        # A padding row is the first token of a sequence in the null block.
        self._seq_lens = torch.ones(most, dtype=torch.int32, device=device)
        self._block_tables = [
            torch.zeros(most, max_blocks, dtype=torch.int32, device=device)
            for _ in range(num_groups)
        ]
        self._slot_mappings = [
            torch.zeros(most, dtype=torch.int64, device=device) for _ in range(num_groups)
        ]
        self._hidden = torch.empty(0, device=device)  # [most, hidden_size] from the first run on
        self._replay: dict[int, Callable[[], None]] = {}
        for done, size in enumerate(reversed(self.sizes)):
            stage(f"capturing CUDA graphs {100 * done // len(self.sizes)}%")
            self._replay[size] = self._capture(size, backend)

    def _capture(self, size: int, backend: GraphBackend) -> Callable[[], None]:
        input_ids, positions = self._input_ids[:size], self._positions[:size]
        attention = self._metadata(size)
        if not self._hidden.numel():  # the largest: only a run tells the width and the type
            self._hidden = torch.empty_like(self._forward(input_ids, positions, attention))

        def run() -> None:
            self._hidden[:size] = self._forward(input_ids, positions, attention)

        try:
            return backend.capture(run)
        except RuntimeError as error:
            raise ConfigurationError(
                f"a step of {size} requests could not be captured as a CUDA graph: {error}. Give "
                "--enforce-eager to run without graphs, or fewer --cudagraph-capture-sizes"
            ) from error

    def _metadata(self, size: int) -> list[AttentionMetadata]:
        """Views of the buffers, with the longest lengths on the host."""
        return [
            AttentionMetadata(
                query_start_loc=self._query_start_loc[: size + 1],
                seq_lens=self._seq_lens[:size],
                block_table=table[:size],
                slot_mapping=slots[:size],
                max_query_len=1,
                max_seq_len=self._max_model_len,
                query_lens_cpu=[1] * size,
                seq_lens_cpu=[self._max_model_len] * size,
            )
            for table, slots in zip(self._block_tables, self._slot_mappings, strict=True)
        ]

    def __call__(
        self, input_ids: torch.Tensor, positions: torch.Tensor, attention: list[AttentionMetadata]
    ) -> torch.Tensor:
        """Final hidden states [num_tokens, hidden_size], valid until the next call."""
        size = self._size_for(attention[0], len(input_ids))
        if size is None:
            return self._forward(input_ids, positions, attention)
        self._load(input_ids, positions, attention, size)
        self._replay[size]()
        return self._hidden[: len(input_ids)]

    def _size_for(self, meta: AttentionMetadata, num_tokens: int) -> int | None:
        """The least size that a step fits; None if it has to run without a graph."""
        if meta.max_query_len > _LONGEST_QUERY:
            return None
        return next((size for size in self.sizes if size >= num_tokens), None)

    def _load(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: list[AttentionMetadata],
        size: int,
    ) -> None:
        """Puts a step's inputs into the buffers, and padding behind them up to `size`."""
        count = len(input_ids)
        padding = slice(count, size)
        self._input_ids[:count] = input_ids
        self._input_ids[padding] = 0
        self._positions[:count] = positions
        self._positions[padding] = 0
        self._seq_lens[:count] = positions + 1
        self._seq_lens[padding] = 1
        request_of_token: torch.Tensor | None = None
        if attention[0].max_query_len > 1:
            query_lens = attention[0].query_start_loc.diff()
            request_of_token = torch.repeat_interleave(query_lens, output_size=count)
        for table, slots, meta in zip(
            self._block_tables, self._slot_mappings, attention, strict=True
        ):
            # What is to the right of a row's own blocks lies beyond its length and is not read.
            blocks = meta.block_table
            if request_of_token is not None:
                blocks = blocks.index_select(0, request_of_token)
            table[:count, : blocks.shape[1]] = blocks
            table[padding, :1] = 0
            slots[:count] = meta.slot_mapping
            slots[padding] = 0


def describe_graphs(forward: Forward) -> str:
    """Words to append to those about kernels; none if there are no graphs."""
    if not isinstance(forward, GraphForward):
        return ""
    return f", CUDA graphs of {len(forward.sizes)} batch sizes up to {forward.sizes[-1]}"
