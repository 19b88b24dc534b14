"""Writes a GGUF file's model as a folder of bfloat16 safetensors, for servers that read no GGUF.

Run it with a Python that has transformers, accelerate and gguf: widen_gguf.py FILE.gguf OUT_FOLDER
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main() -> None:
    file, out = Path(sys.argv[1]), sys.argv[2]
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(**source).save_pretrained(out)


if __name__ == "__main__":
    main()
