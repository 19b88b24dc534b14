"""What a scrape of a server tells of the server itself."""

from support.processes import wait_for


def metric(server, name):
    values = [
        float(line.removeprefix(f"{name} "))
        for line in server.get("/metrics").text.splitlines()
        if line.startswith(f"{name} ")
    ]
    assert len(values) == 1, f"{len(values)} samples of {name}"
    return values[0]


def test_scrapes_see_a_step_that_hangs_and_keys_that_cannot_be_read(serve, tmp_path):
    file = tmp_path / "keys"
    file.write_text("given")
    server = serve(api_key_file=str(file))
    age = 'pagelet_engine_step_age_seconds{engine="0"}'
    assert (metric(server, age), metric(server, "pagelet_keys_file_broken")) == (0, 0)
    server.llm.health = "step 3 has run for 4 s"
    file.unlink()
    wait_for(lambda: metric(server, "pagelet_keys_file_broken") == 1)
    assert metric(server, age) == 4.5
