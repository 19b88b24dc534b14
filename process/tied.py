"""Runs a module as a program that ends with the process that started it.

`python -m pagelet.process.tied PARENT_PID MODULE ARGUMENTS...` is `python -m MODULE ARGUMENTS...`
under the parent-death signal. Setting that in the child, and not between fork and exec, is safe
whatever threads the parent has.
"""

import runpy
import sys

from pagelet.process.proc import set_parent_death_signal


def main() -> None:
    """Entry point."""
    parent_pid, module, *arguments = sys.argv[1:]
    set_parent_death_signal(int(parent_pid))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
