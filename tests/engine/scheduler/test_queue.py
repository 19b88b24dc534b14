"""The waiting queues, against lists that are searched and sorted."""

from hypothesis import given
from hypothesis import strategies as st

from pagelet.engine.scheduler.queue import FCFSQueue, PriorityQueue, WaitingQueue
from pagelet.engine.scheduler.request import Request
from pagelet.protocol.engine import EngineCoreRequest
from pagelet.protocol.sampling import SamplingParams


def waiting(order: int, priority: int) -> Request:
    core = EngineCoreRequest(
        request_id=order,
        external_id=str(order),
        prompt_token_ids=[order],
        params=SamplingParams(max_tokens=1),
        priority=priority,
    )
    return Request(core, 16, 4, order)


STEPS = st.lists(
    st.tuples(st.sampled_from(["push", "pop", "take back", "remove"]), st.integers(-2, 2)),
    max_size=40,
)


@given(steps=STEPS, by_priority=st.booleans())
def test_requests_come_in_their_order_whatever_came_and_went_before(
    steps: list[tuple[str, int]], by_priority: bool
) -> None:
    queue: WaitingQueue = PriorityQueue() if by_priority else FCFSQueue()
    expected: list[Request] = []
    for order, (step, number) in enumerate(steps):
        if step == "push":
            request = waiting(order, number)
            queue.push(request)
            expected.append(request)
        elif expected and step == "remove":
            request = expected.pop(number % len(expected))
            queue.remove(request)
        elif expected:
            assert queue.peek() is expected[0]
            assert queue.pop() is expected.pop(0)
        if expected and step == "take back":
            queue.push_front(queue.pop())
        if by_priority:
            expected.sort(key=lambda request: (request.priority, request.order))
        assert list(queue) == expected
        assert len(queue) == len(expected)
