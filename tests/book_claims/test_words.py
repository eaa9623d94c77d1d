"""One word for one thing in Chinese: the words that lost are found in chapters, panels and the glossary."""

import re
from collections.abc import Iterator

import pytest

from tests.kit import CONTENT, ROOT

_HAN = re.compile("[\u4e00-\u9fff]")
_LOSERS = {
    "归约": re.compile("规约"),
    "损失": re.compile(r"(?<![\w./-])loss(?![\w./(-])(?! (?:scaling|scale))"),
    "单元格": re.compile("单元(?![格测（])"),
    "二进制有效位": re.compile("有效数字"),
    "除以": re.compile("去除(?!缩放)|用[它这那]除(?!以)"),
    "微批": re.compile("微批次"),
    "参考": re.compile("参照"),
    "填充": re.compile("补齐到(?!整)"),
    "提示词": re.compile("被 mask|prompt 长度|[个一同]提示(?!词)"),
    "批次大小": re.compile("(?<!微)批大小|(?<![微一])批数(?!据)"),
    "评测": re.compile(r"\[评估\]|来评估"),
    "均值的均值": re.compile("平均的平均|均值之均值"),
    "合并请求": re.compile("拉取请求"),
    "空单元格": re.compile("[是都][为没]?有?空格|显示为空格"),
    "是…的 k 倍": re.compile("[大小长短多少快慢高低强弱](?:了|走)[^，。；：、（）|]{0,14}倍(?!数)"),
    "入口": re.compile("[两三几]扇门|同一道门"),
}
"""The word to write, and what was written in its place."""

_UNITS = {"140-fsdp-lifecycle", "900-sources-and-scope"}
"""Chapters that speak of FSDP's units, 单元."""
_NOT_PROSE = re.compile(
    r"^(?P<fence>`{3,}).*?^(?P=fence)$|`[^`\n]*`|\{[^{}\n]*\}|\$\$.*?\$\$|\$[^$\n]*\$|\]\([^)\n]*\)|（[ -~]*）",
    re.M | re.S,
)
_SAID = re.compile(r"""\bt\(\s*(["'])(?P<zh>(?:(?!\1).)*)\1\s*,""", re.S)


_TEXT = re.compile(r"\\text\{([^}]*[A-Za-z]{2}[^}]*)\}")
_NAMES = {
    *re.findall(r"\S+", r"all\_reduce reduce\_scatter all\_gather all\_to\_all broadcast GPipe 1F1B DDP"),
    *re.findall(r"\S+", "raw canonical bytes eff amax gen bal scale margin top-"),
}
"""What a Chinese formula says in Latin letters: names, and the indices that stand for them."""


def losers(text: str, allowed: frozenset[str] = frozenset()) -> list[str]:
    return [
        f"{found[0]} for {word}: …{text[max(0, found.start() - 20) : found.end() + 20]}…"
        for word, pattern in _LOSERS.items()
        if word not in allowed
        for found in pattern.finditer(text)
    ]


def said_in_templates() -> Iterator[tuple[str, str]]:
    for file in (ROOT / "templates").rglob("*"):
        if file.suffix in (".html", ".svg"):
            for match in _SAID.finditer(file.read_text("utf-8")):
                if _HAN.search(match["zh"]):
                    yield file.name, match["zh"]


@pytest.mark.parametrize("name", sorted(file.stem for file in (CONTENT / "zh").glob("*.md")))
def test_a_chinese_chapter_keeps_to_the_books_words(name: str) -> None:
    prose = _NOT_PROSE.sub(" ", (CONTENT / "zh" / f"{name}.md").read_text("utf-8"))
    assert losers(prose, frozenset({"单元格"}) if name in _UNITS else frozenset()) == []


def test_a_chapter_is_named_by_words_of_its_own_title() -> None:
    chapters = {file: file.read_text("utf-8") for file in (CONTENT / "zh").glob("*.md")}
    titles = {
        file.stem.split("-", 1)[1]: re.findall(r'^title = "(.*)"$', text, re.M)[0] for file, text in chapters.items()
    }
    named = [found for text in chapters.values() for found in re.findall(r"\[《([^》]+)》\]\(ch:([\w-]+)", text)]
    assert len(named) > 50
    assert [(said, slug) for said, slug in named if said not in titles[slug]] == []


def test_panels_and_pages_keep_to_the_books_words() -> None:
    assert {file: found for file, text in said_in_templates() if (found := losers(text))} == {}


@pytest.mark.parametrize("name", sorted(file.stem for file in (CONTENT / "zh").glob("*.md")))
def test_the_words_in_a_chinese_formula_are_chinese(name: str) -> None:
    found = _TEXT.findall((CONTENT / "zh" / f"{name}.md").read_text("utf-8"))
    assert [said for said in found if not _HAN.search(said) and said.rstrip(":") not in _NAMES] == []


@pytest.mark.parametrize("name", ["start", "presets", "conformance", "tags", "planned"])
def test_lists_keep_to_the_books_words(name: str) -> None:
    lines = (CONTENT / f"{name}.toml").read_text("utf-8").splitlines()
    assert [
        found
        for line in lines
        if _HAN.search(line)
        for found in losers(_NOT_PROSE.sub(" ", line.partition('en = "')[0]))
    ] == []


@pytest.mark.parametrize("room", ["app", "experiments"])
def test_messages_keep_to_the_books_words(room: str) -> None:
    files = [file for file in (ROOT / room).rglob("*.py") if "conformance" not in file.parts]  # another lab
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
    said = [text for line in lines for text in re.findall(r'"([^"\n]*)"', line) if _HAN.search(text)]
    assert [found for text in said for found in losers(text)] == []


def test_the_glossary_keeps_to_its_own_words() -> None:
    lines = (CONTENT / "glossary.toml").read_text("utf-8").splitlines()
    units = "FSDP", "unit"
    said = [line for line in lines if _HAN.search(line) and not line.startswith(("also.", "  ["))]
    assert [found for line in said if not any(unit in line for unit in units) for found in losers(line)] == []
