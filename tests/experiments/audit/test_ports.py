"""Training scripts of four kinds, brought to an audit: how many lines that takes beside the reader's own.

`ports/NAME_train.py` is the script as it is, `ports/NAME.py` the file to audit. A line counts as the reader's own if
the script has it, however far it is indented.
"""

import re
from pathlib import Path

import pytest

from samestep.experiments.registry import ROOT
from tests.experiments.audit.asked import ask

FOLDER = Path(__file__).parent / "ports"
NAMES = ("nanogpt", "clip", "sft", "fsdp2")
RAGGED = ("sft", "fsdp2")
"""Those that divide by a global count; the others take means, and gather shapes that have to be equal."""
CUT = "clip_cut"
"""The second one with an all_gather that carries no gradient back, on one process neither."""
MOST = 15


def lines(name: str) -> list[str]:
    text = (FOLDER / f"{name}.py").read_text("utf-8").splitlines()
    return [line.strip() for line in text if line.strip() and not line.lstrip().startswith("#")]


def beside_their_own(name: str) -> int:
    own = set(lines(f"{name}_train"))
    return sum(line not in own for line in lines(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_port_takes_at_most_15_lines_beside_the_readers_own(name: str) -> None:
    assert 0 < beside_their_own(name) <= MOST


ONE_EACH = ask(
    {name: FOLDER / f"{name}.py" for name in (CUT, *NAMES) if name not in RAGGED}, plan="contiguous", microbatches=1
)
REPORTS = ONE_EACH | ask({name: FOLDER / f"{name}.py" for name in RAGGED})


@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_chapter_counts_the_same_lines(language: str) -> None:
    text = (ROOT / "content" / language / "50-first-difference.md").read_text("utf-8")
    rows = re.findall(r"^\| [^|]+ \| (\d+) \| (\d+) \|", text, re.MULTILINE)
    counted = [(len(lines(f"{name}_train")), beside_their_own(name)) for name in NAMES]
    assert [(int(own), int(beside)) for own, beside in rows] == counted


@pytest.mark.parametrize("name", NAMES)
def test_a_port_is_the_same_update(name: str) -> None:
    assert REPORTS[name].verdict == "same", REPORTS[name]


def test_a_gather_that_cuts_the_graph_on_one_process_too_is_found_out() -> None:
    """Both runs agree; the reference's gradient is not the derivative of its own loss."""
    report = ONE_EACH[CUT]
    assert (report.verdict, report.first_difference, report.cause) == ("different", None, "detached_remote"), report
    assert "not the derivative" in str(report)
