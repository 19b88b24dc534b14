"""What structured output costs, and whether it holds: `python -m pagelet.bench.structured_output`.

Against a server with a real model: the speed of 16 streams with a grammar beside 16 without, in
turns, and with `--pid` of a server on this machine the processor time of a token, which other work
on the machine disturbs less; then answers at temperature 1 over a file of schemas, each of which
must validate.
"""

import argparse
import json
import statistics
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pagelet.bench.process_usage import usage_of_tree

_STREAMS = 16
_PROMPT = "Write a record about a person, a place or a thing."
_RECORDS = {
    "type": "array",
    "minItems": 60,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "count": {"type": "integer", "minimum": 0, "maximum": 9999},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        },
        "required": ["name", "count", "tags"],
        "additionalProperties": False,
    },
}


class Server:
    """An OpenAI server."""

    def __init__(self, url: str) -> None:
        self._url = url
        with urllib.request.urlopen(f"{url}/v1/models") as answer:
            self._model = json.load(answer)["data"][0]["id"]

    def ask(self, seed: int, **settings: Any) -> dict[str, Any]:
        """A whole answer."""
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": _PROMPT}],
            "temperature": 1,
            "seed": seed,
        } | settings
        request = urllib.request.Request(
            f"{self._url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            result: dict[str, Any] = json.load(answer)
        return result

    def tokens_per_second(self, num_tokens: int, **settings: Any) -> float:
        """Of all streams together; every answer is as long as it was asked to be."""
        begun = time.monotonic()
        with ThreadPoolExecutor(_STREAMS) as threads:
            jobs = [
                threads.submit(self.ask, seed, max_tokens=num_tokens, ignore_eos=True, **settings)
                for seed in range(_STREAMS)
            ]
            generated: int = sum(job.result()["usage"]["completion_tokens"] for job in jobs)
        return generated / (time.monotonic() - begun)


def _format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def measure_cost(server: Server, rounds: int, num_tokens: int, pid: int | None) -> None:
    """Prints the speed with a grammar over the speed without, in turns; and of the process `pid`
    with all that it started, the processor time of a token without over that with one."""
    constrained = {"response_format": _format(_RECORDS)}
    server.tokens_per_second(8, **constrained)
    speeds, times = [], []

    def run(**settings: Any) -> tuple[float, float]:
        before = 0.0 if pid is None else usage_of_tree(pid).cpu_seconds
        speed = server.tokens_per_second(num_tokens, **settings)
        used = 0.0 if pid is None else usage_of_tree(pid).cpu_seconds - before
        return speed, used / (_STREAMS * num_tokens) * 1e3

    for _ in range(rounds):
        plain, limited = run(), run(**constrained)
        speeds.append(limited[0] / plain[0])
        line = f"{plain[0]:8.1f} tokens/s plain {limited[0]:8.1f} with a grammar   {speeds[-1]:.3f}"
        if pid is not None:
            times.append(plain[1] / limited[1])
            line += f"   CPU {plain[1]:.3f} and {limited[1]:.3f} ms a token   {times[-1]:.3f}"
        print(line, flush=True)
    print(f"median ratio {statistics.median(speeds):.3f}")
    if times:
        print(f"median ratio by CPU time {statistics.median(times):.3f}")


def check_schemas(server: Server, file: Path, num_answers: int) -> int:
    """Prints how many answers finished, and those that do not validate, which it counts."""
    import jsonschema

    schemas = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    def answer(number: int) -> tuple[str, str, str]:
        entry = schemas[number % len(schemas)]
        choice = server.ask(number, max_tokens=300, response_format=_format(entry["schema"]))
        [found] = choice["choices"]
        return entry["name"], found["finish_reason"], found["message"]["content"]

    by_name = {entry["name"]: entry["schema"] for entry in schemas}
    finished = invalid = 0
    with ThreadPoolExecutor(_STREAMS) as threads:
        for name, reason, text in threads.map(answer, range(num_answers)):
            if reason != "stop":
                continue
            finished += 1
            try:
                jsonschema.validate(json.loads(text), by_name[name])
            except (ValueError, jsonschema.ValidationError) as error:
                invalid += 1
                print(f"{name}: {text!r}: {error}")
    print(f"{num_answers} answers, {finished} finished, {invalid} of them do not validate")
    return invalid


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the number of answers that do not validate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--pid", type=int, help="of a server on this machine")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--schemas", type=Path, help="a line of JSON with name and schema each")
    parser.add_argument("--answers", type=int, default=1000)
    options = parser.parse_args(arguments)
    server = Server(options.url)
    if options.rounds:
        measure_cost(server, options.rounds, options.tokens, options.pid)
    if options.schemas is not None:
        return check_schemas(server, options.schemas, options.answers)
    return 0


if __name__ == "__main__":
    raise SystemExit(bool(main()))
