"""Tokens that a step computes before they are drawn: those of which a grammar leaves no choice, and
guesses."""

from collections.abc import Sequence

from pagelet.engine.scheduler.planned_step import PlannedStep
from pagelet.engine.scheduler.request import Request
from pagelet.engine.speculation.speculation import Speculation


def plan_drafts(
    step: PlannedStep, request: Request, speculation: Speculation | None, num_running: int
) -> Sequence[int]:
    """Drafts for a request that needs one token. Where its grammar allows a single token, and after
    that a single one again, these are sure to be drawn (jump-forward: "Fast JSON decoding with
    compressed finite state machine", LMSYS, 2024; by whole tokens, so that none is spelled in
    another way)."""
    # A step brings one token more than it has right drafts, and that one is not computed.
    room = request.max_total_tokens - request.num_target_tokens - 1
    most = min(room, step.drafts_left, step.tokens_left - 1 - step.decodes_left)
    if most <= 0:
        return ()
    pending = request.num_pending_tokens
    drafts: Sequence[int] = ()
    if request.constraint is not None:
        # What is on its way is the first of them: its step draws by the same mask.
        drafts = request.constraint.forced()[pending : pending + most]
    if not drafts and speculation is not None and not pending:
        drafts = speculation.drafts(request, most, num_running)
    step.drafts_left -= len(drafts)
    return drafts
