"""Every chapter has exercises of three kinds, each with its answer."""

import re

import pytest

from tests.book_claims.chapter_code import CONTENT

CHAPTERS = sorted(file.name for file in (CONTENT / "en").glob("*.md"))
KINDS = {
    "en": {"hand": r"\*?(By hand|On paper)", "panel": r"\*?In the panel", "code": r"\*?In code"},
    "zh": {"hand": "手算|纸上|先手算", "panel": "在面板里做", "code": "写代码"},
}


@pytest.mark.parametrize("name", CHAPTERS)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_chapter_has_at_least_three_exercises_each_followed_by_its_answer(lang: str, name: str) -> None:
    boxes = re.findall(r"^::: (exercise|answer)", (CONTENT / lang / name).read_text("utf-8"), re.MULTILINE)
    assert boxes == ["exercise", "answer"] * (len(boxes) // 2)
    assert len(boxes) >= 6


@pytest.mark.parametrize("name", CHAPTERS)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_chapter_has_an_exercise_by_hand_one_in_the_panel_and_one_in_code(lang: str, name: str) -> None:
    openings = re.findall(r"^::: exercise\n(.*)", (CONTENT / lang / name).read_text("utf-8"), re.MULTILINE)
    assert [kind for kind, said in KINDS[lang].items() if not any(re.match(said, line) for line in openings)] == []
