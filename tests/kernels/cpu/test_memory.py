"""Memory in huge pages: aligned, apart from one another, and writable to the last byte."""

from pagelet.kernels.cpu import bench
from pagelet.kernels.cpu.library import library
from pagelet.kernels.cpu.memory import empty_bytes

HUGE = 64 << 20


def test_tensors_are_aligned_and_apart() -> None:
    sizes = [1, 63, 64, 65, 0, 5000, HUGE - 64, 100, HUGE + 1, 7]
    tensors = [empty_bytes(size) for size in sizes]
    for value, tensor in enumerate(tensors):
        assert tensor.data_ptr() % 64 == 0
        tensor.fill_(value)
    for value, (size, tensor) in enumerate(zip(sizes, tensors, strict=True)):
        assert tensor.numel() == size
        assert (tensor == value).all()


def test_memory_outlives_its_neighbours() -> None:
    kept = empty_bytes(100).fill_(7)
    for _ in range(5):
        empty_bytes(HUGE - 4096)
    assert (kept == 7).all()


def test_the_measured_bandwidth_is_a_rate(tier: str) -> None:
    memory = empty_bytes(4 << 20).fill_(1)
    library().read(memory.data_ptr(), memory.numel())
    assert 1e8 < bench.Reader().best_rate(0.01) < 1e13


def test_a_benchmark_counts_what_it_reads(tier: str) -> None:
    ours, theirs, size = bench.measure("q8", rows=3, size=64, seconds=0.0, cached=True)
    assert ours > 0
    assert theirs > 0
    assert size == 4 * (64 * 17)  # 4 panels of one block of 17 lines
