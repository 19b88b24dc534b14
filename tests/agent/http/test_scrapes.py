"""What a scrape of a server tells of the server itself."""

from pagelet.engine.core.foreign_memory import ForeignMemory
from support.processes import wait_for

from .real_engine import replica, simulated


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


def test_scrapes_see_what_an_engine_core_measured_of_its_gpus():
    """Of a GPU that is a fake."""
    with replica(simulated()) as server:
        name = "pagelet_gpu_foreign_memory_bytes"
        assert f"{name}{{" not in server.get("/metrics").text
        (engine,) = server.llm._engines
        ForeignMemory(engine.heartbeat_path, lambda: {"GPU-fake": 7})
        assert metric(server, f'{name}{{engine="0",gpu="GPU-fake"}}') == 7
