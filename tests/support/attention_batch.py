"""Random batches over a paged KV cache in which everything that no request sees is NaN."""

import random
from collections.abc import Callable

import torch

from pagelet.kernels.kv_write.torch_native import kv_write
from pagelet.kernels.rotary import rotary_kv_write

NAN = float("nan")
Attention = Callable[..., torch.Tensor]
KVWrite = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]


def unturned_write(implementation: str) -> KVWrite:
    """Writes keys as they are, by an implementation of `rotary_kv_write`."""
    function = rotary_kv_write.implementations[implementation]

    def write(
        key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        cos = torch.ones(len(key), key.shape[2] // 2)
        function(key, key, value, cos, torch.zeros_like(cos), cache, slots)

    return write


class Batch:
    """A random batch: requests' keys and values known densely, and written to a NaN cache.

    `write` writes the cache, in the layout that the attention under test reads.
    """

    def __init__(
        self,
        rng: random.Random,
        lens: list[tuple[int, int]],  # (query_len, tokens before it)
        num_kv_heads: int,
        group: int,
        head_dim: int,
        block_size: int,
        dtype: torch.dtype,
        window: int | None,
        write: KVWrite = kv_write,
        cache_dtype: torch.dtype | None = None,
        token_size: int | None = None,  # the cache's last dimension
        stored: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """`stored`: what a key or value is once it has been in the cache, if that is not what
        a conversion to the cache's dtype gives."""
        cache_dtype = cache_dtype or dtype
        generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
        self.query_lens = [query_len for query_len, _ in lens]
        self.seq_lens = [query_len + before for query_len, before in lens]
        blocks_of = [-(-seq_len // block_size) for seq_len in self.seq_lens]
        ids = list(range(1, sum(blocks_of) + 5))
        rng.shuffle(ids)
        tables = [[ids.pop() for _ in range(count)] for count in blocks_of]
        width = max(blocks_of, default=0) + rng.randint(0, 3)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        self.query = normal(sum(self.query_lens), num_kv_heads * group, head_dim)
        shape = (2, sum(blocks_of) + 5, num_kv_heads, block_size, token_size or head_dim)
        # All bits are ones, which is NaN in every floating-point type.
        self.cache = torch.full(shape, -1, dtype=torch.int8).repeat_interleave(
            cache_dtype.itemsize, dim=4
        )
        self.cache = self.cache.view(cache_dtype)
        self.dense: list[tuple[torch.Tensor, torch.Tensor]] = []
        for table, seq_len, query_len in zip(tables, self.seq_lens, self.query_lens, strict=True):
            key = normal(seq_len, num_kv_heads, head_dim)
            value = normal(seq_len, num_kv_heads, head_dim)
            keep = stored or (lambda x: x.to(cache_dtype))
            self.dense.append((keep(key), keep(value)))
            slots = [table[i // block_size] * block_size + i % block_size for i in range(seq_len)]
            # What lies before every query's window has been given away and poisoned.
            gone = 0 if window is None else max(0, seq_len - query_len + 1 - window)
            key, value = key.clone(), value.clone()
            key[:gone] = value[:gone] = NAN
            write(key, value, self.cache, torch.tensor(slots))
            for i in range(gone // block_size):
                table[i] = 0
        starts = [sum(self.query_lens[:i]) for i in range(len(lens) + 1)]
        self.query_start_loc = torch.tensor(starts, dtype=torch.int32)
        self.block_table = torch.tensor(
            [table + [0] * (width - len(table)) for table in tables], dtype=torch.int32
        ).view(len(lens), width)
        self.scale = head_dim**-0.5

    def part(self, chunks: list[tuple[int, int, int]]) -> "Batch":
        """A batch of chunks (request, begin, end) of the requests' query tokens, over the same
        cache: what a step has that computes these tokens."""
        part = object.__new__(Batch)
        part.query_lens = [end - begin for _, begin, end in chunks]
        part.seq_lens = [
            self.seq_lens[request] - self.query_lens[request] + end for request, _, end in chunks
        ]
        starts = [sum(part.query_lens[:i]) for i in range(len(chunks) + 1)]
        part.query_start_loc = torch.tensor(starts, dtype=torch.int32)
        part.query = torch.cat([self.rows(self.query, *chunk) for chunk in chunks])
        part.block_table = self.block_table[[request for request, _, _ in chunks]]
        part.cache, part.scale = self.cache, self.scale
        return part

    def rows(self, of_tokens: torch.Tensor, request: int, begin: int, end: int) -> torch.Tensor:
        """The rows of a request's query tokens [begin, end)."""
        start = int(self.query_start_loc[request])
        return of_tokens[start + begin : start + end]

    def run(
        self,
        attention: Attention,
        window: int | None = None,
        softcap: float | None = None,
        **more: torch.Tensor,
    ) -> torch.Tensor:
        return attention(
            self.query,
            self.cache,
            self.query_start_loc,
            torch.tensor(self.seq_lens, dtype=torch.int32),
            self.block_table,
            max_query_len=max(self.query_lens, default=0),
            max_seq_len=max(self.seq_lens, default=0),
            query_lens_cpu=self.query_lens,
            seq_lens_cpu=self.seq_lens,
            scale=self.scale,
            sliding_window=window,
            softcap=softcap,
            **more,
        )

    def dense_attention(
        self, window: int | None, softcap: float | None, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same over the dense keys and values, with one mask a request."""
        outs = []
        for query, (key, value) in zip(self.query.split(self.query_lens), self.dense, strict=True):
            group = query.shape[1] // key.shape[1]
            seq_len = key.shape[0]
            q = query.double().transpose(0, 1)
            k, v = (x.double().repeat_interleave(group, 1).transpose(0, 1) for x in (key, value))
            scores = q @ k.transpose(1, 2) * self.scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            distance = torch.arange(seq_len - len(query), seq_len)[:, None] - torch.arange(seq_len)
            hidden = (distance < 0) | (distance >= (window or seq_len))
            scores = scores.masked_fill(hidden, float("-inf"))
            if sinks is not None:
                columns = sinks.double().view(-1, 1, 1).expand(-1, len(query), 1)
                scores = torch.cat((scores, columns), dim=2)
            weights = scores.softmax(-1)[:, :, :seq_len]
            outs.append((weights @ v).transpose(0, 1))
        return torch.cat(outs)
