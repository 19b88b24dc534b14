"""`pagelet explain` where there is nobody to ask."""

import socket

import pytest
from typer.testing import CliRunner

from pagelet.cli.explain import app


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "http://127.0.0.1:{}", "http://127.0.0.1:{}/v1/"])
def test_a_router_that_is_not_there_is_named(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result = CliRunner().invoke(app, ["some-request", "--router", form.format(port)])
    assert result.exit_code == 1
    assert result.output == (
        f"Error: no router answers at http://127.0.0.1:{port} ([Errno 111] Connection refused); "
        "say where with --router URL\n"
    )
