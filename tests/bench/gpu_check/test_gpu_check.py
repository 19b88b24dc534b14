"""The checks of a GPU, as far as a CPU goes through them: what they compare, and that they see."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pagelet.bench.gpu_check import __main__ as gpu_check
from pagelet.bench.gpu_check.check import LOST_DEVICE, Check, Part, run_part, run_parts
from pagelet.bench.gpu_check.collectives import check_all_reduce
from pagelet.bench.gpu_check.graphs import CONFIGS, check_graphs
from pagelet.bench.gpu_check.kernels import CASES, check_kernels
from pagelet.bench.gpu_check.memory import largest_step, refusal
from pagelet.bench.gpu_check.report import update
from pagelet.bench.gpu_check.throughput import check_throughput
from pagelet.bench.offline.limits import MachineLimits
from pagelet.bench.offline.measure import Sizes
from pagelet.engine.errors import ConfigurationError
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.kernels.dispatch import Op
from support.fake_graphs import FakeGraphs
from support.tiny_models import tiny_config, tiny_options, tiny_transformers_model

CPU = torch.device("cpu")


def statuses(checks: Any) -> set[str]:
    return {check.status for check in checks}


def test_the_kernels_of_this_machine_equal_their_references() -> None:
    cases = [dataclasses.replace(case, dtypes=case.dtypes[:1]) for case in CASES]
    for number, case in enumerate(cases):
        if case.name == "adapters, decode" or "8 cache" in case.name:  # a GPU's, interpreted
            of_gpu = {"triton": case.op.implementations["triton"]}
            op = Op(case.op.name, case.op.implementations["reference"], cpu=of_gpu)
            cases[number] = dataclasses.replace(case, op=op)
    checks = list(check_kernels(CPU, cases))
    assert [check for check in checks if check.status != "passed"] == []
    assert len(checks) == len(CASES)


@pytest.mark.parametrize("fault", ["a value", "NaN", "a shape", "an exception"])
def test_a_kernel_that_is_wrong_is_seen(fault: str) -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        if fault == "an exception":
            raise RuntimeError("no such kernel")
        y = x * 2
        y[-1, -1] += torch.nan if fault == "NaN" else 1
        return y[1:] if fault == "a shape" else y

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    op = Op("double", double, cpu={"wrong": wrong})
    case = dataclasses.replace(CASES[0], op=op, make=lambda maker: ((maker(4, 5),), {}))
    assert statuses(check_kernels(CPU, [case])) == {"failed"}
    right = dataclasses.replace(case, op=Op("double", double))
    assert statuses(check_kernels(CPU, [right])) == {"passed"}


TWO = {name: CONFIGS[name] for name in ("Gemma3", "Qwen3-MoE")}


def test_tokens_from_graphs_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGELET_KERNELS", "paged_attention=torch_native")
    graphs = FakeGraphs()
    assert statuses(check_graphs("cpu", graphs, TWO)) == {"passed"}
    assert len(graphs.replays) > 30
    without = list(check_graphs("cpu", None, {"Gemma3": TWO["Gemma3"]}))
    assert statuses(without) == {"failed"}, "what ran without graphs has shown nothing about them"


def test_graphs_that_are_wrong_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGELET_KERNELS", "paged_attention=torch_native")

    class Forgetful(FakeGraphs):
        def capture(self, function: Any) -> Any:
            replay = super().capture(function)
            return lambda: replay() if len(self.replays) < 5 else None

    checks = list(check_graphs("cpu", Forgetful(), {"Gemma3": TWO["Gemma3"]}))
    assert statuses(checks) == {"failed"}


def test_a_refusal_must_name_who_has_the_memory() -> None:
    def refuse(words: str) -> Any:
        raise ConfigurationError(words)

    assert refusal(lambda: refuse("no (in use by others: process 7 1 MiB)"), 7).status == "passed"
    assert refusal(lambda: refuse("no room"), 7).status == "failed"
    assert refusal(lambda: None, 7).status == "failed"


def test_the_largest_step_runs_beside_the_cache() -> None:
    options = tiny_options()
    runner = ModelRunner(options, tiny_config(tiny_transformers_model("Llama")), None, 128)
    check = largest_step(runner, options, 128)
    assert check.status == "passed"
    assert check.words == "64 tokens, 8 requests"


def test_throughput_is_told_beside_the_limits() -> None:
    config = dataclasses.replace(CONFIGS["Llama"], num_heads=2, head_dim=64, num_kv_heads=1)
    limits = MachineLimits(1e9, {"float32": 1e9})
    sizes = Sizes((1, 2), prompt_len=8, decode_steps=2)
    checks = list(check_throughput("cpu", "tiny", config, limits, sizes))
    assert [check.name for check in checks] == [
        f"tiny, {phase} of {batch}" for batch in (1, 2) for phase in ("prefill", "decode")
    ]
    assert "GB/s" in checks[1].words


def test_all_reduce_over_processes() -> None:
    (check,) = check_all_reduce("cpu", 2, elements=1000)
    assert check.status == "passed", check.words
    assert "over the links" in check.words


def program(code: str, **more: Any) -> Part:
    start = "import json, os, sys, time\n" + (
        "def tell(name, status='passed'):\n"
        "    print(json.dumps(dict(name=name, status=status, words='')), flush=True)\n"
    )
    return Part("part", [sys.executable, "-c", start + code], **{"seconds": 60.0, **more})


def found(part: Part) -> list[tuple[str, str]]:
    return [(check.name, check.status) for check in run_part(part, part.seconds)]


def test_what_a_part_has_found_stays_when_it_dies() -> None:
    part = program("tell('a'); print('no such kernel', file=sys.stderr); os.abort()")
    first, second = run_part(part, 60)
    assert first.name == "a"
    assert second.status == "failed"
    assert second.words == "signal SIGABRT after 'a': no such kernel"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("tell('a'); time.sleep(60)", "stopped, as it was not done"),
        ("tell('a'); os.close(1); time.sleep(60)", "stopped, as its process did not end"),
    ],
)
def test_a_part_that_hangs_is_stopped(code: str, words: str) -> None:
    first, second = run_part(program(code, silence=4.0), 60)
    assert first.name == "a"
    assert words in second.words


def test_a_part_that_never_tells_anything_is_stopped() -> None:
    (check,) = run_part(program("time.sleep(60)", seconds=0.2), 0.2)
    assert check.status == "failed"


def test_checks_after_one_that_ends_its_process_are_made() -> None:
    """`c` takes the process with it, `b` only the GPU."""
    part = program(
        "for i, name in list(enumerate('abcde'))[int(sys.argv[1]):]:\n"
        "    if name == 'c': os.abort()\n"
        "    tell(name, 'failed' if name == 'b' else 'passed')\n"
        f"    if name == 'b': sys.exit({LOST_DEVICE})\n",
        restarts=True,
    )
    assert found(part) == [
        ("a", "passed"),
        ("b", "failed"),
        ("part", "failed"),
        ("d", "passed"),
        ("e", "passed"),
    ]
    always = program("os.abort()", restarts=True)
    assert 1 < len(found(always)) < 10, "but not for ever"


def test_one_part_after_another_and_late_ones_are_told() -> None:
    parts = [program("sys.exit(1)"), program("tell('a'); tell('b')")]
    assert [(number, check.status) for number, check in run_parts(parts, 60)] == [
        (0, "failed"),
        (1, "passed"),
        (1, "passed"),
    ]
    assert [check.status for _, check in run_parts(parts, -1)] == ["not run"] * 2


def test_parts_run_as_programs_and_are_written_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, which goes through all of it but for graphs and the memory."""
    output = tmp_path / "gpu-checks.md"
    written = []

    def note(*arguments: Any) -> str:
        written.append(update(*arguments))
        return written[-1]

    monkeypatch.setattr(gpu_check, "update", note)
    part = gpu_check._part
    last = len([dtype for case in CASES for dtype in case.dtypes]) - 2

    def short(name: str, *more: Any) -> Part:
        made = part(name, *more)
        skipping = [*made.command, str(last)] if name == "kernels" else made.command
        # Patient, as the machine may be busy with anything else.
        return dataclasses.replace(
            made, command=skipping, seconds=250.0, silence=None, restarts=False
        )

    monkeypatch.setattr(gpu_check, "_part", short)
    code = gpu_check.check_machine("cpu", "qwen2.5-0.5b", ["kernels", "collectives"], output)
    assert code == 0
    assert "| collectives | not run |" in written[0]
    assert "| mask_tokens, float32 | passed |" in written[1]
    assert "| collectives | not run |" in written[1]
    document = output.read_text()
    assert "| gloo all-reduce over 2 | passed |" in document
    assert "3 passed. date 20" in document
    assert f"torch {torch.__version__}" in document


def test_a_part_without_its_device_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    (check,) = run_part(gpu_check._part("memory", "cuda", "qwen2.5-0.5b"), 60)
    assert check.status == "failed"
    assert check.words


def test_a_report_replaces_that_of_the_same_gpu_alone() -> None:
    check = Check("x", "passed", "1 | 2")
    first = update("", "GPU A", {"date": "1"}, [check])
    both = update(first, "GPU B", {"date": "2"}, [check, Check("y", "failed", "3")])
    again = update(both, "GPU A", {"date": "4"}, [check])
    assert again.count("## GPU A") == again.count("## GPU B") == 1
    assert "date 1" not in again
    assert "date 2" in again
    assert "date 4" in again
    assert "1 passed, 1 failed" in again
    assert "| x | passed | 1 / 2 |" in again
    assert update(again, "GPU A", {"date": "4"}, [check]) == again


def test_without_a_gpu_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    output = tmp_path / "gpu-checks.md"
    assert gpu_check.main(["--output", str(output)]) == 2
    assert "no CUDA GPU" in capsys.readouterr().err
    assert not output.exists()
