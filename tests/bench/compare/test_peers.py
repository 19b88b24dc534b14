"""Peers' scripts, and how they are run."""

import os
import subprocess
from pathlib import Path

import pytest

from pagelet.bench.compare.peers import SCRIPTS, Peer, PeerFailed, parse_peer
from pagelet.bench.compare.presets import OUTPUT, Preset
from pagelet.bench.compare.rounds import run_rounds
from pagelet.bench.load import datasets
from pagelet.bench.load.datasets import Lengths
from pagelet.bench.load.run import Load
from pagelet.bench.load.vocabulary import Words

ALL_SCRIPTS = sorted(SCRIPTS.glob("*.sh"))


def quiet(text: str) -> None:
    pass


def test_there_are_scripts_for_all_peers() -> None:
    assert {path.stem for path in ALL_SCRIPTS} == {"pagelet", "vllm", "llamacpp"}


@pytest.mark.parametrize("script", ALL_SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_executable_valid_and_says_its_usage(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    usage = subprocess.run([script], capture_output=True, text=True)
    assert usage.returncode == 2
    for verb in ("installed", "version", "install", "prepare", "serve"):
        assert verb in usage.stderr
    unknown = subprocess.run([script, "fly", "/nowhere"], capture_output=True, text=True)
    assert unknown.returncode == 2


@pytest.mark.parametrize("name", ["vllm", "llamacpp"])
def test_a_peer_in_an_empty_folder_is_not_installed(name: str, tmp_path: Path) -> None:
    assert not parse_peer(name, tmp_path, {}).installed()


def test_pagelet_itself_is_installed_and_takes_any_model_as_it_is(tmp_path: Path) -> None:
    pagelet = parse_peer("pagelet:float32", tmp_path, {})
    assert pagelet.installed()
    assert pagelet.version().startswith("pagelet ")
    assert pagelet.prepare(Path("/models/m.gguf"), tmp_path, quiet) == "/models/m.gguf"


def test_peers_are_named_with_their_variant(tmp_path: Path) -> None:
    assert parse_peer("vllm", tmp_path, {}) == Peer("vllm", "bfloat16", tmp_path / "vllm")
    elsewhere = parse_peer("llamacpp:Q8_0", tmp_path, {"llamacpp": Path("/opt/x")})
    assert (elsewhere.title, elsewhere.folder) == ("llamacpp:Q8_0", Path("/opt/x"))
    with pytest.raises(ValueError, match="no peer 'sglang': give llamacpp, pagelet, vllm"):
        parse_peer("sglang", tmp_path, {})


def test_a_peer_is_installed_and_prepared_with_progress(fake: Path, tmp_path: Path) -> None:
    peer = Peer("fake", "small", fake)
    said: list[str] = []
    assert not peer.installed()
    peer.install(said.append)
    assert peer.installed()
    assert peer.prepare(Path("m.gguf"), tmp_path, said.append) == f"{tmp_path}/small.bin"
    assert "installing fake: fetching" in said
    assert "preparing the model for fake:small: converting" in said


def test_what_fails_is_told_in_the_scripts_own_words(fake: Path, tmp_path: Path) -> None:
    fake.mkdir()
    with pytest.raises(PeerFailed, match="no such type: broken"):
        Peer("fake", "broken", fake).prepare(Path("m"), tmp_path, quiet)
    with (
        pytest.raises(PeerFailed, match=r"(?s)exit code 3.*cannot open m\.bin"),
        Peer("fake", "dead", fake).serving("m.bin", 1, 1, quiet),
    ):
        pass


def test_servers_take_turns_with_the_same_prompts_and_are_gone_at_the_end(
    fake: Path, tmp_path: Path
) -> None:
    fake.mkdir()
    contenders = [Peer("fake", variant, fake) for variant in ("a", "b")]
    preset = Preset(
        "tiny",
        "",
        lambda words, seed: datasets.random_prompts(words, 3, Lengths(8, 4), seed),
        Load(concurrency=2),
        (OUTPUT,),
        slots=2,
        context=12,
        episodes=2,
    )
    found = list(run_rounds(contenders, [preset], 2, Path("m"), tmp_path, Words(), quiet))
    assert [(one.peer, one.round) for one in found] == [
        ("fake:a", 0),
        ("fake:b", 0),
        ("fake:a", 1),
        ("fake:b", 1),
    ]
    for one in found:
        assert one.workload == "tiny"
        assert (one.figures["completed"], one.figures["failed"]) == (6, 0)
        assert one.figures["total_output_tokens"] == 24
        assert one.figures["total_cached_tokens"] == 0  # no prompt came twice
    starts = [line.split() for line in (fake / "starts").read_text().splitlines()]
    assert [start[1:3] for start in starts] == 2 * [
        [f"{tmp_path}/a.bin", "a"],
        [f"{tmp_path}/b.bin", "b"],
    ]
    assert {tuple(start[3:]) for start in starts} == {("2", "76")}
    for pid, *_ in starts:
        assert not Path(f"/proc/{pid}").exists()
