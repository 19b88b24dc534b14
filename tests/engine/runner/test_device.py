"""The dtype that `auto` means, and devices that are not there."""

from types import SimpleNamespace

import pytest
import torch

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.runner import device
from pagelet.protocol.config import ModelOptions

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("asked", "checkpoint", "where", "has_bf16", "expected"),
    [
        ("auto", "bfloat16", CPU, True, torch.bfloat16),
        ("auto", "bfloat16", CPU, False, torch.float32),
        ("auto", "float16", CPU, True, torch.float32),
        ("auto", "float32", CPU, True, torch.float32),
        ("auto", "bfloat16", GPU, False, torch.bfloat16),
        ("auto", "float16", GPU, False, torch.float16),
        ("bfloat16", "float32", CPU, False, torch.bfloat16),
        ("float64", "bfloat16", CPU, True, torch.float64),
    ],
)
def test_dtype(monkeypatch, asked, checkpoint, where, has_bf16, expected):
    monkeypatch.setattr(device, "has_bf16_instructions", lambda: has_bf16)
    options = ModelOptions(source="x", dtype=asked)
    assert device.choose_dtype(options, checkpoint, where) is expected


@pytest.mark.parametrize("flag", [None, "avx512_bf16", "amx_bf16"])
def test_bf16_instructions_are_read_from_the_processor(monkeypatch, flag):
    known = {"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known | {flag: True})
    assert device.has_bf16_instructions() == (flag is not None)


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device.choose_device("auto", 1) == torch.device("cuda", 1)
    assert device.choose_device("cpu", 1) == CPU
    with pytest.raises(ConfigurationError, match=r"lower --tensor-parallel-size x .* to 2"):
        device.choose_device("cuda", 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device.choose_device("auto", 1) == CPU
    with pytest.raises(ConfigurationError, match="--device cpu"):
        device.choose_device("cuda")


def test_a_gpu_that_kernels_are_not_made_for_is_refused(monkeypatch):
    t4 = SimpleNamespace(name="T4", major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: t4)
    with pytest.raises(ConfigurationError, match=r"T4 .* 8\.0 or later; take another GPU"):
        device.check_kernels_run(GPU)
    device.check_kernels_run(CPU)
