"""How ranks come together, seen at calls of a torch.distributed that only notes them."""

from typing import Any

import pytest
import torch

from pagelet.engine.executor import collectives
from pagelet.engine.executor.progress import COMPUTING, Progress
from pagelet.engine.executor.topology import RankPlace


@pytest.mark.parametrize(("tp_size", "pp_size"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_no_group_is_connected_while_a_rank_is_said_to_wait_for_others(
    tp_size: int, pp_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group's first collective may take NCCL longer than ranks may wait for one another."""
    progress = Progress()
    firsts: dict[Any, str] = {}

    def collective(*args: Any, group: Any = None, **kwargs: Any) -> None:
        firsts.setdefault(group, progress.state)

    monkeypatch.setattr(collectives.dist, "init_process_group", lambda *args, **kwargs: None)
    monkeypatch.setattr(collectives.dist, "new_group", tuple)
    monkeypatch.setattr(collectives.dist, "all_reduce", collective)
    monkeypatch.setattr(collectives.dist, "all_gather", collective)
    for rank in range(tp_size * pp_size):
        firsts.clear()
        place = RankPlace(rank=rank, tp_size=tp_size, pp_size=pp_size)
        ranks = collectives.join_ranks(place, "file:", torch.device("cpu"), progress)
        ranks.tp.all_reduce(torch.ones(2))
        ranks.tp.all_gather(torch.ones(2))
        ranks.least(3)
        first = place.stage * tp_size
        own = {tuple(range(first, first + tp_size))} if tp_size > 1 else set()
        assert firsts == dict.fromkeys({None, *own}, COMPUTING)
