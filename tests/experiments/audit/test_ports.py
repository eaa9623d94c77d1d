"""Training scripts of four kinds, brought to an audit: how many lines that takes beside the reader's own.

`ports/NAME_train.py` is the script as it is, `ports/NAME.py` the file to audit. A line counts as the reader's own if
the script has it, however far it is indented.
"""

from pathlib import Path

import pytest

from samestep.experiments.audit import Report, audit_many

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


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    even = [CUT, *(name for name in NAMES if name not in RAGGED)]
    found = dict(zip(RAGGED, audit_many([FOLDER / f"{name}.py" for name in RAGGED]), strict=True))
    one = audit_many([FOLDER / f"{name}.py" for name in even], plan="contiguous", microbatches=1)
    return found | dict(zip(even, one, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_port_is_the_same_update(reports: dict[str, Report], name: str) -> None:
    assert reports[name].verdict == "same", reports[name]


def test_a_gather_that_cuts_the_graph_on_one_process_too_is_found_out(reports: dict[str, Report]) -> None:
    """Both runs agree; the reference's gradient is not the derivative of its own loss."""
    report = reports[CUT]
    assert (report.verdict, report.first_difference, report.cause) == ("different", None, "detached_remote"), report
    assert "not the derivative" in str(report)
