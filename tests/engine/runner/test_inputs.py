"""State rows and the tensors gathered from them, written out."""

import pytest
import torch

from pagelet.engine.kv.spec import make_layout
from pagelet.engine.runner.inputs import build_inputs
from pagelet.engine.runner.state import RequestRows
from pagelet.engine.step import NewRequestData, ScheduledRequest, SchedulerOutput
from pagelet.protocol.sampling import SamplingParams

LAYOUT = make_layout([None, 4], page_bytes=1)  # two groups: full and sliding attention


def make_rows(max_num_seqs=3):
    return RequestRows(max_num_seqs, 32, 4, LAYOUT, torch.device("cpu"))


def plan(new=(), scheduled=(), dropped=()):
    return SchedulerOutput(1, list(new), list(scheduled), list(dropped), 0)


def new_request(request_id, tokens, block_ids, **params):
    return NewRequestData(request_id, tokens, len(tokens), SamplingParams(**params), [2], block_ids)


def test_a_mixed_batch_is_gathered_from_the_rows():
    rows = make_rows()
    rows.update(
        plan(
            new=[
                # A prefix hit of 8 tokens: the sliding group's first block is out of its window.
                new_request(7, list(range(50, 62)), [[5, 6, 7], [0, 8, 9]]),
                new_request(3, list(range(20, 25)), [[1, 2], [3, 4]]),
            ]
        )
    )
    step = plan(
        scheduled=[
            ScheduledRequest(3, 1, 3, False),
            ScheduledRequest(7, 8, 5, True, [[11], [12]]),
        ]
    )
    rows.update(step)
    rows.append(rows.find([7]), torch.tensor([12]).numpy(), torch.tensor([99]))
    inputs = build_inputs(step, rows)

    assert inputs.input_ids.tolist() == [21, 22, 23, 58, 59, 60, 61, 99]
    assert inputs.positions.tolist() == [1, 2, 3, 8, 9, 10, 11, 12]
    assert inputs.seq_lens.tolist() == [4, 13]
    assert inputs.samples.tolist() == [False, True]
    full, sliding = inputs.attention
    assert full.block_table.tolist() == [[1, 2, 0, 0], [5, 6, 7, 11]]
    assert sliding.block_table.tolist() == [[3, 4, 0, 0], [0, 8, 9, 12]]
    assert full.slot_mapping.tolist() == [5, 6, 7, 28, 29, 30, 31, 44]
    assert sliding.slot_mapping.tolist() == [13, 14, 15, 36, 37, 38, 39, 48]
    for group in inputs.attention:
        assert group.query_start_loc.tolist() == [0, 3, 8]
        assert (group.max_query_len, group.max_seq_len) == (5, 13)
        assert (group.query_lens_cpu, group.seq_lens_cpu) == ([3, 5], [4, 13])
        assert group.slot_mapping.dtype == torch.int64
        assert group.block_table.dtype == group.seq_lens.dtype == torch.int32


def test_a_token_without_a_block_is_a_fault_of_the_scheduler():
    rows = make_rows()
    step = plan([new_request(1, [1, 2, 3], [[0], [5]])], [ScheduledRequest(1, 0, 3, True)])
    rows.update(step)
    with pytest.raises(AssertionError, match="null block"):
        build_inputs(step, rows)


def test_rows_are_freed_before_new_requests_take_them():
    rows = make_rows(max_num_seqs=1)
    rows.update(plan([new_request(1, [1], [[1], [2]], min_tokens=3, logit_bias={4: 1.0})]))
    assert (len(rows), len(rows.end_token_ids), len(rows.logit_bias)) == (1, 1, 1)
    rows.update(plan([new_request(2, [9, 9], [[3], [4]])], dropped=[1]))
    assert (len(rows), len(rows.end_token_ids), len(rows.logit_bias)) == (1, 0, 0)
    assert rows.find([2]).tolist() == [0]
    rows.update(plan(dropped=[2]))
    assert len(rows) == 0


def test_a_reused_row_keeps_nothing_of_the_request_before():
    rows = make_rows(max_num_seqs=1)
    asking = {"temperature": 1.0, "logprobs": 2, "prompt_logprobs": 1, "presence_penalty": 0.5}
    rows.update(plan([new_request(1, [1] * 12, [[1, 2, 3], [4, 5, 6]], **asking)]))
    sets = (rows.drawn, rows.penalized, rows.with_logprobs, rows.with_prompt_logprobs)
    assert sets == ({0}, {0}, {0}, {0})
    rows.update(plan([new_request(2, [9], [[7], [8]], temperature=0.0)], dropped=[1]))
    assert sets == (set(), set(), set(), set())
    assert [table[0].tolist() for table in rows.block_tables] == [
        [7] + [0] * (rows.block_tables[0].shape[1] - 1),
        [8] + [0] * (rows.block_tables[1].shape[1] - 1),
    ]


def test_a_row_is_not_taken_twice():
    rows = make_rows()
    rows.update(plan([new_request(1, [1], [[1], [2]])]))
    with pytest.raises(AssertionError, match="has a row already"):
        rows.update(plan([new_request(1, [1], [[1], [2]])]))
