"""How the ranks of one copy of the model are numbered. Torch-free."""

import msgspec

from pagelet.protocol.config import ParallelOptions


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One rank among all: neighbours in number share the layers of one pipeline stage, as they talk
    most."""

    rank: int
    tp_size: int
    pp_size: int

    @property
    def size(self) -> int:
        """Ranks in all."""
        return self.tp_size * self.pp_size

    @property
    def tp_rank(self) -> int:
        """Its part of each layer."""
        return self.rank % self.tp_size

    @property
    def stage(self) -> int:
        """Its pipeline stage."""
        return self.rank // self.tp_size

    @property
    def is_last_stage(self) -> bool:
        """Whether it draws tokens."""
        return self.stage == self.pp_size - 1

    @property
    def reports(self) -> bool:
        """Whether it tells the results of steps: all of the last stage draw the same tokens, so one
        tells."""
        return self.is_last_stage and self.tp_rank == 0

    def __str__(self) -> str:
        if self.pp_size == 1:
            return f"rank {self.rank}"
        return f"rank {self.rank} (pipeline stage {self.stage}, tensor rank {self.tp_rank})"


def make_places(options: ParallelOptions) -> list[RankPlace]:
    """All ranks of one copy of the model, by number."""
    tp_size, pp_size = options.tensor_parallel_size, options.pipeline_parallel_size
    return [
        RankPlace(rank=rank, tp_size=tp_size, pp_size=pp_size) for rank in range(tp_size * pp_size)
    ]
