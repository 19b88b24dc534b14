"""The speed that is told is that of the machine, whatever mix of steps it was seen in."""

import random

import pytest

from pagelet.engine.scheduler.speed import MeasuredSpeed

STEP, TOKEN = 0.02, 0.001  # seconds of a step, and more of each prompt token in it


def test_nothing_is_told_before_enough_was_seen() -> None:
    speed = MeasuredSpeed()
    assert (speed.prefill_tokens_per_second, speed.decode_step_seconds) == (0.0, 0.0)
    speed.observe(prompt_tokens=3, num_decodes=0, seconds=1.0)
    assert speed.prefill_tokens_per_second == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_speed_of_mixed_steps(seed: int) -> None:
    rng = random.Random(seed)
    speed = MeasuredSpeed()
    for _ in range(300):
        decodes = rng.randrange(8)
        prompt = rng.choice([0, 16, 200, 500])
        if prompt or decodes:
            speed.observe(prompt, decodes, STEP + prompt * TOKEN)
    assert speed.decode_step_seconds == pytest.approx(STEP)
    # A step without decodes is all its prompts', its fixed cost included.
    assert 0.8 / TOKEN < speed.prefill_tokens_per_second <= 1 / TOKEN


def test_it_follows_a_machine_that_slows_down() -> None:
    speed = MeasuredSpeed()
    for factor in (1, 3):
        for _ in range(200):
            speed.observe(0, 4, factor * STEP)
            speed.observe(400, 0, factor * 400 * TOKEN)
    assert speed.decode_step_seconds == pytest.approx(3 * STEP, rel=0.01)
    assert speed.prefill_tokens_per_second == pytest.approx(1 / (3 * TOKEN), rel=0.01)
