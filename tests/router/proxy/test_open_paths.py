"""What probes and scrapers ask of a router."""


async def test_open_paths_take_the_methods_that_their_askers_use(routed) -> None:
    async with routed() as fleet:
        for path in ("/health", "/ping", "/ready", "/metrics", "/version"):
            assert (await fleet.client.get(path)).status_code == 200
            assert (await fleet.client.head(path)).status_code == 200
            refused = await fleet.client.put(path)
            methods = "GET, HEAD, POST" if path == "/ping" else "GET, HEAD"
            assert (refused.status_code, refused.headers["allow"]) == (405, methods)
        assert (await fleet.client.post("/ping")).status_code == 200
