"""Whether forced calls of tools hold: `python -m pagelet.bench.tools --url URL`.

Against a server with a real model, at temperature 1: answers that must call one of several tools,
and answers that must call a named one, whole and streamed. The arguments must be JSON that matches
the tool's schema, every time.

`--through` does the same with a public framework, which brings its own client and checks: for
`openai-agents` and `pydantic-ai`, run this file with the Python of a venv that has the framework
and jsonschema; nothing of Pagelet is needed there.
"""

import argparse
import asyncio
import collections
import importlib
import json
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

_AT_ONCE: Final = 8
_MAX_TOKENS: Final = 600
_PROMPTS: Final = (
    "What will the weather be in Paris on Friday?",
    "Book a table for four near the station, with a view.",
    "Remind me to call my sister tomorrow at noon.",
    "Tell me a story about a fox.",
)


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_WORD: Final = {"type": "string", "minLength": 1, "maxLength": 30}
TOOLS: Final[dict[str, dict[str, Any]]] = {
    "get_weather": _object(
        city=_WORD,
        unit={"type": "string", "enum": ["celsius", "fahrenheit"]},
        days={"type": "integer", "minimum": 1, "maximum": 14},
    ),
    "book_table": _object(
        guests={
            "type": "array",
            "items": _object(name=_WORD, vegetarian={"type": "boolean"}),
            "minItems": 1,
            "maxItems": 3,
        },
        time={"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"},
        note={"anyOf": [_WORD, {"type": "null"}]},
    ),
    "remind": _object(
        text=_WORD,
        priority={"type": "number", "minimum": 0, "maximum": 1},
        tags={"enum": [[], ["x"]]},
    ),
}
"""Schemas whose answers are bounded, so that none is cut off."""


class Outcome(collections.Counter[str]):
    """How many calls there were of each kind."""

    def check(self, allowed: Sequence[str], name: str, arguments: str) -> None:
        """Counts a call, and prints what is wrong with it."""
        import jsonschema

        try:
            if name not in allowed:
                raise ValueError(f"the call is of {name!r}, not of {list(allowed)}")
            jsonschema.validate(json.loads(arguments), TOOLS[name])
        except (ValueError, jsonschema.ValidationError) as error:
            print(f"{name}({arguments}): {error}")
            self["bad"] += 1
        else:
            self["good"] += 1


def _choice(named: str | None) -> Any:
    return "required" if named is None else {"type": "function", "function": {"name": named}}


def _allowed(named: str | None) -> list[str]:
    return list(TOOLS) if named is None else [named]


Ask = Callable[[int, str | None, Outcome], Awaitable[None]]
"""Asks for one answer that calls a tool, the named one if there is a name, and checks it."""


def plain(url: str, model: str) -> Ask:
    """The `openai` client; every other answer is streamed."""
    openai = importlib.import_module("openai")
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=600)
    functions = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in TOOLS.items()
    ]

    async def ask(number: int, named: str | None, outcome: Outcome) -> None:
        settings = {
            "model": model,
            "messages": [{"role": "user", "content": _PROMPTS[number % len(_PROMPTS)]}],
            "tools": functions,
            "tool_choice": _choice(named),
            "parallel_tool_calls": False,
            "temperature": 1,
            "seed": number,
            "max_tokens": _MAX_TOKENS,
        }
        if number % 2:
            async with client.chat.completions.stream(**settings) as stream:
                answer = await stream.get_final_completion()
        else:
            answer = await client.chat.completions.create(**settings)
        calls = answer.choices[0].message.tool_calls or []
        if len(calls) != 1:
            print(f"an answer with {len(calls)} calls: {answer}")
            outcome["bad"] += 1
        for call in calls:
            outcome.check(_allowed(named), call.function.name, call.function.arguments)

    return ask


def openai_agents(url: str, model: str) -> Ask:
    """The framework `openai-agents`, over chat completions or, every other time, responses."""
    agents = importlib.import_module("agents")
    openai = importlib.import_module("openai")
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=600)
    models = (
        agents.OpenAIChatCompletionsModel(model, client),
        agents.OpenAIResponsesModel(model, client),
    )

    async def ask(number: int, named: str | None, outcome: Outcome) -> None:
        def tool(name: str) -> Any:
            async def invoke(context: Any, arguments: str) -> str:
                outcome.check(_allowed(named), name, arguments)
                return "done"

            return agents.FunctionTool(
                name=name,
                description=name,
                params_json_schema=TOOLS[name],
                on_invoke_tool=invoke,
                strict_json_schema=False,
            )

        agent = agents.Agent(
            name="helper",
            model=models[number % 2],
            tools=[tool(name) for name in TOOLS],
            model_settings=agents.ModelSettings(
                tool_choice=named or "required",
                parallel_tool_calls=False,
                temperature=1,
                max_tokens=_MAX_TOKENS,
            ),
            tool_use_behavior="stop_on_first_tool",
        )
        await agents.Runner.run(agent, _PROMPTS[number % len(_PROMPTS)], max_turns=1)

    return ask


def pydantic_ai(url: str, model: str) -> Ask:
    """The framework `pydantic-ai`: an answer's type is a tool that it forces, and it checks the
    arguments itself; nothing is tried twice."""
    ai = importlib.import_module("pydantic_ai")
    models = importlib.import_module("pydantic_ai.models.openai")
    providers = importlib.import_module("pydantic_ai.providers.openai")
    chat = models.OpenAIChatModel(
        model, provider=providers.OpenAIProvider(base_url=f"{url}/v1", api_key="-")
    )

    async def ask(number: int, named: str | None, outcome: Outcome) -> None:
        def output(name: str) -> Any:
            schema = ai.StructuredDict(TOOLS[name], name=name)
            return ai.ToolOutput(schema, name=name)

        agent = ai.Agent(
            chat,
            output_type=[output(name) for name in _allowed(named)],
            retries=0,
            model_settings={"temperature": 1, "max_tokens": _MAX_TOKENS, "seed": number},
        )
        answer = await agent.run(_PROMPTS[number % len(_PROMPTS)])
        [call] = [
            part
            for message in answer.all_messages()
            for part in message.parts
            if part.part_kind == "tool-call"
        ]
        outcome.check(_allowed(named), call.tool_name, call.args_as_json_str())

    return ask


_CLIENTS: Final = {"openai": plain, "openai-agents": openai_agents, "pydantic-ai": pydantic_ai}


async def run(ask: Ask, runs: int) -> int:
    """Prints how many calls of each kind validate; returns how many do not."""
    failed = 0
    for named in (None, *TOOLS):
        outcome, gate = Outcome(), asyncio.Semaphore(_AT_ONCE)

        async def one(
            number: int,
            named: str | None = named,
            outcome: Outcome = outcome,
            gate: asyncio.Semaphore = gate,
        ) -> None:
            async with gate:
                try:
                    await ask(number, named, outcome)
                except Exception as error:  # a framework's own finding
                    print(f"run {number}: {type(error).__name__}: {error}")
                    outcome["bad"] += 1

        count = runs if named is None else -(-runs // len(TOOLS))
        await asyncio.gather(*(one(number) for number in range(count)))
        missing = count - outcome.total()
        print(f"{named or 'required':12} {outcome['good']} of {count} calls validate", flush=True)
        failed += outcome["bad"] + max(missing, 0)
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the number of answers that do not validate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument(
        "--runs", type=int, default=100, help="with required; a third, rounded up, with each tool"
    )
    parser.add_argument("--through", choices=sorted(_CLIENTS), default="openai")
    options = parser.parse_args(arguments)
    with urllib.request.urlopen(f"{options.url}/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    return asyncio.run(run(_CLIENTS[options.through](options.url, model), options.runs))


if __name__ == "__main__":
    raise SystemExit(bool(main()))
