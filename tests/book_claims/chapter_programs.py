"""The programs that chapters print, taken from the chapters, so that what is tested is what a reader copies."""

import ast
import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

from tests.kit import CONTENT

_PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def programs(slug: str, lang: str) -> list[str]:
    """The Python programs of a chapter, in order; `slug` is the name of its file without the number."""
    (file,) = (CONTENT / lang).glob(f"[0-9]*-{slug}.md")
    return _PYTHON.findall(file.read_text("utf-8"))


def without_words(program: str) -> str:
    """What a program does: the tree of its code, without comments and docstrings."""
    tree = ast.parse(program)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def printed(program: str) -> list[str]:
    """The lines that a program of one process prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, "chapter", "exec"), {"__name__": "program"})  # our own text, read from the checkout
    return out.getvalue().splitlines()


def printed_by_processes(program: str, folder: Path) -> list[str]:
    """The lines of a program that starts processes of its own, sorted; they end with it, also at the time limit."""
    file = folder / "program.py"
    file.write_text(program, "utf-8")
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())
