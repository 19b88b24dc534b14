"""Requests with adapters: no more of them at once than a step may have, and blocks of their own."""

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.engine.scheduler.request import Request
from pagelet.protocol.lora import LoraAdapter

from .test_scheduler import BLOCK, iter_outputs, make_core, request


def adapter(number: int | None) -> LoraAdapter | None:
    return None if number is None else LoraAdapter(f"a{number}", "/", f"digest {number}")


def names(requests: Iterable[Request]) -> list[str]:
    return sorted({r.lora.name for r in requests if r.lora is not None})


@given(
    numbers=st.lists(st.none() | st.integers(0, 4), min_size=1, max_size=14),
    most=st.integers(1, 4),
    num_blocks=st.integers(20, 64),
)
@settings(max_examples=60)
def test_running_requests_never_have_more_adapters_than_they_may(
    numbers: list[int | None], most: int, num_blocks: int
) -> None:
    core = make_core(num_blocks=num_blocks, max_num_seqs=6)
    core.scheduler.adapters.most = most
    for index, number in enumerate(numbers):
        core.add(request(index, [index + 1] * 9, 5, lora=adapter(number)))
    finished = set()
    while core.has_work:
        outputs = core.step()
        finished |= {output.request_id for output in outputs.outputs if output.finish_reason}
        running = names(core.scheduler.running)
        assert len(running) <= most
        assert outputs.stats.running_adapters == running
        assert outputs.stats.waiting_adapters == names(core.scheduler.waiting)
        if core.num_unfinished > 3 and core.scheduler.running:
            gone = core.scheduler.running[-1].request_id
            core.abort([gone])
            finished.add(gone)
            assert core.idle_stats().stats.running_adapters == names(core.scheduler.running)
    assert finished == set(range(len(numbers))), "one that stood aside never ran"


def test_cached_blocks_are_their_adapters_own() -> None:
    core = make_core(num_blocks=200)
    prompt = list(range(4 * BLOCK + 1))
    hits = []
    for index, number in enumerate([None, 1, 2, 1, None, 2]):
        core.add(request(index, prompt, 1, lora=adapter(number)))
        hits.append(iter_outputs(core)[0].num_cached_tokens)
    assert hits == [0, 0, 0, 4 * BLOCK, 4 * BLOCK, 4 * BLOCK]
