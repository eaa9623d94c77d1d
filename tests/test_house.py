"""The promises of the house, kept executable: one name everywhere, imports one way, both languages in step."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import median

import pytest

from samestep.app.calculators import registry
from samestep.app.contract.languages import LANGUAGES
from samestep.experiments.conformance.frameworks import FRAMEWORKS
from samestep.experiments.registry import experiments
from tests.kit import the_book

ROOT = Path(__file__).parents[1]
TOP_LEVEL = {"pyproject.toml", "app", "content", "static", "templates", "experiments", "tests", "README.md", "LICENSE"}
CALCULATORS = sorted(registry())

LAYERS = (
    ("settings", "paths", "contract"), ("mathematics",), ("calculators",), ("rendering",), ("cards",), ("evidence",),
    ("instruments",), ("book",), ("web",), ("main",), ("__main__",),
)  # fmt: skip
"""The rooms of `app/`, the lowest first: each imports only itself and what lies below."""


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
    parts = ("samestep", *file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_the_top_level_holds_what_the_design_card_says() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    tops = {name.split("/")[0] for name in listed if name and not name.startswith(".")}
    assert tops <= TOP_LEVEL


def entries(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name != "__pycache__"]


def lengths(*files: Path) -> dict[str, int]:
    return {str(file.relative_to(ROOT)): len(file.read_text("utf-8").splitlines()) for file in files}


@pytest.mark.parametrize("package", ["app", "experiments"])
def test_no_room_is_a_warehouse(package: str) -> None:
    folders = [ROOT / package, *(path for path in (ROOT / package).rglob("*") if path.is_dir())]
    counts = {folder.relative_to(ROOT).as_posix(): len(entries(folder)) for folder in folders}
    registered = {  # folders that are registries hold as much as there is, one module or package each
        "app/calculators": len(registry()),
        "experiments": len(experiments()),
        "experiments/conformance/frameworks": len({framework.module for framework in FRAMEWORKS.values()}),
    }
    for name in counts.keys() & registered.keys():
        counts[name] -= registered[name]
    assert {name: count for name, count in counts.items() if count > 26} == {}
    assert package != "app" or counts["app"] <= 14


@pytest.mark.parametrize("package", ["app", "experiments"])
def test_no_module_is_longer_than_400_lines_and_most_are_short(package: str) -> None:
    found = lengths(*(ROOT / package).rglob("*.py"))
    assert {name: length for name, length in found.items() if length > 400} == {}
    assert median(found.values()) <= 120


def test_no_style_sheet_is_longer_than_300_lines() -> None:
    found = lengths(*(ROOT / "static" / "css").rglob("*.css"))
    assert found
    assert {name: length for name, length in found.items() if length > 300} == {}


def room_of(module: str) -> str:
    """The room in `app/` that a module lies in; empty outside it, and for `app` itself."""
    return ".".join(module.split(".")[2:3]) if module.startswith("samestep.app.") else ""


def layer_of(room: str) -> int:
    return next(i for i, rooms in enumerate(LAYERS) if room in rooms)


def test_every_room_of_the_wiki_imports_only_what_lies_below_it() -> None:
    for file in (ROOT / "app").rglob("*.py"):
        own = room_of(module_of(file))
        others = {room_of(name) for name in imports(file)} - {"", own, "__version__"}
        assert all(layer_of(other) < layer_of(own) for other in others), f"{file} imports {others}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    files = {module_of(file): file for file in (ROOT / "app").rglob("*.py")}
    graph = {name: (imports(file) & set(files)) - {name} for name, file in files.items()}
    packages = {name for name in files if files[name].name == "__init__.py"}
    for name, found in graph.items():  # `from package import module` asks for the module, not for the package
        graph[name] = {one for one in found if one not in packages or not any(o.startswith(f"{one}.") for o in found)}
    TopologicalSorter(graph).prepare()


def test_nothing_of_the_wiki_imports_torch_or_the_experiments() -> None:
    for file in (ROOT / "app").rglob("*.py"):
        assert not any(
            name.split(".")[0] == "torch" or name.startswith("samestep.experiments") for name in imports(file)
        ), file


def test_calculators_import_no_web_framework_and_no_other_calculator() -> None:
    for file in (ROOT / "app" / "calculators").rglob("*.py"):
        names, own = imports(file), file.relative_to(ROOT / "app" / "calculators").parts[0]
        assert not any(name.split(".")[0] in ("fastapi", "starlette", "jinja2") for name in names), file
        others = tuple(f"samestep.app.calculators.{name}" for name in CALCULATORS if name != own)
        assert not any(name.startswith(others) for name in names), file


def test_only_the_web_room_knows_a_web_framework() -> None:
    for file in (ROOT / "app").rglob("*.py"):
        if room_of(module_of(file)) not in ("web", "main", "__main__"):
            assert not any(name.split(".")[0] in ("fastapi", "starlette", "uvicorn") for name in imports(file)), file


def test_importing_the_application_leaves_torch_out() -> None:
    code = "import sys, samestep.app.main; sys.exit('torch' in sys.modules)"
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
            assert chapter.minutes >= 1, chapter.path


def test_every_drawn_figure_stands_in_a_chapter() -> None:
    drawn = {file.stem for file in (ROOT / "templates" / "figures" / "chapters").glob("*.svg")}
    for lang in LANGUAGES:
        assert {ref.name for chapter in the_book().chapters[lang] for ref in chapter.document.figures} == drawn


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


def test_the_scripts_are_told_the_longest_address_and_the_row_grammar() -> None:
    """Both stand in `app/contract`; a second copy in a script would go its own way."""
    scripts = "".join(path.read_text("utf-8") for path in (ROOT / "static" / "js").glob("*.js"))
    assert not re.search(r"8_?000\b", scripts)
    assert "；" not in scripts
