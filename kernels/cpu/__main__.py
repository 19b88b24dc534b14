"""Compiles the CPU library if need be, and says what runs here: `python -m pagelet.kernels.cpu`."""

import sys

from pagelet.kernels.cpu.library import status


def main() -> int:
    """Returns 1 where the library is unavailable, after saying why."""
    found = status()
    if found.reason is not None:
        print(f"CPU library: unavailable, torch is used instead: {found.reason}")
        return 1
    print(f"CPU library: {found.tier} of {', '.join(found.tiers)}; {found.threads} threads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
