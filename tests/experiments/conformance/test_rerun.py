"""Repeating the lab compares what both machines could measure, and says what it left out."""

from typing import Any, cast

import pytest

from samestep.app.evidence.bags import Result, Row
from samestep.experiments.commands.verify import Comparison, in_common


def measured(**versions: str) -> Result:
    """A result with one setting of each framework, in one scenario."""
    rows = [
        {"id": f"a-{name}-{version}", "framework": name, "version": version, "setting": "default"}
        for name, version in versions.items()
    ]
    controls = [{"id": f"measured-{name}-{version}"} for name, version in versions.items()]
    return cast(Result, {"rows": rows, "controls": controls})


def names(result: Result) -> tuple[list[str], list[str]]:
    return [row["id"] for row in result["rows"]], [control["id"] for control in result["controls"]]


def test_a_framework_that_is_missing_here_is_left_out_and_named() -> None:
    old, new, left_out = in_common(measured(torch_ddp="2.13.0", trl="1.16.0"), measured(torch_ddp="2.13.0"))
    assert names(old) == names(new) == (["a-torch_ddp-2.13.0"], ["measured-torch_ddp-2.13.0"])
    assert left_out == ("trl 1.16.0",)


def test_another_version_is_another_subject() -> None:
    old, new, left_out = in_common(measured(trl="1.16.0"), measured(trl="1.17.0"))
    assert names(old) == names(new) == ([], [])
    assert left_out == ("trl 1.16.0", "trl 1.17.0")


def test_a_row_that_fails_here_is_not_left_out() -> None:
    published, again = measured(trl="1.16.0"), measured(trl="1.16.0")
    again["rows"][0]["met"] = False
    old, new, left_out = in_common(published, again)
    assert left_out == ()
    assert old["rows"] != new["rows"]


def test_other_experiments_are_compared_whole() -> None:
    plain: Any = {"rows": [{"id": "one"}], "controls": []}
    old, new, left_out = in_common(plain, {**plain, "rows": []})
    assert (old["rows"], new["rows"], left_out) == ([{"id": "one"}], [], ())


def test_rows_of_no_framework_are_always_compared() -> None:
    plain = measured()
    with_one = measured(accelerate="1.15.0")
    for result in (plain, with_one):
        result["rows"].insert(0, cast(Row, {"id": "plain"}))
    old, new, left_out = in_common(with_one, plain)
    assert names(old)[0] == names(new)[0] == ["plain"]
    assert left_out == ("accelerate 1.15.0",)


@pytest.mark.parametrize("identical", [True, False])
def test_what_was_left_out_is_said(identical: bool) -> None:
    comparison = Comparison(identical, 1e-12, "rows.a", 1e-6, [], ("trl 1.16.0",))
    assert comparison.holds
    assert str(comparison).endswith("; not compared: trl 1.16.0")
