"""Declared beginnings of prompts, whose KV blocks tenants may share."""

from collections.abc import Sequence


def common_prefix_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens are equal. Both sequences must be of one type."""
    low, high = 0, min(len(one), len(other))
    # Slices compare in C, so halving is far faster than a loop over tokens.
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class SharedPrefixes:
    """The declared prefixes of one model, as token ids."""

    def __init__(self, prefixes: Sequence[Sequence[int]]) -> None:
        self._prefixes = [list(prefix) for prefix in prefixes]

    def num_tokens(self, prompt_token_ids: list[int]) -> int:
        """How many leading tokens of a prompt lie within a declared prefix.

        Also a prompt that begins like a prefix and then differs shares what is equal: it tells
        nothing that was not declared. A token that spans the end of a prefix does not count.
        """
        return max(
            (common_prefix_length(prefix, prompt_token_ids) for prefix in self._prefixes),
            default=0,
        )
