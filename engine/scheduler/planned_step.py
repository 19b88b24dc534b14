"""A step while the scheduler makes it."""

from pagelet.engine.step import NewRequestData, ScheduledRequest


class PlannedStep:
    """What it has of requests by now, and how many tokens it may still take."""

    __slots__ = (
        "decodes_left",
        "drafts_left",
        "new",
        "prompt_tokens_left",
        "scheduled",
        "shared",
        "tokens_left",
    )

    def __init__(self, tokens: int, prompt_tokens: int) -> None:
        self.new: list[NewRequestData] = []
        self.scheduled: list[ScheduledRequest] = []
        self.tokens_left = tokens
        self.prompt_tokens_left = prompt_tokens
        self.decodes_left = 0
        """Requests still to come that need one token each."""
        self.drafts_left = 0
        self.shared = False
        """Whether a prompt left tokens to others."""

    def add_blocks(self, entry: ScheduledRequest, gained: list[list[int]]) -> None:
        """Puts blocks to those that the entry's request got before in this step."""
        tables = next((d.block_ids for d in self.new if d.request_id == entry.request_id), None)
        if tables is None:
            tables = entry.new_block_ids = entry.new_block_ids or [[] for _ in gained]
        for table, blocks in zip(tables, gained, strict=True):
            table += blocks
