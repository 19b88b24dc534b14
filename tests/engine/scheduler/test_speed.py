"""The speed that is told is that of the machine, whatever mix of steps it was seen in."""

import random

import pytest

from pagelet.engine.scheduler.speed import MeasuredSpeed

STEP, TOKEN = 0.02, 0.001  # seconds of a step, and more of each prompt token in it
FULL = 500  # prompt tokens of the longest step
RATE = FULL / (STEP + FULL * TOKEN)


def test_nothing_is_told_before_enough_was_seen() -> None:
    speed = MeasuredSpeed()
    assert (speed.prefill_tokens_per_second(FULL), speed.decode_step_seconds) == (0.0, 0.0)
    speed.observe(prompt_tokens=3, num_decodes=0, seconds=1.0)
    assert speed.prefill_tokens_per_second(FULL) == 0.0


@pytest.mark.parametrize("prompts", [(16, 200, FULL), (16,), (FULL,)], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_speed_of_mixed_steps(seed: int, prompts: tuple[int, ...]) -> None:
    """Short prompts alone tell as much as long ones: the fixed time of a step is none of theirs."""
    rng = random.Random(seed)
    speed = MeasuredSpeed()
    for _ in range(300):
        decodes = rng.randrange(8)
        prompt = rng.choice([0, *prompts])
        if prompt or decodes:
            speed.observe(prompt, decodes, STEP + prompt * TOKEN)
    assert speed.decode_step_seconds == pytest.approx(STEP)
    assert speed.prefill_tokens_per_second(FULL) == pytest.approx(RATE)


def test_a_few_short_prompts_do_not_hide_the_speed_of_a_long_one() -> None:
    """Not even where no step of decodes has told what a step takes without any."""
    speed = MeasuredSpeed()
    for _ in range(5):
        speed.observe(16, 0, STEP + 16 * TOKEN)
    assert speed.prefill_tokens_per_second(FULL) < 0.5 * RATE
    speed.observe(FULL, 0, STEP + FULL * TOKEN)
    assert speed.prefill_tokens_per_second(FULL) == pytest.approx(RATE, rel=0.01)


def test_prompts_that_cost_nothing_visible_are_not_free() -> None:
    """As where steps of decodes, of many of them, were slower than those of a prompt."""
    speed = MeasuredSpeed()
    for _ in range(5):
        speed.observe(0, 64, STEP)
        speed.observe(16, 0, STEP / 2)
    assert 0 < speed.prefill_tokens_per_second(10 * FULL) < 10 * FULL / STEP


def test_it_follows_a_machine_that_slows_down() -> None:
    speed = MeasuredSpeed()
    for factor in (1, 3):
        for _ in range(200):
            speed.observe(0, 4, factor * STEP)
            speed.observe(400, 0, factor * (STEP + 400 * TOKEN))
    assert speed.decode_step_seconds == pytest.approx(3 * STEP, rel=0.01)
    assert speed.prefill_tokens_per_second(FULL) == pytest.approx(RATE / 3, rel=0.01)
