"""A conversation with a running server, streamed: `python examples/chat.py [BASE_URL]`.

Each turn sends the whole history, whose beginning the server finds in its prefix cache.
"""

import sys

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

QUESTIONS = ["My name is Ada. What is a prime number?", "What is my name?"]


def main(base_url: str) -> None:
    """Asks the questions in turn."""
    client = OpenAI(base_url=base_url, api_key="none")
    model = client.models.list().data[0].id
    messages: list[ChatCompletionMessageParam] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        print(f"> {question}")
        stream = client.chat.completions.create(
            model=model,
            messages=messages,
            max_completion_tokens=64,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        answer = ""
        for chunk in stream:
            for choice in chunk.choices:
                answer += choice.delta.content or ""
                print(choice.delta.content or "", end="", flush=True)
            if chunk.usage and chunk.usage.prompt_tokens_details:
                cached = chunk.usage.prompt_tokens_details.cached_tokens
                print(f"\n[{chunk.usage.prompt_tokens} prompt tokens, {cached} of them cached]")
        messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1")
