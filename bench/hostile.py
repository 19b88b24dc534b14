"""What hostile requests take from the others: `python -m pagelet.bench.hostile --url URL`.

Against a server with a real model: the speed of 16 plain streams, alone and beside others that send
grammars made to explode, or bodies of very many parts, without a pause; in turns. All streams must
bring all of their tokens. `--each` sends every hostile request by itself, on a server at rest, and
prints what it got, and for how long the server answered nobody else meanwhile.
"""

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Final

from pagelet.bench.hostile_bodies import BODIES, CHAT, GRAMMARS, SERIAL
from pagelet.bench.load.datasets import Lengths, random_prompts
from pagelet.bench.load.http_client import HttpClient, RequestFailed
from pagelet.bench.load.openai_api import RequestOptions
from pagelet.bench.load.run import Load, run_load
from pagelet.bench.load.vocabulary import Words

_STREAMS: Final = 16
_PROMPT_TOKENS: Final = 16
_PROBE_SECONDS: Final = 0.01
_BYSTANDER_SECONDS: Final = 0.5
_KINDS: Final = {"grammars": GRAMMARS, "bodies": BODIES}


@dataclasses.dataclass(frozen=True)
class _Hostile:
    name: str
    path: str
    body: bytes

    def fresh(self, serial: str) -> bytes:
        """The body, as nobody has sent it yet."""
        return self.body.replace(SERIAL, serial.encode())


@dataclasses.dataclass
class _Side:
    """What a round saw."""

    tokens_per_second: float
    longest_gap: float
    """Seconds between two events of a stream."""
    outcomes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    waits: list[float] = dataclasses.field(default_factory=list)
    """Of requests with small grammars of their own, until they were answered."""


class LostTokens(RuntimeError):
    """A stream did not bring all that it was asked for."""


class Bench:
    """One server under measurement."""

    def __init__(self, client: HttpClient, model: str, hostile: Sequence[_Hostile]) -> None:
        self._client = client
        self._model = model
        self._hostile = hostile
        self._serials = (f"{time.time_ns():x}{number}" for number in itertools.count())

    async def compare(self, rounds: int, num_tokens: int, connections: int) -> None:
        """Prints both speeds of each round, and the median of their ratios."""
        await self._streams(16, 0)
        ratios, waits = [], []
        outcomes: collections.Counter[str] = collections.Counter()
        for number in range(rounds):
            alone = await self._streams(num_tokens, number)
            beside = await self._beside(num_tokens, number, connections)
            ratios.append(beside.tokens_per_second / alone.tokens_per_second)
            outcomes += beside.outcomes
            waits += beside.waits
            print(
                f"{alone.tokens_per_second:8.1f} tokens/s alone {beside.tokens_per_second:8.1f} "
                f"beside   {ratios[-1]:.3f}   longest gap {alone.longest_gap * 1e3:.0f} ms alone "
                f"{beside.longest_gap * 1e3:.0f} ms beside"
            )
        print(f"median ratio {statistics.median(ratios):.3f}; no token lost")
        if waits:
            print(
                f"other grammars waited {statistics.median(waits):.2f} s in the median, "
                f"{max(waits):.2f} s at most"
            )
        for outcome, count in sorted(outcomes.items()):
            print(f"{count:6d} {outcome}")

    async def each(self) -> None:
        """Prints what each hostile request gets."""
        for hostile in self._hostile:
            probing = asyncio.create_task(self._probe())
            await asyncio.sleep(0.2)
            begun = time.perf_counter()
            outcome = await self._send(hostile)
            seconds = time.perf_counter() - begun
            probing.cancel()
            longest = await probing
            print(f"{hostile.name:22} {seconds:7.2f} s  held {longest * 1e3:6.0f} ms  {outcome}")

    async def _probe(self) -> float:
        """The longest that the server took for an answer that costs nothing, until cancelled."""
        longest = 0.0
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                begun = time.perf_counter()
                try:
                    await self._client.get("/health")
                finally:
                    longest = max(longest, time.perf_counter() - begun)
                await asyncio.sleep(_PROBE_SECONDS)
        return longest

    async def _beside(self, num_tokens: int, seed: int, connections: int) -> _Side:
        outcomes: collections.Counter[str] = collections.Counter()
        waits: list[float] = []
        turns = itertools.cycle(self._hostile)
        tasks = [asyncio.create_task(self._press(turns, outcomes)) for _ in range(connections)] + [
            asyncio.create_task(self._bystander(waits))
        ]
        try:
            side = await self._streams(num_tokens, seed)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return dataclasses.replace(side, outcomes=outcomes, waits=waits)

    async def _streams(self, num_tokens: int, seed: int) -> _Side:
        """Raises `LostTokens`."""
        lengths = Lengths(_PROMPT_TOKENS, num_tokens)
        workload = random_prompts(Words(), _STREAMS, lengths, seed)
        result = await run_load(
            self._client, RequestOptions(self._model), workload, Load(_STREAMS, seed=seed)
        )
        for record in result.records:
            if record.output_tokens != num_tokens:
                raise LostTokens(
                    f"{record.output_tokens} of {num_tokens} tokens; {record.error_detail}"
                )
        tokens = sum(record.output_tokens for record in result.records)
        gaps = [gap for record in result.records for gap in record.itl]
        return _Side(tokens / result.duration, max(gaps, default=0.0))

    async def _press(self, turns: Iterator[_Hostile], outcomes: collections.Counter[str]) -> None:
        while True:
            hostile = next(turns)
            outcomes[f"{hostile.name}: {await self._send(hostile)}"] += 1

    async def _bystander(self, waits: list[float]) -> None:
        """Asks for a small grammar that is new, again and again."""
        for serial in self._serials:
            body = {
                "model": self._model,
                "messages": [{"role": "user", "content": "Hi."}],
                "max_tokens": 1,
                "structured_outputs": {"regex": f"[a-z]+ {serial}"},
            }
            begun = time.perf_counter()
            await self._client.post(CHAT, json.dumps(body).encode(), lambda data, at: None)
            waits.append(time.perf_counter() - begun)
            await asyncio.sleep(_BYSTANDER_SECONDS)

    async def _send(self, hostile: _Hostile) -> str:
        """What came of it."""
        body = hostile.fresh(next(self._serials))
        try:
            await self._client.post(hostile.path, body, lambda data, at: None)
        except RequestFailed as error:
            return str(error)[:150]
        return "answered"


async def _run(options: argparse.Namespace) -> None:
    async with HttpClient(options.url) as client:
        model = json.loads(await client.get("/v1/models"))["data"][0]["id"]
        hostile = [
            _Hostile(name, *make(model))
            for kind in options.kinds
            for name, make in _KINDS[kind].items()
            if options.only is None or options.only in name
        ]
        bench = Bench(client, model, hostile)
        if options.each:
            await bench.each()
        else:
            await bench.compare(options.rounds, options.tokens, options.connections)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints; the exit code is 1 if the server did not answer, or a stream lost tokens."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--kinds", nargs="+", choices=sorted(_KINDS), default=["grammars"])
    parser.add_argument("--only", help="send only those whose name has this in it")
    parser.add_argument("--each", action="store_true", help="one by one, on a server at rest")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--connections", type=int, default=4)
    options = parser.parse_args(arguments)
    try:
        asyncio.run(_run(options))
    except (RequestFailed, LostTokens) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
