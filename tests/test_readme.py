"""The README's claims, as far as a machine can check them: its commands, options, files, addresses and numbers."""

import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from tests.kit import ROOT, lay_out_first_chapter

README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def block_after(marker: str) -> str:
    """The fenced block that follows a marker."""
    found = re.search(rf"<!-- {re.escape(marker)} -->\n```\w*\n(.*?)\n```", README, re.DOTALL)
    assert found is not None, f"no block after “{marker}”"
    return found[1]


@cache
def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 170


def test_it_names_no_place_on_anybodys_machine() -> None:
    assert not re.search(r"/(root|home|Users|work|tmp)/", README)


@pytest.mark.parametrize(
    ("marker", "steps"),
    [
        ("the serve command", ["python3 -m venv .venv", ".venv/bin/pip install .", ".venv/bin/samestep"]),
        ("the test command", ["python3 -m venv .venv", ".venv/bin/pip install -e '.[test]'", ".venv/bin/pytest"]),
    ],
)
def test_it_has_two_commands_each_of_which_is_complete(marker: str, steps: list[str]) -> None:
    """One line each, from nothing but Python to a served wiki or a tested one; `.ci/run` runs the second as it is."""
    (line,) = block_after(marker).splitlines()
    assert line.split(" && ") == steps
    assert subprocess.run(["bash", "-n", "-c", line], check=False).returncode == 0


def test_the_serve_command_installs_no_torch() -> None:
    assert not any(re.match(r"torch\b", requirement) for requirement in PROJECT["dependencies"])
    assert any(requirement.startswith("torch==") for requirement in PROJECT["optional-dependencies"]["experiments"])


def test_what_it_says_about_python_and_the_licence_is_what_the_project_says() -> None:
    (version,) = re.findall(r"Python (\d\.\d+) or newer", README)
    assert PROJECT["requires-python"] == f">={version}"
    assert "MIT licence" in README
    assert PROJECT["license"] == "MIT"
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")


def test_every_extra_that_it_names_exists() -> None:
    named = set(re.findall(r"'\.\[(\w+)\]'", README))
    assert named
    assert named <= set(PROJECT["optional-dependencies"])


def test_every_command_that_it_names_exists() -> None:
    assert set(re.findall(r"\bsamestep(?:-lab)?\b(?= (?:list|run|verify|publish|train)\b|`|\n)", README)) <= set(
        PROJECT["scripts"]
    )
    for module in set(re.findall(r"python -m ([\w.]+)", README)):
        assert find_spec(module) is not None, module


def test_it_lists_the_options_of_the_server_and_no_others() -> None:
    helped = run("-m", "app", "--help")
    assert helped.returncode == 0
    offered = set(re.findall(r"(?<![\w-])--[a-z-]+", helped.stdout)) - {"--help"}
    (listed,) = [part for part in README.split("\n\n") if "Options: " in part]
    assert set(re.findall(r"`(--[a-z-]+)", listed)) == offered


def test_every_subcommand_of_the_laboratory_that_it_shows_exists() -> None:
    shown = set(re.findall(r"samestep-lab (\w+)", README))
    helped = run("-m", "experiments", "--help")
    assert shown
    assert helped.returncode == 0, helped.stderr
    assert shown <= set(re.findall(r"\w+", helped.stdout))


def test_every_file_that_it_names_exists() -> None:
    named = set(re.findall(r"(?<![\w/.-])(\.?[\w-]+(?:/[\w.-]+)*(?:\.(?:py|json|toml)|/))(?=[\s`),;:]|$)", README))
    named |= {path for path in re.findall(r"`([\w./-]+)`", README) if "/" in path and not path.startswith("/")}
    concrete = {path for path in named if not re.search(r"NAME|NN|\.venv|evidence/$|^my_step|^train", path)}
    assert len(concrete) > 15
    lost = [path for path in concrete if not any((base / path).exists() for base in _places())]
    assert lost == []


def _places() -> list[Path]:
    """Where the map of the house is indented, a name stands below the folder above it."""
    return [
        ROOT,
        *(ROOT / name for name in ("app", "app/book", "app/web", "templates", "tests", "content", "experiments")),
    ]


def test_every_switch_that_it_names_is_read_somewhere() -> None:
    switches = set(re.findall(r"SAMESTEP_[A-Z_]+", README))
    code = "".join(file.read_text() for folder in ("app", "tests") for file in (ROOT / folder).rglob("*.py"))
    assert switches
    assert all(f'"{switch}"' in code for switch in switches)


def test_the_addresses_that_it_shows_answer(client: TestClient) -> None:
    addresses = re.findall(r"curl '(http://127\.0\.0\.1:8000[^']+)'", README)
    assert addresses
    for address in addresses:
        parts = urlsplit(address)
        answer = client.get(f"{parts.path}?{parts.query}")
        assert answer.status_code == 200, address
        assert answer.headers["content-type"].startswith("text/csv" if "format=csv" in address else "application/json")
    assert "default 8000" in run("-m", "app", "--help").stdout
    assert client.get("/openapi.json").status_code == 200


def test_the_checked_number_that_it_shows_is_right(client: TestClient) -> None:
    found = re.search(r'\[([+−-]?[\d.]+)\]\{calc="(\w+)\?([^"]+)" field="([\w.]+)"\}', README)
    assert found is not None
    value = client.get(f"/api/{found[2]}?{found[3]}").json()
    for key in found[4].split("."):
        value = value[key]
    assert float(found[1].replace("\N{MINUS SIGN}", "-")) == value


def test_the_book_is_checked_by_the_command_that_it_names(tmp_path: Path) -> None:
    """Here one chapter; tests/book checks the whole of it."""
    assert "python -m app.book.chapters" in README
    lay_out_first_chapter(tmp_path / "content")
    checked = run("-m", "app.book.chapters", str(tmp_path / "content"))
    assert checked.returncode == 0, checked.stderr
    assert "book ok: 2 chapters" in checked.stdout


def test_every_option_of_its_watch_commands_is_watchs_own_and_not_the_watched_scripts() -> None:
    """Options after a script are the script's: `watch train.py --html page` would write no page."""
    from samestep.experiments.__main__ import _parser

    said = [shlex.split(line, comments=True) for line in README.splitlines() if line.startswith("samestep-lab watch")]
    found = [_parser().parse_args(words[1:]).run for words in said]
    assert len(found) >= 2
    assert [run for run in found if run[:1] != ["--"] and any(word.startswith("-") for word in run)] == []
