"""What a decode step reads of its requests' rows and adds to them, in C++ and in Python."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagelet.kernels.cpu.program import Program
from pagelet.kernels.decode_inputs.cpu import record_decode_inputs, record_keep_tokens
from pagelet.kernels.decode_inputs.reference import BlockTables, DecodeInputs, gather, keep

UNTOUCHED = -7


def buffers(
    rows: list[int], positions: list[int], num_groups: int, block_size: int, seed: int
) -> DecodeInputs:
    """Random state rows, and buffers that are filled with UNTOUCHED."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randint(1, 1 << 30, shape, generator=generator, dtype=torch.int32)

    num_rows, longest, room = 6, 40, len(rows) + 2
    max_blocks = -(-longest // block_size)
    return DecodeInputs(
        row_index=torch.tensor([*rows, 0, 0]),
        positions=torch.tensor([*positions, 0, 0]),
        token_ids=random(num_rows, longest),
        input_ids=torch.full((room,), UNTOUCHED),
        query_start_loc=torch.full((room + 1,), UNTOUCHED, dtype=torch.int32),
        seq_lens=torch.full((room,), UNTOUCHED, dtype=torch.int32),
        groups=tuple(
            BlockTables(
                of_rows=random(num_rows, max_blocks),
                of_step=torch.full((room, max_blocks), UNTOUCHED, dtype=torch.int32),
                slots=torch.full((room,), UNTOUCHED),
            )
            for _ in range(num_groups)
        ),
        block_size=block_size,
    )


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 39)), max_size=8),
    st.integers(1, 3),
    st.sampled_from([1, 3, 16]),
    st.integers(0, 2**32 - 1),
)
@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_equals_the_reference(
    tier: str, requests: list[tuple[int, int]], num_groups: int, block_size: int, seed: int
) -> None:
    rows, positions = [row for row, _ in requests], [position for _, position in requests]
    drawn = torch.arange(100, 100 + len(rows) + 2)
    got, expected = (buffers(rows, positions, num_groups, block_size, seed) for _ in range(2))
    gather(expected, len(rows))
    keep(expected, drawn, len(rows))
    program = Program()
    record_decode_inputs(program, got)
    record_keep_tokens(program, got, drawn)
    program.run(len(rows))
    assert torch.equal(got.token_ids, expected.token_ids)
    assert torch.equal(got.input_ids, expected.input_ids)
    assert torch.equal(got.query_start_loc, expected.query_start_loc)
    assert torch.equal(got.seq_lens, expected.seq_lens)
    for mine, reference in zip(got.groups, expected.groups, strict=True):
        assert torch.equal(mine.of_step, reference.of_step)
        assert torch.equal(mine.slots, reference.slots)
