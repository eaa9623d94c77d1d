"""mypy sees through the wiki's handlers: a method of the book that is misspelt in a page is an error."""

import re
import subprocess
import sys
from pathlib import Path

from tests.kit import ROOT

PAGES = ROOT / ".src" / "samestep" / "app" / "web" / "pages"


def test_a_misspelt_method_of_the_book_is_found_in_every_kind_of_page(tmp_path: Path) -> None:
    command, expected = [sys.executable, "-m", "mypy", "--no-error-summary"], set()
    for page in sorted(PAGES.glob("*.py")):
        source = page.read_text("utf-8")
        if found := re.search(r'(?<![."])\bbook\.(\w+)', source):
            (tmp_path / page.name).write_text(source[: found.end()] + "_misspelt" + source[found.end() :], "utf-8")
            command += ["-m", f"samestep.app.web.pages.{page.stem}"]
            command += ["--shadow-file", str(page.relative_to(ROOT)), str(tmp_path / page.name)]
            expected.add((page.name, f"{found[1]}_misspelt"))
    assert "chapters.py" in {name for name, _ in expected}
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False).stdout
    errors = re.findall(r'(\w+\.py):\d+: error: "Book" has no attribute "(\w+)"', said)
    assert set(errors) == expected, said
