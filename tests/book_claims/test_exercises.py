"""Every chapter has exercises of different kinds, each with its answer."""

import re

import pytest

from tests.book_claims.chapter_code import CONTENT

CHAPTERS = sorted(file.name for file in (CONTENT / "en").glob("*.md"))


@pytest.mark.parametrize("name", CHAPTERS)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_chapter_has_at_least_three_exercises_each_followed_by_its_answer(lang: str, name: str) -> None:
    boxes = re.findall(r"^::: (exercise|answer)", (CONTENT / lang / name).read_text("utf-8"), re.MULTILINE)
    assert boxes == ["exercise", "answer"] * (len(boxes) // 2)
    assert len(boxes) >= 6
