"""Answers that another engine began: what is known of them, and whether they have ended already."""

import dataclasses

from pagelet.protocol.engine import EngineCoreRequest, FinishReason


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerSoFar:
    """How far one of a prompt's `n` answers has come."""

    token_ids: list[int]
    """Generated tokens whose text was passed on."""
    begun: bool = True
    """Whether anything was passed on, such as the prompt that is echoed, with its logprobs."""
    finished: bool = False
    """Whether it was passed on to its end."""


def end_of(request: EngineCoreRequest) -> tuple[FinishReason, int | None] | None:
    """Finish reason and stop reason, as the scheduler gives them, if the tokens that the request
    comes with are all that it asks for."""
    params, generated = request.params, request.output_token_ids
    if not generated:
        return None
    last, count = generated[-1], len(generated)
    if count >= params.min_tokens:
        if not params.ignore_eos and last in request.eos_token_ids:
            return "stop", None
        if last in params.stop_token_ids:
            return "stop", last
    if params.max_tokens is not None and count >= params.max_tokens:
        return "length", None
    return None
