"""A section that is named by its number is there, and holds the program or the panel that it is named for."""

import re
from pathlib import Path

import pytest

from tests.kit import CONTENT

_SECTION = re.compile(
    r'^\{#[\w-]+ kicker="(?P<number>\d\d) / [^\n]*\n(?P<body>.*?)(?=^\{#[\w-]+ kicker=|\Z)', re.M | re.S
)
_NAMED = re.compile(r"第 (\d\d) 节|[Ss]ections? (\d\d)")
_PROGRAM = re.compile(r"第 (\d\d) 节的程序|program of section (\d\d)")
_PANEL = re.compile(r"第 (\d\d) 节(?:的|那个[^，。]{0,8}的)面板|panel of section (\d\d)")
_CHAPTERS = sorted(CONTENT.glob("??/*.md"))


def named(pattern: re.Pattern[str], text: str) -> set[str]:
    return {"".join(found) for found in pattern.findall(text)}


@pytest.mark.parametrize("chapter", _CHAPTERS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_section_named_by_its_number_holds_what_it_is_named_for(chapter: Path) -> None:
    text = chapter.read_text("utf-8")
    bodies = {found["number"]: found["body"] for found in _SECTION.finditer(text)}
    assert named(_NAMED, text) - set(bodies) == set()
    assert {number for number in named(_PROGRAM, text) if "```python" not in bodies[number]} == set()
    assert {number for number in named(_PANEL, text) if "```{calculator}" not in bodies[number]} == set()
