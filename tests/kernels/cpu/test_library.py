"""Compiling and loading the CPU library, and choosing its instruction set."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pagelet.kernels.cpu import compile as compile_
from pagelet.kernels.cpu import library as library_
from pagelet.kernels.cpu.library import Library, status
from pagelet.kernels.cpu.tiers import architecture_tiers, machine_tiers

ARM_COMPILER = shutil.which("aarch64-linux-gnu-g++")


def in_a_new_process(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pagelet.kernels.cpu"],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )


def test_the_status_names_the_tier_and_the_threads(tier: str) -> None:
    found = status()
    assert found.tier == tier
    assert found.tier in found.tiers
    assert found.threads >= 1
    assert found.path is not None
    assert found.path.is_file()
    assert found.reason is None


def test_a_lower_tier_can_be_forced(tier: str) -> None:
    answer = in_a_new_process(PAGELET_CPU_TIER=tier).stdout
    assert f"CPU library: {tier} of {machine_tiers()[0]}" in answer


def test_a_tier_that_the_machine_lacks_is_refused(tier: str) -> None:
    result = in_a_new_process(PAGELET_CPU_TIER="avx1024")
    assert result.returncode != 0
    assert "PAGELET_CPU_TIER=avx1024: this machine runs avx2" in result.stderr


def test_every_process_finds_the_same_library(tier: str) -> None:
    code = "from pagelet.kernels.cpu.library import needs_compiling; print(needs_compiling())"
    for seed in ("1", "2", "3"):
        found = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "PAGELET_CPU_TIER": tier},
        )
        assert found.stdout == "False\n", found.stderr


@pytest.fixture
def small_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The machinery of compiling, on sources that compile in no time."""
    if status().path is None:
        pytest.skip(f"nothing can be compiled: {status().reason}")
    sources = tmp_path / "kernels"
    for name in ("cpu/interface", "cpu/threads", "linear/cpu"):
        path = sources / f"{name}.cpp"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'extern "C" int {name.replace("/", "_")}() {{ return 7; }}\n')
    monkeypatch.setattr(compile_, "KERNELS", sources)
    return sources


def test_compiles_once_and_again_when_a_source_changes(small_sources: Path) -> None:
    first = compile_.compile_library("avx2")
    stamp = first.stat().st_mtime_ns
    assert compile_.compile_library("avx2") == first
    assert first.stat().st_mtime_ns == stamp
    (small_sources / "cpu" / "extra.h").write_text("// more\n")
    second = compile_.compile_library("avx2")
    assert second != first
    assert {path.name for path in second.parent.iterdir()} == {first.name, second.name, "lock"}


def test_uses_the_cache_folder_where_the_sources_cannot_be_written(
    small_sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (small_sources / "cpu" / "build").write_text("in the way of the folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert compile_.compile_library("avx2").parent == tmp_path / "cache" / "pagelet"


def test_what_the_compiler_says_is_passed_on(small_sources: Path) -> None:
    (small_sources / "cpu" / "threads.cpp").write_text("this is not C++\n")
    with pytest.raises(compile_.CompileError, match="this is not C"):
        compile_.compile_library("avx2")


def test_each_tier_is_a_library_of_its_own(small_sources: Path) -> None:
    first, second = (compile_.compile_library(tier) for tier in architecture_tiers()[:2])
    assert first != second
    assert compile_.is_compiled("avx512")
    assert not compile_.is_compiled("avx512_vnni")


def test_a_file_that_is_no_library_is_an_error_of_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not machine_tiers():
        pytest.skip("this machine has none of the tiers")
    (tmp_path / "library.so").write_text("text")
    monkeypatch.setattr(library_, "compile_library", lambda tier: tmp_path / "library.so")
    with pytest.raises(OSError, match=r"library\.so"):
        Library(machine_tiers()[0])


def test_tiers_are_those_whose_instructions_the_processor_has(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor : 0\nflags\t\t: fpu avx2 fma f16c avx512f avx512bw avx512dq\n")
    assert machine_tiers(path) == ("avx2",), "AVX-512 without VL does not do"
    path.write_text(path.read_text().replace("fpu", "avx512vl avx512_vnni"))
    assert machine_tiers(path) == ("avx2", "avx512", "avx512_vnni")
    assert machine_tiers(tmp_path / "none") == ()


def test_tiers_of_an_arm_processor_are_named_by_its_features(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd aes asimddp\n")
    assert machine_tiers(path, "aarch64") == ("neon", "neon_dotprod")
    path.write_text(path.read_text().replace("aes", "i8mm bf16"))
    assert machine_tiers(path, "aarch64") == ("neon", "neon_dotprod", "neon_bf16")
    assert machine_tiers(path, "x86_64") == ()


@pytest.mark.skipif(
    ARM_COMPILER is None, reason="no aarch64-linux-gnu-g++: install g++-aarch64-linux-gnu"
)
@pytest.mark.parametrize("tier", architecture_tiers("aarch64"))
def test_it_compiles_for_arm(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(ARM_COMPILER))
    header = compile_.compile_library(tier).read_bytes()[:20]
    assert header.startswith(b"\x7fELF")
    assert int.from_bytes(header[18:20], "little") == 183, "AArch64, in ELF"


def test_without_a_compiler_it_uses_what_was_compiled_before(
    small_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = compile_.compile_library("avx2")
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    assert compile_.compile_library("avx2") == before
    (small_sources / "cpu" / "extra.h").write_text("// other sources than it was made of\n")
    with pytest.raises(compile_.CompileError, match=r"no C\+\+ compiler found; install g\+\+"):
        compile_.compile_library("avx2")
