import asyncio
import secrets
import socket

import pytest
import uvloop

from pagelet.process.frames import encode_frame
from pagelet.router.siblings import ALONE, ExplainQuestion, MetricsQuestion, Siblings


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_worker_asks_all_others(run):
    run(ask_all_others())


async def ask_all_others():
    token = secrets.token_hex(8)
    one, two, three = (Siblings(token, number, 3) for number in range(3))

    def answer(name):
        def answering(question):
            if isinstance(question, ExplainQuestion):
                return question.request_id.encode() if name == b"three" else None
            return name * 100_000

        return answering

    async with one.answering(answer(b"one")), two.answering(answer(b"two")):
        async with three.answering(answer(b"three")):
            answers = await one.ask(MetricsQuestion())
            assert answers == [b"two" * 100_000, b"three" * 100_000]
            assert await one.ask(ExplainQuestion("id", "acme", False)) == [b"id"]
        assert await one.ask(MetricsQuestion()) == [b"two" * 100_000], "a worker that is gone"
    async with three.answering(answer(b"again")):
        assert await one.ask(MetricsQuestion()) == [b"again" * 100_000]


async def test_a_single_worker_has_no_one_to_ask():
    async with ALONE.answering(lambda question: b"x"), ALONE.answering(lambda question: b"x"):
        assert await ALONE.ask(MetricsQuestion()) == []


async def test_nonsense_gets_no_answer_and_harms_nothing():
    token = secrets.token_hex(8)
    one, two = (Siblings(token, number, 2) for number in range(2))
    async with one.answering(lambda question: b"fine"):
        for sent in (b"", b"\xff" * 100, bytes(encode_frame({"type": "unknown"}))):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(f"\0pagelet-router-{token}-0")
                peer.sendall(sent)
                peer.shutdown(socket.SHUT_WR)
                peer.settimeout(30)
                assert await asyncio.to_thread(peer.recv, 100) == b""
        assert await two.ask(MetricsQuestion()) == [b"fine"]
