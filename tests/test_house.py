"""The promises of the house, kept executable: one name everywhere, imports one way, both languages in step."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from app.calculators import registry
from app.chapters import LANGUAGES
from tests.book import the_book

ROOT = Path(__file__).parents[1]
TOP_LEVEL = {"pyproject.toml", "app", "content", "static", "templates", "experiments", "tests", "README.md", "LICENSE"}
CALCULATORS = sorted(registry())

LEVELS: list[set[str]] = [
    {"app.contract", "app.paths", "app.scales", "app.settings", "app.volume"},
    {"app.calculators", "app.evidence", "app.search"},
    {"app.comparison"},
    {"app.errors", "app.fonts", "app.rendering"},
    {"app.states"},
    {"app.answers", "app.exhibits", "app.markdown", "app.offload", "app.ready", "app.snippets", "app.tables"},
    {"app.casefiles"},
    {"app.workbench"},
    {"app.bench"},
    {"app.assets", "app.chapters", "app.downloads", "app.endpoints", "app.guide", "app.matrix", "app.panels"},
    {"app.presets"},
    {"app.bibliography", "app.feeds", "app.lexicon", "app.site"},
    {"app.pages"},
    {"app.calculator_pages", "app.indexes", "app.lab_pages"},
    {"app.main"},
    {"app.__main__"},
]
"""Modules (a package stands for all that is in it), the lowest first: each imports only from levels below its own."""


def imports(file: Path) -> set[str]:
    """The modules of ours that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def level_of(name: str) -> int | None:
    """The level of a module of the wiki; None for anything else."""
    for i, members in enumerate(LEVELS):
        if any(name == member or name.startswith(member + ".") for member in members):
            return i
    return None


def test_the_top_level_holds_what_the_design_card_says() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    tops = {name.split("/")[0] for name in listed if name and not name.startswith(".")}
    assert tops <= TOP_LEVEL


def test_every_module_of_the_wiki_has_its_level_and_imports_point_down() -> None:
    for file in (ROOT / "app").rglob("*.py"):
        name = module_of(file)
        if name == "app":
            continue
        own = level_of(name)
        assert own is not None, f"{name} has no level"
        for imported in imports(file):
            other = level_of(imported)
            inside = any(name.startswith(m) and imported.startswith(m) for m in LEVELS[own])
            assert other is None or other < own or inside, f"{name} imports {imported}"


def test_nothing_of_the_wiki_imports_torch_or_the_experiments() -> None:
    for file in (ROOT / "app").rglob("*.py"):
        assert not any(name.split(".")[0] in ("torch", "experiments") for name in imports(file)), file


def test_calculators_import_no_web_framework_and_no_other_calculator() -> None:
    for file in (ROOT / "app" / "calculators").glob("*.py"):
        names = imports(file)
        assert not any(name.split(".")[0] in ("fastapi", "starlette", "jinja2") for name in names), file
        others = {f"app.calculators.{name}" for name in CALCULATORS if name != file.stem}
        assert not names & others, file


def test_chapters_evidence_and_search_know_no_web_framework() -> None:
    files = [ROOT / "app" / f"{name}.py" for name in ("chapters", "evidence", "search")]
    for file in [*files, *(ROOT / "app" / "markdown").glob("*.py")]:
        assert not any(name.split(".")[0] in ("fastapi", "starlette", "uvicorn") for name in imports(file)), file


def test_importing_the_application_leaves_torch_out() -> None:
    code = "import sys, app.main, app.pages; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("name", CALCULATORS)
def test_a_calculator_has_its_template_its_test_and_a_chapter(name: str) -> None:
    assert (ROOT / "templates" / "calculators" / f"{name}.html").is_file()
    assert (ROOT / "tests" / "calculators" / f"test_{name}.py").is_file()
    book = the_book()
    for lang in LANGUAGES:
        assert any(ref.name == name for chapter in book.chapters[lang] for ref in chapter.document.calculators)


def test_both_languages_hold_the_same_chapters_ids_formulas_and_fences() -> None:
    book = the_book()
    zh, en = (book.chapters[lang] for lang in LANGUAGES)
    assert [chapter.file.name for chapter in zh] == [chapter.file.name for chapter in en]
    for one, other in zip(zh, en, strict=True):
        assert one.document.anchors == other.document.anchors, one.slug
        assert one.document.equations == other.document.equations, one.slug
        fences = [
            [(ref.name, ref.id) for ref in (*chapter.document.calculators, *chapter.document.evidence)]
            for chapter in (one, other)
        ]
        assert fences[0] == fences[1], one.slug


def test_every_chapter_has_something_to_see_an_exercise_and_a_source() -> None:
    book = the_book()
    for lang in LANGUAGES:
        for chapter in book.chapters[lang]:
            html = "".join(piece for piece in chapter.pieces if isinstance(piece, str))
            assert chapter.document.calculators or chapter.document.evidence, chapter.path
            assert 'class="box exercise"' in html, chapter.path
            assert "<details" in html, f"{chapter.path}: the exercise has no folded answer"
            assert chapter.sources, chapter.path
            assert chapter.minutes > 1, chapter.path


def test_published_evidence_belongs_to_an_experiment() -> None:
    folder = ROOT / "content" / "evidence"
    bags = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    for name in bags:
        module, tests = ROOT / "experiments" / name, ROOT / "tests" / "experiments"
        assert module.with_suffix(".py").is_file() or (module / "__init__.py").is_file()
        assert (tests / f"test_{name}.py").is_file() or (tests / name).is_dir()


def test_no_template_and_no_style_sheet_loads_anything_from_another_host() -> None:
    for file in [*(ROOT / "templates").rglob("*.*"), *(ROOT / "static").rglob("*.*")]:
        text = file.read_text()
        for mark in ('src="http', "url(http", "@import", 'href="//', 'src="//'):
            assert mark not in text, f"{file}: {mark}"
        if file.suffix == ".html":
            assert "<style" not in text, file
            assert "<script>" not in text, file
