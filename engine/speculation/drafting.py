"""What the scheduler keeps of one request's drafting."""

from collections.abc import Sequence

from pagelet.engine.speculation.ngram import NgramIndex
from pagelet.engine.speculation.pace import DraftPace


class Drafting:
    """Lives as long as its request."""

    __slots__ = ("index", "pace", "proposed", "tries")

    def __init__(self, index: NgramIndex | None) -> None:
        """`index` is for prompt lookup; a draft model has its own memory."""
        self.index = index
        self.pace = DraftPace()
        self.proposed: Sequence[int] = ()
        """What the draft model says follows the known tokens."""
        self.tries = False
        """Whether the step in flight has drafts to verify, or would have if any were found."""
