"""What is said of calls that do not fit the arguments of a method of `LLM`."""

import difflib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec, TypeVar

from pagelet.protocol.errors import InvalidRequest

P = ParamSpec("P")
R = TypeVar("R")

_OF_VLLM: Final = {
    "sampling_params": ("sampling", "it is 'sampling' here, a RequestedSampling"),
    "params": ("sampling", "it is 'sampling' here, a RequestedSampling"),
    "beam_width": ("length_penalty", "it is n of 'sampling' here"),
    "max_tokens": ("sampling", "it is a field of 'sampling'"),
    "temperature": ("sampling", "it is a field of 'sampling'"),
    "use_tqdm": ("progress", "it is 'progress' here"),
    "lora_request": ("adapter", "it is 'adapter' here, the name of one of LLM's adapters"),
    "prompt_token_ids": ("prompts", "give the token ids as 'prompts'"),
    "chat_template": ("messages", "it is an option of LLM"),
    "chat_template_kwargs": ("messages", "give its entries as arguments of their own"),
}
"""vLLM's names, and others that are often tried: where a method has the first, the second is said
of it."""


def names_arguments(method: Callable[P, R]) -> Callable[P, R]:
    """The method; calls that do not fit it raise InvalidRequest, which says what it takes, in place
    of Python's TypeError."""
    signature = inspect.signature(method)
    parameters = list(signature.parameters.values())[1:]
    names = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]

    @functools.wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            wrong = next((name for name in kwargs if name not in names), None)
            if wrong is not None and len(names) == len(parameters):
                raise unknown_argument(method.__name__, wrong, names) from None
            raise InvalidRequest(f"{method.__name__}: {error}; {_takes(names)}") from None
        return method(*args, **kwargs)

    return checked


def unknown_argument(method: str, wrong: str, names: Sequence[str]) -> InvalidRequest:
    """For an argument that is none of those that a method has."""
    words = [f"{method} has no argument {wrong!r}", _takes(names)]
    needed, hint = _OF_VLLM.get(wrong, ("", ""))
    if needed in names:
        words.insert(1, hint)
    elif near := difflib.get_close_matches(wrong, names, 1):
        words.insert(1, f"did you mean {near[0]!r}?")
    return InvalidRequest("; ".join(words), wrong)


def _takes(names: Sequence[str]) -> str:
    return f"it takes {', '.join(names)}"
