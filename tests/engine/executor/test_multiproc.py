"""Tensor parallelism over gloo: the tokens of one rank, errors in time, no process left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pagelet.engine.errors import ConfigurationError, ExecutorFailed
from support.hand_scheduler import HandScheduler
from support.processes import wait_for
from support.ranks import LLAMA, MOE, make_ranks

SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 5, "repetition_penalty": 1.2, "logprobs": 2}


def hand_for(executor):
    return HandScheduler(executor.layout, executor.num_blocks, 8)


def generate(executor):
    """Chunked, mixed, two steps in flight, and one request preempted: tokens and logprobs."""
    hand = hand_for(executor)
    hand.add(0, list(range(60, 81)))
    hand.add(1, [7] * 9, **SAMPLED)
    results, futures = [], [executor.execute(hand.plan({0: 10, 1: 9}))]
    for step in range(8):
        if step == 4:
            while futures:
                results.append(futures.pop(0).result())
                hand.take(results[-1])
            hand.preempt(1)
        futures.append(executor.execute(hand.plan([1, 0])))
        if len(futures) == 2:
            results.append(futures.pop(0).result())
            hand.take(results[-1])
    results.append(futures.pop(0).result())
    hand.take(results[-1])
    logprobs = [
        value
        for result in results
        for sampled in result.sampled
        for entry in sampled.logprobs or []
        for value in entry.logprobs
    ]
    return hand.finish(0), hand.finish(1), logprobs


def wait_gone(pids):
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids))


@pytest.mark.parametrize("config", [LLAMA, MOE], ids=["llama", "moe"])
def test_two_ranks_generate_what_one_does(config):
    alone = make_ranks(config, 1)
    together = make_ranks(config, 2)
    try:
        assert together.layout.groups == alone.layout.groups
        greedy, sampled, logprobs = generate(together)
        expected_greedy, expected_sampled, expected_logprobs = generate(alone)
    finally:
        together.close()
        alone.close()
    assert (greedy, sampled) == (expected_greedy, expected_sampled)
    assert len(sampled) >= 8
    assert logprobs == pytest.approx(expected_logprobs, rel=1e-9)
    wait_gone(together.worker_pids)


def test_a_killed_worker_fails_everything_and_leaves_nothing():
    executor = make_ranks(LLAMA, 2)
    try:
        hand = hand_for(executor)
        hand.add(0, [1, 2, 3])
        assert executor.execute(hand.plan([0])).result().sampled[0].token_ids
        os.kill(executor.worker_pids[0], signal.SIGSTOP)  # so that it cannot tell
        future = executor.execute(hand.plan([0]))
        os.kill(executor.worker_pids[1], signal.SIGKILL)
        with pytest.raises(ExecutorFailed, match="rank 1 ended with signal SIGKILL"):
            future.result(timeout=60)
        with pytest.raises(ExecutorFailed, match="rank 1 ended"):
            executor.execute(hand.plan([0])).result(timeout=60)
    finally:
        executor.close()
    wait_gone(executor.worker_pids)
    executor.close()  # may be repeated


def test_a_stopped_worker_is_found():
    executor = make_ranks(LLAMA, 2)
    try:
        hand = hand_for(executor)
        hand.add(0, [1, 2, 3])
        executor.execute(hand.plan([0])).result()
        executor.check()
        os.kill(executor.worker_pids[1], signal.SIGSTOP)
        future = executor.execute(hand.plan([0]))
        with pytest.raises(ExecutorFailed, match="rank 1 hangs: a signal has stopped its process"):
            future.result(timeout=60)
        with pytest.raises(ExecutorFailed, match="rank 1 hangs: a signal has stopped its process"):
            executor.check()
    finally:
        executor.close()
    wait_gone(executor.worker_pids)


def test_a_worker_that_raises_tells_why():
    executor = make_ranks(LLAMA, 2)
    try:
        hand = hand_for(executor)
        hand.add(0, [1, 2, 3])
        plan = hand.plan([0])
        executor.execute(plan).result()
        with pytest.raises(ExecutorFailed, match=r"rank \d failed: .*row already"):
            executor.execute(plan).result(timeout=60)
    finally:
        executor.close()
    wait_gone(executor.worker_pids)


def test_a_configuration_that_cannot_work_is_told_in_the_workers_words():
    with pytest.raises(ConfigurationError, match="Lower --kv-cache-memory to "):
        make_ranks(LLAMA, 2, num_blocks=None, kv_cache_memory_bytes=1 << 60)


def test_a_number_of_ranks_that_does_not_divide_the_model_is_refused_before_any_starts():
    with pytest.raises(ConfigurationError, match="sizes that work: 1, 2, 4"):
        make_ranks(LLAMA, 3)


def test_workers_die_with_the_process_that_started_them():
    script = f"""
import sys, time
sys.path[:0] = {[str(Path(__file__).parents[2])]!r}
from support.ranks import LLAMA, make_ranks
executor = make_ranks(LLAMA, 2)
print(*executor.worker_pids, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as owner:
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 2
        owner.kill()
    wait_gone(pids)
