import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.protocol.openai.errors import ApiError
from pagelet.router.queue.waiting_room import Ask, WaitingRoom


def ask(tenant="a", **fields):
    return Ask(tenant=tenant, **({"cost": 10.0} | fields))


async def settle():
    """Lets everything run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


def room_with(capacity, size=100, timeout=60.0):
    room = WaitingRoom(size=size, timeout=timeout)
    room.set_capacity(capacity)
    return room


async def test_a_free_place_is_given_at_once_and_an_end_wakes_one():
    room = room_with(2)
    permits = [await room.enter(ask()) for _ in range(2)]
    waiting = [asyncio.create_task(room.enter(ask())) for _ in range(3)]
    await settle()
    assert (room.num_waiting, room.num_held, room.in_flight) == (3, 0, 2)
    permits[0].release()
    permits[0].release()
    await settle()
    assert [task.done() for task in waiting] == [True, False, False]
    assert waiting[0].result().waited_seconds > 0
    assert (room.num_waiting, room.in_flight) == (2, 2)
    for task in waiting[1:]:
        task.cancel()
    await settle()
    assert room.num_waiting == 0


async def test_requests_are_held_until_a_replica_comes():
    room = room_with(0)
    waiting = [asyncio.create_task(room.enter(ask())) for _ in range(3)]
    await settle()
    assert room.num_held == 3
    room.set_capacity(2)
    await settle()
    assert [task.done() for task in waiting] == [True, True, False]
    assert room.num_held == 0
    assert room.num_waiting == 1
    waiting[0].result().release()
    await waiting[2]


@pytest.mark.parametrize(("capacity", "code"), [(0, "no_replica"), (1, "overloaded")])
async def test_a_wait_ends_with_503(capacity, code):
    room = room_with(capacity, timeout=0.01)
    if capacity:
        await room.enter(ask())
    with pytest.raises(ApiError) as error:
        await room.enter(ask())
    assert error.value.status == 503
    assert error.value.detail.code == code
    assert int(error.value.headers["Retry-After"]) >= 1
    assert room.num_waiting == 0


async def test_a_full_room_refuses_with_429():
    room = room_with(0, size=2)
    waiting = [asyncio.create_task(room.enter(ask())) for _ in range(2)]
    await settle()
    with pytest.raises(ApiError) as error:
        await room.enter(ask())
    assert error.value.status == 429
    assert error.value.detail.code == "queue_full"
    assert int(error.value.headers["Retry-After"]) >= 1
    room.set_capacity(2)
    await asyncio.gather(*waiting)


async def test_a_flood_does_not_shut_out_another_tenant():
    room = room_with(0, size=10)
    flood = [asyncio.create_task(room.enter(ask("flood"))) for _ in range(10)]
    await settle()
    others = [asyncio.create_task(room.enter(ask("other"))) for _ in range(8)]
    await settle()
    refused = [task.done() for task in flood]
    assert refused == [False] * 5 + [True] * 5, "the newest give way first"
    assert sum(not task.done() for task in others) == 5
    for task in flood + others:
        if task.done():
            assert task.exception().status == 429
    room.set_capacity(10)
    await asyncio.gather(*(task for task in flood + others if not task.done()))


async def test_a_cancelled_waiter_leaves_at_once():
    room = room_with(1)
    permit = await room.enter(ask())
    first, second = (asyncio.create_task(room.enter(ask())) for _ in range(2))
    await settle()
    first.cancel()
    permit.release()  # before the cancelled task had its turn
    await settle()
    assert first.cancelled()
    assert (room.num_waiting, room.in_flight) == (0, 1)
    (await second).release()
    assert room.in_flight == 0


async def test_a_permit_that_comes_with_a_cancellation_goes_to_the_next():
    room = room_with(1)
    permit = await room.enter(ask())
    first, second = (asyncio.create_task(room.enter(ask())) for _ in range(2))
    await settle()
    permit.release()
    first.cancel()
    await settle()
    assert first.cancelled()
    assert second.done()
    assert room.in_flight == 1


async def test_many_answers_take_a_free_place_rather_than_wait_for_ever():
    room = room_with(4)
    small = [await room.enter(ask()) for _ in range(4)]
    big = asyncio.create_task(room.enter(ask("big", answers=8)))
    await settle()
    small[0].release()
    permit = await big
    assert room.in_flight == 11
    blocked = asyncio.create_task(room.enter(ask()))
    for other in small:
        other.release()
    await settle()
    assert not blocked.done()
    permit.release()
    await blocked


async def test_what_a_request_really_cost_counts_for_those_after_it():
    room = room_with(1)
    permit = await room.enter(ask("a"))
    permit.settle(1000)
    waiting = {
        name: [asyncio.create_task(room.enter(ask(name))) for _ in range(3)] for name in ("a", "b")
    }
    await settle()
    permit.release()
    for task in waiting["b"]:
        await settle()
        task.result().release()
    await settle()
    assert waiting["a"][0].done()
    for task in waiting["a"]:
        (await task).release()


async def test_a_request_that_got_no_answer_cost_nothing():
    room = room_with(1)
    (await room.enter(ask("a", cost=1e6))).release()  # as one that a replica refused
    blocking = await room.enter(ask("c"))
    waiting = {
        asyncio.create_task(room.enter(ask(name))): name for name in ("a", "a", "a", "b", "b", "b")
    }
    await settle()
    blocking.release()
    order = []
    while waiting:
        (done,), _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        order.append(waiting.pop(done))
        permit = done.result()
        permit.settle(10)
        permit.release()
    assert Counter(order[:2]) == Counter(order[2:4]) == {"a": 1, "b": 1}


@settings(max_examples=40)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("enter"), st.sampled_from("abc"), st.integers(1, 3)),
            st.tuples(st.just("end"), st.integers(0, 30)),
            st.tuples(st.just("cancel"), st.integers(0, 30)),
            st.tuples(st.just("capacity"), st.integers(0, 6)),
            st.tuples(st.just("settle")),
        ),
        max_size=60,
    )
)
def test_no_place_is_free_while_a_request_waits(steps):
    """Work conservation, and exact counts, whatever comes between."""

    async def drive():
        room, capacity, tasks = room_with(0, size=15), 0, []
        running, refused = {}, Counter()
        for step in steps:
            match step:
                case ("enter", tenant, answers):
                    tasks.append(asyncio.create_task(room.enter(ask(tenant, answers=answers))))
                case ("end", number) if running:
                    key = sorted(running, key=id)[number % len(running)]
                    running.pop(key).release()
                case ("cancel", number) if tasks:
                    tasks[number % len(tasks)].cancel()
                case ("capacity", capacity):
                    room.set_capacity(capacity)
                case ("settle",):
                    await settle()
                    for task in [task for task in tasks if task.done()]:
                        tasks.remove(task)
                        if task.cancelled():
                            continue
                        if task.exception() is not None:
                            refused[task.exception().status] += 1
                        else:
                            running[task] = task.result()
                    assert room.num_waiting == len(tasks)
                    assert not tasks or room.in_flight >= capacity
                    taken = sum(permit._entry.item.ask.answers for permit in running.values())
                    assert room.in_flight == taken
        assert set(refused) <= {429}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(drive())
