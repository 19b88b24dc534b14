"""Bodies that are too large, of clients that read no answer before they have sent all."""

import asyncio
import json

import pytest

from support.large_bodies import by_http_client


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
async def test_a_client_that_sends_all_before_it_reads_is_told_what_is_too_large(
    routed, chunked
) -> None:
    async with routed() as fleet:
        url = str(fleet.client.base_url.join("/v1/completions"))
        status, answer = await asyncio.to_thread(by_http_client, url, 17 << 20, chunked)
        assert status == 413
        assert json.loads(answer)["error"]["code"] == "request_too_large"
        assert not any(replica.asked for replica in fleet.replicas)
