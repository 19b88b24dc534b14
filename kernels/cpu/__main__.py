"""Compiles the CPU library if need be, and says what runs here: `python -m pagelet.kernels.cpu`."""

import argparse
import sys

from pagelet.kernels.cpu.compile import compile_library, find_compiler
from pagelet.kernels.cpu.library import needs_compiling, status
from pagelet.kernels.cpu.tiers import architecture_tiers


def main() -> int:
    """Returns 1 where the library is unavailable, after saying why.

    Raises CompileError if `--every-tier` cannot be done.
    """
    parser = argparse.ArgumentParser(description="Compile the CPU library, and say what runs here.")
    parser.add_argument("--no-compile", action="store_true", help="say it if it is not compiled")
    parser.add_argument(
        "--every-tier",
        action="store_true",
        help="compile for all instruction sets of this architecture, for an image that other "
        "machines will run",
    )
    arguments = parser.parse_args()
    if arguments.every_tier:
        for tier in architecture_tiers():
            print(f"CPU library for {tier}: {compile_library(tier).name}")
        return 0
    if arguments.no_compile and needs_compiling():
        print(f"CPU library: not compiled yet; the first start does it, with {find_compiler()}")
        return 0
    found = status()
    if found.reason is not None:
        print(f"CPU library: unavailable, torch is used instead: {found.reason}")
        return 1
    print(f"CPU library: {found.tier} of {', '.join(found.tiers)}; {found.threads} threads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
