"""Serves SmolLM2-135M-Instruct by two replicas, and kills one of them in the middle of an answer.

`make demo` leaves the service up until Ctrl-C; `make demo ONCE=1` ends after the answers.
"""

import argparse
import dataclasses
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

if __name__ == "__main__":
    # The imports take seconds; Ctrl-C meanwhile just ends this process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import openai
from openai.types.chat import ChatCompletionMessageParam
from rich.console import Console

from pagelet.bench.progress import show_progress
from pagelet.bench.server import PAGELET, Server, ServerFailed, free_port, running_command
from pagelet.local import client as local
from pagelet.local.client import NothingRuns
from pagelet.local.control import ControlError
from pagelet.local.state_dir import StateDir
from pagelet.local.status import Status

MODEL = "smollm2"
FILE = Path("examples/two-replicas.yaml")
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
    "Why is the sky blue?",
)
KILL_AFTER_PIECES = 20


class DemoFailed(Exception):
    """The demo cannot go on; the message says why."""


@dataclasses.dataclass
class Answer:
    """What was measured of one streamed answer."""

    text: str
    replica: str
    """The one that the router chose."""
    seconds_to_first_token: float
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    longest_pause: float
    """Seconds between two pieces."""

    def summary(self) -> str:
        """One line with times, speed, and what the prefix cache saved."""
        decode = self.seconds - self.seconds_to_first_token
        speed = (self.completion_tokens - 1) / decode if decode > 0 else 0.0
        return (
            f"{self.replica}: TTFT {self.seconds_to_first_token * 1000:.0f} ms, "
            f"{speed:.1f} tokens/s, {self.completion_tokens} tokens; prompt "
            f"{self.prompt_tokens} tokens, {self.cached_tokens} of them cached"
        )


def ask(
    client: openai.OpenAI,
    question: str,
    console: Console,
    meanwhile: Callable[[str, int], None] = lambda replica, pieces: None,
) -> Answer:
    """Streams one answer to the terminal, token by token, and measures it. `meanwhile` is told the
    replica and the number of pieces after each of them."""
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question},
    ]
    console.print(f"\n[bold]> {question}[/bold]")
    begin = time.perf_counter()
    first = 0.0
    pieces: list[str] = []
    last, longest_pause = begin, 0.0
    usage = None
    stream = client.chat.completions.create(
        model=MODEL,
        messages=messages,
        temperature=0,
        max_completion_tokens=100,
        stream=True,
        stream_options={"include_usage": True},
    )
    replica = stream.response.headers["x-pagelet-replica"]
    for chunk in stream:
        usage = chunk.usage or usage
        if chunk.choices and (piece := chunk.choices[0].delta.content):
            now = time.perf_counter()
            longest_pause = max(longest_pause, now - last if first else 0.0)
            first, last = first or now, now
            pieces.append(piece)
            console.out(piece, end="", highlight=False)
            meanwhile(replica, len(pieces))
    end = time.perf_counter()
    if not pieces or usage is None:
        raise DemoFailed(f"the answer to {question!r} has no text or no usage")
    details = usage.prompt_tokens_details
    answer = Answer(
        text="".join(pieces),
        replica=replica,
        seconds_to_first_token=first - begin,
        seconds=end - begin,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        completion_tokens=usage.completion_tokens,
        longest_pause=longest_pause,
    )
    console.print(f"\n[cyan]{answer.summary()}[/cyan]", soft_wrap=True)
    return answer


def curl_line(address: str) -> str:
    """A command that asks the running service something."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell me a joke."}],
        "stream": True,
    }
    return (
        f"curl -N {address}/v1/chat/completions -H 'Content-Type: application/json' "
        f"-d '{json.dumps(body)}'"
    )


def compare(first: Answer, second: Answer) -> str:
    """What the prefix cache did for the second prompt; how much faster only where it was."""
    found = (
        f"The router sent both to {second.replica}, which holds their common beginning: "
        f"{second.cached_tokens} of the second prompt's {second.prompt_tokens} tokens were there "
        "already"
    )
    ratio = first.seconds_to_first_token / second.seconds_to_first_token
    return (
        f"{found}, and its first token came {ratio:.1f} times as fast."
        if ratio >= 1.05
        else f"{found}."
    )


def wait_until_ready(server: Server, state: StateDir, console: Console) -> Status:
    """Waits for the router and both replicas. Raises `ServerFailed`."""
    began = time.monotonic()
    with show_progress(console) as progress:

        def tell(waited: float) -> None:
            progress(stages(state))

        server.wait_until_ready(START_SECONDS, tell)  # one replica serves
        while not (status := local.status(state)).is_settled:
            if status.failures or time.monotonic() - began > START_SECONDS:
                raise ServerFailed("\n".join(status.failures) or server.last_lines(30))
            tell(time.monotonic() - began)
            time.sleep(0.1)
    seconds = time.monotonic() - began
    console.print(f"[green]ready[/green] after {seconds:.1f} s at {server.address}")
    return status


def stages(state: StateDir) -> str:
    """What the router and each replica are at."""
    try:
        status = local.status(state)
    except (NothingRuns, ControlError):
        return "starting"
    texts = [f"router {status.router.phase}"]
    texts += [f"{r.id} {r.stage or r.phase}" for pool in status.pools for r in pool.replicas]
    return ", ".join(texts)


def show(client: openai.OpenAI, state: StateDir, console: Console) -> None:
    """The three questions. Raises `DemoFailed` if something is not as it should be."""
    # One token of something else, so that no figure holds the connection and all first uses.
    client.completions.create(model=MODEL, prompt="Hello", max_tokens=1)
    first, second = (ask(client, question, console) for question in QUESTIONS[:2])
    if second.replica != first.replica or second.cached_tokens == 0:
        raise DemoFailed("the second prompt shares its beginning, yet none of it was cached")
    console.print(f"\n{compare(first, second)}", soft_wrap=True)

    def kill(replica: str, pieces: int) -> None:
        if pieces == KILL_AFTER_PIECES:
            (pid,) = (r.pid for r in local.status(state).pools[0].replicas if r.id == replica)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            console.print(f" [bold red]\\[kill -9 {replica}][/bold red] ", end="")

    names = [replica.id for replica in local.status(state).pools[0].replicas]
    survivor = ask(client, QUESTIONS[2], console, meanwhile=kill)
    again = ask(client, QUESTIONS[2], Console(quiet=True))
    if again.text != survivor.text:
        raise DemoFailed(
            f"the answer that went on is not the one without a kill, which is: {again.text}"
        )
    others = " or ".join(name for name in names if name != survivor.replica)
    console.print(
        f"\n{survivor.replica} was killed in mid-answer, and after {survivor.longest_pause:.1f} s "
        f"the stream went on at {others}: the same {again.completion_tokens} tokens as when asked "
        "once more, undisturbed.",
        soft_wrap=True,
    )


def run(once: bool, console: Console, folder: Path) -> None:
    """The demo. Raises `DemoFailed`, `ServerFailed`, or an error of the `openai` client."""
    state, port = StateDir(folder), free_port(preferred=8000)
    os.chdir(Path(__file__).parent.parent)
    console.print(f"[dim]$ pagelet up -f {FILE}[/dim]")
    command = [PAGELET, "up", "-f", str(FILE), "--port", str(port), "--state-dir", str(folder)]
    with running_command(command, port) as server:
        wait_until_ready(server, state, console)
        client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)
        show(client, state, console)
        if once:
            return
        console.print("\nThe service stays up until Ctrl-C. Try it from another terminal:\n")
        console.print(curl_line(server.address), soft_wrap=True, markup=False)
        console.print(f".venv/bin/pagelet ps --state-dir {folder}", soft_wrap=True, markup=False)
        server.wait()
        raise DemoFailed(f"the service ended by itself:\n{server.last_lines(30)}")


def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    """Ends the demo as Ctrl-C does, so that the service is stopped whatever ends the demo."""
    raise KeyboardInterrupt


def main() -> int:
    """Exit code 0 after the answers (or Ctrl-C once they are there), 1 with a reason if not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--once", action="store_true", help="exit after the answers")
    once = parser.parse_args().once
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, interrupt)
    console = Console(highlight=False)
    try:
        with tempfile.TemporaryDirectory(prefix="pagelet-demo-") as folder:
            run(once, console, Path(folder))
    except KeyboardInterrupt:
        console.print("\nStopped.")
        return 130 if once else 0
    except (DemoFailed, ServerFailed, openai.OpenAIError) as error:
        Console(stderr=True).print(f"The demo failed: {error}", style="red", markup=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
