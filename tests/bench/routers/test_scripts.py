"""What is sent through a router is the trace, in words of its own for each run."""

import itertools

import pytest

from pagelet.bench.load.workload import Session
from pagelet.bench.routers.scripts import as_workload
from pagelet.bench.routing.traces import TRACES, Item, make_items

WORDS = [f"w{number}" for number in range(1000)]


def items_of(name: str) -> list[Item]:
    trace = next(trace for trace in TRACES if trace.name == name)
    return make_items(trace, seed=1, seconds=5.0, share=0.5, tokens_per_second=12_000.0)


def words_of(session: Session) -> list[list[str]]:
    texts = [turn.content for turn in session.turns]
    assert all(isinstance(text, str) for text in texts)
    return [str(text).split() for text in texts]


@pytest.mark.parametrize("name", [trace.name for trace in TRACES])
def test_every_request_of_the_trace_is_there(name: str) -> None:
    items = items_of(name)
    workload = as_workload(name, items, WORDS, run=0)
    assert workload.num_requests == len(items)
    assert workload.timed
    lengths = sorted(len(words) for each in workload.sessions for words in words_of(each))
    assert lengths == sorted(item.num_prompt_tokens for item in items)
    asked = sorted(turn.max_tokens for each in workload.sessions for turn in each.turns)
    assert asked == sorted(len(item.answer) for item in items)


def test_prompts_share_what_the_items_share() -> None:
    items = items_of("shared-prefix")
    sessions = as_workload("shared-prefix", items, WORDS, run=0).sessions
    heads: dict[tuple[int, ...], list[str]] = {}
    for item, session in zip(items, sessions, strict=True):
        prefix = tuple(item.parts[0])
        head = words_of(session)[0][: len(prefix)]
        assert heads.setdefault(prefix, head) == head
    assert len(set(map(tuple, heads.values()))) == len(heads) > 5


def test_later_turns_begin_with_the_earlier_ones() -> None:
    items = items_of("multi-turn")
    workload = as_workload("multi-turn", items, WORDS, run=0)
    assert {len(session.turns) for session in workload.sessions} == {6}
    for session in workload.sessions:
        assert session.scripted
        assert session.turns[0].pause == 0.0
        assert all(turn.pause > 0.0 for turn in session.turns[1:])
        prompts = words_of(session)
        for before, after in itertools.pairwise(prompts):
            assert after[: len(before)] == before


def test_runs_differ_in_words_and_in_nothing_else() -> None:
    items = items_of("nothing-shared")
    one, other = (as_workload("x", items, WORDS, run).sessions for run in (0, 1))
    assert [session.arrival for session in one] == [session.arrival for session in other]
    for mine, theirs in zip(one, other, strict=True):
        first, second = words_of(mine)[0], words_of(theirs)[0]
        assert len(first) == len(second)
        assert first[:16] != second[:16], "no block of one run is one of another"


def test_replicas_too_slow_for_a_trace() -> None:
    trace = next(trace for trace in TRACES if trace.name == "come-and-go")
    with pytest.raises(ValueError, match="more than the replicas could compute"):
        make_items(trace, seed=1, seconds=5.0, share=0.5, tokens_per_second=1000.0)
