"""The choice of an implementation: by device, and by name."""

import pytest
import torch

from pagelet.kernels.dispatch import Op, check_setting


def reference(x: torch.Tensor) -> str:
    return "reference"


def fast(x: torch.Tensor) -> str:
    return "fast"


def faster(x: torch.Tensor) -> str:
    return "faster"


def make_op() -> Op[[torch.Tensor], str]:
    return Op("double", reference, cpu={"faster": faster, "fast": fast}, cuda={"fast": fast})


def test_takes_the_first_implementation_of_the_device() -> None:
    op = make_op()
    assert op(torch.ones(1)) == "faster"
    assert op(torch.ones(1, device="meta")) == "reference"
    assert list(op.implementations) == ["reference", "faster", "fast"]


@pytest.mark.parametrize(
    ("setting", "chosen"),
    [
        ("reference", "reference"),
        ("double=fast", "fast"),
        ("triple=slow, double=reference", "reference"),
        ("triple=slow", "faster"),
        ("", "faster"),
    ],
)
def test_environment_forces_by_name(
    monkeypatch: pytest.MonkeyPatch, setting: str, chosen: str
) -> None:
    monkeypatch.setenv("PAGELET_KERNELS", setting)
    assert make_op()(torch.ones(1)) == chosen


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("double=slow", "double has: reference, faster, fast"),
        ("fast", "write 'reference' or OP=IMPLEMENTATION, not 'fast'"),
    ],
)
def test_wrong_names_are_errors(
    monkeypatch: pytest.MonkeyPatch, setting: str, message: str
) -> None:
    monkeypatch.setenv("PAGELET_KERNELS", setting)
    with pytest.raises(ValueError, match=message):
        make_op()


def test_operations_that_are_not_there_are_named_beside_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PAGELET_KERNELS", "paged_atention=reference, moe=reference, x=y")
    with pytest.raises(ValueError, match=r"names paged_atention, x, which .* moe, paged_attention"):
        check_setting()
    for setting in ("", "reference", "moe=reference,top_logprobs=reference"):
        monkeypatch.setenv("PAGELET_KERNELS", setting)
        check_setting()
