"""Exit codes of `pagelet serve` and `pagelet router`, for whoever starts them."""

from typing import Final

EXIT_CONFIGURATION: Final = 78
"""The configuration cannot work (EX_CONFIG of sysexits.h): starting it again would not help."""
EXIT_USAGE: Final = 2
"""It does not take its options: nor would it help here."""
