"""Calls that nobody waits for without end."""

import threading

import pytest

from pagelet.engine.structured.bounded_calls import BoundedCalls


def spin(stop):
    while not stop.is_set():
        sum(range(10_000))


def test_what_takes_too_long_is_given_up_and_others_go_on():
    calls, stop, done = BoundedCalls(0.05), threading.Event(), []
    assert not calls.run(lambda: spin(stop))
    assert calls.run(lambda: done.append(1))
    assert done == [1]
    stop.set()


def test_with_several_given_up_no_other_is_begun_until_they_end():
    calls, stop, done, ended = BoundedCalls(0.05), threading.Event(), [], []

    def long():
        spin(stop)
        ended.append(1)

    assert not calls.run(long)
    assert not calls.run(long)
    assert not calls.run(lambda: done.append(1))
    assert not done
    stop.set()
    while not calls.run(lambda: done.append(1)):
        pass
    assert ended


def test_waiting_takes_no_core_and_errors_come_out():
    calls, event = BoundedCalls(0.05), threading.Event()
    timer = threading.Timer(0.3, event.set)
    timer.start()
    assert calls.run(event.wait)
    with pytest.raises(ZeroDivisionError):
        calls.run(lambda: 1 / 0)
    assert calls.run(lambda: None)
