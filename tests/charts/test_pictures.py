"""Pictures of dashboards show what their queries find, where the JSON puts it."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "charts/pagelet/dashboards").glob("*.json"))


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import pictures

    yield pictures
    sys.modules.pop("pictures", None)


def test_every_query_is_asked_and_panels_without_an_answer_are_named(
    pictures: ModuleType, tmp_path: Path
) -> None:
    (file,) = [file for file in FILES if file.stem == "operator"]
    asked = []

    def find(query: str) -> list[object]:
        asked.append(query)
        labels = {"instance": "here"}
        return [] if "leader" in query else [(labels, [(100.0, 1.0), (101.0, 2.0), (109.0, 3.0)])]

    figure, empty = pictures.draw(file, find, (100.0, 160.0), "30s", {"namespace": "mine"})
    assert empty == ["Who leads"]
    assert all("$" not in query for query in asked)
    assert any('namespace=~"mine"' in query and "[30s]" in query for query in asked)
    words = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert {"Who leads", "here", "Services by condition"} <= words
    path = tmp_path / "picture.png"
    pictures.save(figure, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_panels_do_not_lie_on_each_other(pictures: ModuleType) -> None:
    (file,) = [file for file in FILES if file.stem == "engine"]  # the longest
    figure, empty = pictures.draw(file, lambda query: [], (0.0, 60.0), "30s")
    cards = [axes.get_position() for axes in figure.axes]
    assert len(cards) == len(empty) > 10
    for index, card in enumerate(cards):
        assert min(card.x0, card.y0) >= 0
        assert max(card.x1, card.y1) <= 1
        assert not any(card.overlaps(other) for other in cards[:index])


def test_legends_are_filled_in_and_lines_end_where_samples_are_missing(
    pictures: ModuleType,
) -> None:
    values = [(0.0, 1.0), (1.0, 1.0), (5.0, 2.0)]
    found = [({"model": "m", "pool": "p"}, values)]
    assert list(pictures.named(found, "{{model}} at {{pool}}{{gone}}")) == [("m at p", values)]
    drawn = list(pictures.with_gaps(values))
    assert [at for at, value in drawn if math.isnan(value)] == [4.0]
    assert [pair for pair in drawn if not math.isnan(pair[1])] == values
    assert list(pictures.with_gaps([])) == []


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.25, "percentunit", "25%"),
        (0.0, "s", "0 s"),
        (0.0125, "s", "12.5 ms"),
        (90.0, "s", "90 s"),
        (3 << 29, "bytes", "1.5 GiB"),
        (1500.0, "short", "1.5 K"),
        (12.0, "reqps", "12 req/s"),
    ],
)
def test_numbers_are_written_in_the_units_of_a_panel(
    pictures: ModuleType, value: float, unit: str, words: str
) -> None:
    assert pictures.unit(value, unit) == words


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_docs_have_a_picture_of_a_dashboard(file: Path) -> None:
    picture = ROOT / f"docs/images/dashboard-{file.stem}.png"
    assert picture.stat().st_size < 250_000
    assert f"images/{picture.name}" in (ROOT / "docs/observability.md").read_text()
