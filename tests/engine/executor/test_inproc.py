"""The executor in this process: steps in order, two in flight, and failures that stay."""

import queue
import threading

import pytest
import torch

from pagelet.engine.errors import ConfigurationError, ExecutorFailed
from pagelet.engine.executor.inproc import InprocExecutor
from pagelet.engine.runner.model_runner import ModelRunner
from support.hand_scheduler import HandScheduler
from support.tiny_models import tiny_config, tiny_options, tiny_transformers_model


@pytest.fixture(scope="module")
def model():
    return tiny_transformers_model("Qwen2")


@pytest.fixture
def executor(model):
    options, weights = tiny_options(), model.state_dict().items()
    executor = InprocExecutor(lambda: ModelRunner(options, tiny_config(model), weights, 128))
    yield executor
    executor.close()


def test_plans_are_submitted_before_results_are_read(model, executor):
    hand = HandScheduler(executor.layout, executor.num_blocks, 8)
    prompt = list(range(40, 61))
    hand.add(0, prompt)
    futures = [executor.execute(hand.plan({0: 10})), executor.execute(hand.plan([0]))]
    for _ in range(10):
        futures.append(executor.execute(hand.plan([0])))
        hand.take(futures.pop(0).result())
    for future in futures:
        hand.take(future.result())
    with torch.inference_mode():
        expected = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=11,
            min_new_tokens=11,
            do_sample=False,
            pad_token_id=0,
        )
    assert hand.finish(0) == expected[0, len(prompt) :].tolist()


def test_after_a_step_that_raised_nothing_runs_any_more(executor):
    hand = HandScheduler(executor.layout, executor.num_blocks, 8)
    hand.add(0, [1, 2, 3])
    plan = hand.plan([0])
    assert executor.execute(plan).result().sampled[0].token_ids
    again = executor.execute(plan)  # its request has a row already
    with pytest.raises(ExecutorFailed, match=r"step 1 failed.*row already"):
        again.result()
    with pytest.raises(ExecutorFailed, match=r"step 2 failed.*row already"):
        executor.execute(hand.plan([0])).result()


def test_a_runner_that_cannot_be_built_leaves_no_thread():
    def refuse():
        raise ConfigurationError("no")

    before = threading.active_count()
    with pytest.raises(ConfigurationError):
        InprocExecutor(refuse)
    assert threading.active_count() == before


def test_weights_that_do_not_fit_are_a_configuration_error(model):
    weights = [(name, tensor) for name, tensor in model.state_dict().items() if "norm" not in name]
    with pytest.raises(ConfigurationError, match=r"missing: model\.layers"):
        ModelRunner(tiny_options(), tiny_config(model), weights, 128)


class SlowCopies:
    """A device that has computed everything, and whose results come when they are let go."""

    asynchronous = True

    def __init__(self):
        self.begun = queue.Queue()
        self.broken = False

    def begin(self, tensors):
        released, copies = threading.Event(), list(tensors)
        self.begun.put(released)

        def wait():
            assert released.wait(30)
            if self.broken:
                raise RuntimeError("the device is gone")
            return copies

        return wait


@pytest.fixture
def slow(model, monkeypatch):
    copies = SlowCopies()
    monkeypatch.setattr("pagelet.engine.runner.model_runner.make_copies", lambda device: copies)
    weights = model.state_dict().items()
    executor = InprocExecutor(lambda: ModelRunner(tiny_options(), tiny_config(model), weights, 128))
    yield executor, copies
    executor.close()


def test_a_device_gets_the_next_step_before_the_last_ones_results_are_read(executor, slow):
    on_device, copies = slow
    answers = []
    for runner in (on_device, executor):
        hand = HandScheduler(runner.layout, runner.num_blocks, 8)
        hand.add(0, [7, 8, 9], logprobs=2, prompt_logprobs=1)
        futures = [runner.execute(hand.plan([0])) for _ in range(4)]
        if runner is on_device:
            released = [copies.begun.get(timeout=30) for _ in futures]
            assert not any(future.done() for future in futures)
            for event in released:
                event.set()
        answers.append([future.result(30) for future in futures])
    assert answers[0] == answers[1]


def test_a_device_that_fails_late_fails_what_is_behind_it(slow):
    executor, copies = slow
    hand = HandScheduler(executor.layout, executor.num_blocks, 8)
    hand.add(0, [7, 8, 9])
    first, second = (executor.execute(hand.plan([0])) for _ in range(2))
    copies.broken = True
    # Both are launched before the first fails: afterwards none is any more.
    for released in [copies.begun.get(timeout=30) for _ in range(2)]:
        released.set()
    with pytest.raises(ExecutorFailed, match=r"step 1 failed.*is gone"):
        first.result(30)
    with pytest.raises(ExecutorFailed, match="step 2 failed"):
        second.result(30)
    with pytest.raises(ExecutorFailed, match="step 3 failed"):
        executor.execute(hand.plan([0])).result(30)
