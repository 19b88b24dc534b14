"""The text and the prompts that quality is measured on; both were written for this purpose."""

from pathlib import Path

_DATA = Path(__file__).resolve().parent.parent / "data"


def read_text() -> str:
    """English prose of about 1,900 words: a story, explanations, a recipe, a report."""
    return (_DATA / "quality.txt").read_text(encoding="utf-8")


def read_prompts() -> list[str]:
    """Twenty beginnings of texts."""
    return (_DATA / "quality_prompts.txt").read_text(encoding="utf-8").splitlines()
