"""Requests whose answers a grammar constrains, as the engine core sees them.

A request stands aside until its grammar is compiled, in another thread, so that it delays no step.
From then on it holds its own place in the grammar: tokens move it on as they come in, and each step
gets the masks of those that it draws tokens for.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from pagelet.engine.scheduler.request import Request
from pagelet.engine.step import SchedulerOutput, TokenMasks
from pagelet.engine.structured.answer import ConstrainedAnswer
from pagelet.engine.structured.backend import GrammarError, Matcher
from pagelet.engine.structured.compile import Compiler, mask_words
from pagelet.engine.structured.store import GrammarStore
from pagelet.protocol.engine import EngineCoreRequest


class ConstrainedRequests:
    """`on_compiled` is called, from another thread, when `take_compiled` has something new."""

    def __init__(self, store: GrammarStore | None, on_compiled: Callable[[], None]) -> None:
        self._store = store
        self._on_compiled = on_compiled
        self._compiling: dict[int, EngineCoreRequest] = {}
        self._compiled: deque[tuple[int, Future[Matcher] | Future[Compiler]]] = deque()

    @property
    def store(self) -> GrammarStore:
        """Where grammars are compiled."""
        assert self._store is not None, "this engine core was made without grammars"
        return self._store

    def __len__(self) -> int:
        """Requests that stand aside."""
        return len(self._compiling)

    @property
    def adapters(self) -> set[str]:
        """Names of the adapters of requests that stand aside."""
        waiting = self._compiling.values()
        return {request.lora.name for request in waiting if request.lora is not None}

    @property
    def has_compiled(self) -> bool:
        """Whether `take_compiled` would bring anything."""
        return bool(self._compiled)

    def add(self, request: EngineCoreRequest) -> None:
        """A request stands aside until its grammar is there, or, without one, the vocabulary."""
        assert request.structured is not None
        self._compiling[request.request_id] = request
        request_id, grammar = request.request_id, request.structured.grammar
        if grammar is None:
            self.store.loaded().add_done_callback(lambda loaded: self._end(request_id, loaded))
            return
        self.store.compile(grammar, slow=request.structured.slow).add_done_callback(
            lambda matcher: self._end(request_id, matcher)
        )

    def _end(self, request_id: int, compiled: Future[Matcher] | Future[Compiler]) -> None:
        self._compiled.append((request_id, compiled))
        self._on_compiled()

    def abort(self, request_ids: Iterable[int]) -> None:
        """Forgets requests that stand aside; others are ignored."""
        for request_id in request_ids:
            self._compiling.pop(request_id, None)

    def abort_all(self) -> None:
        """Forgets all that stand aside."""
        self._compiling.clear()

    def take_compiled(self) -> list[tuple[EngineCoreRequest, ConstrainedAnswer | GrammarError]]:
        """Requests that may run now, each with its place in its grammar, or why it cannot."""
        taken: list[tuple[EngineCoreRequest, ConstrainedAnswer | GrammarError]] = []
        while self._compiled:
            request_id, compiled = self._compiled.popleft()
            request = self._compiling.pop(request_id, None)
            if request is None:
                continue  # aborted meanwhile
            error = compiled.exception()
            if isinstance(error, GrammarError):
                taken.append((request, error))
            elif error is not None:
                taken.append((request, GrammarError(f"the grammar did not compile: {error!r}")))
            else:
                result = compiled.result()
                matcher = None if isinstance(result, Compiler) else result.fork()
                taken.append((request, _begin(request, matcher, self.store)))
        return taken

    def masks(
        self, plan: SchedulerOutput, requests: Mapping[int, Request]
    ) -> tuple[TokenMasks, list[Request]]:
        """Which tokens a step may draw, all earlier steps being done; and the requests that cannot
        go on, whose masks mean nothing, as do those of requests that have ended meanwhile."""
        width = mask_words(self.store.vocabulary.size)
        entries = [plan.scheduled[index] for index in plan.constrained]
        num_rows = sum(1 + len(entry.draft_token_ids) for entry in entries)
        words = np.full((num_rows, width), -1, np.int32)
        stuck, first = [], 0
        for entry in entries:
            rows = words[first : first + 1 + len(entry.draft_token_ids)]
            first += len(rows)
            request = requests.get(entry.request_id)
            if request is None or request.constraint is None:
                continue
            if not request.constraint.fill(rows[0]):
                rows[0].fill(-1)
                stuck.append(request)
                self.store.forget(request.constraint.grammar_key)
            elif entry.draft_token_ids:
                _fill_drafts(rows[1:], request.constraint, entry.draft_token_ids)
        return TokenMasks(words.tobytes()), stuck

    def close(self) -> None:
        """Ends the thread that compiles."""
        if self._store is not None:
            self._store.close()


def _fill_drafts(
    rows: npt.NDArray[np.int32], constraint: ConstrainedAnswer, draft_token_ids: Sequence[int]
) -> None:
    """The masks after each draft, all of which the grammar allows. After one that completes the
    answer nothing is drawn that counts."""
    answer = constraint.fork()
    for row, token_id in zip(rows, draft_token_ids, strict=True):
        if not answer.accept(token_id) or answer.finished:
            return
        if not answer.fill(row):
            row.fill(0)  # too complex from here on: an error if it comes to that
            return


def _begin(
    request: EngineCoreRequest, matcher: Matcher | None, store: GrammarStore
) -> ConstrainedAnswer | GrammarError:
    """An answer's place after the tokens that it has already."""
    assert request.structured is not None
    grammar = request.structured.grammar
    answer = ConstrainedAnswer(
        matcher,
        request.structured.thinking,
        list(store.vocabulary.eos_token_ids),
        b"" if grammar is None else grammar.key,
        num_words=mask_words(store.vocabulary.size),
        allowed_token_ids=request.params.allowed_token_ids,
    )
    for token_id in request.output_token_ids:
        if not answer.accept(token_id):
            return GrammarError("the tokens to resume from do not match the grammar")
    return answer
