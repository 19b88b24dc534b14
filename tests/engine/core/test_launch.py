"""Which GPUs a data-parallel rank sees."""

import pytest

from pagelet.engine.core.launch import gpu_environment
from pagelet.protocol.config import EngineOptions, ModelOptions, ParallelOptions


def options(data: int, tensor: int, device: str = "auto") -> EngineOptions:
    parallel = ParallelOptions(data_parallel_size=data, tensor_parallel_size=tensor)
    return EngineOptions(model=ModelOptions(source="m"), parallel=parallel, device=device)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rank", "own", "expected"),
    [
        (0, {}, "0,1"),
        (1, {}, "2,3"),
        (1, {"CUDA_VISIBLE_DEVICES": "7,6,5,4"}, "5,4"),
        (0, {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, "GPU-a,GPU-b"),
        (1, {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, ""),  # too few: the rank says so itself
    ],
)
def test_each_rank_sees_its_own(rank: int, own: dict[str, str], expected: str) -> None:
    assert gpu_environment(options(2, 2), rank, own) == {"CUDA_VISIBLE_DEVICES": expected}


def test_a_rank_of_stages_sees_the_gpus_of_all_of_them() -> None:
    of_stages = options(2, 2)
    of_stages.parallel.pipeline_parallel_size = 2
    assert gpu_environment(of_stages, 1, {}) == {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}


def test_a_single_rank_sees_what_its_parent_sees() -> None:
    assert gpu_environment(options(1, 4), 0, {}) == {}


def test_ranks_on_the_cpu_need_no_gpus() -> None:
    assert gpu_environment(options(2, 1, "cpu"), 1, {}) == {}
