"""`pagelet up` for tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.local import Local, local


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Local]:
    with local(tmp_path) as made:
        yield made
