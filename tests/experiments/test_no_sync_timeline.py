"""Real DDP looks at the forward and real FSDP2 at the backward, and the calculator knows every `.grad` on the way."""

from typing import Any

import pytest

DDP = ("ddp", "ddp-buckets", "ddp-find-unused")


def values(lab: Any, row: str) -> Any:
    return lab.rows("no_sync_timeline")[row]["values"]


def test_every_check_holds(lab: Any) -> None:
    assert lab.results["no_sync_timeline"]["verdict"] == "holds", lab.output


@pytest.mark.parametrize("case", DDP)
def test_under_ddp_only_the_first_of_several_backwards_after_all_forwards_is_reduced(lab: Any, case: str) -> None:
    found = values(lab, f"{case}-forwards-first")
    assert found["grad"] == [[2, 2], [4, 8], [8, 20]]
    assert [count > 0 for count in found["collectives"]] == [True, False, False]


@pytest.mark.parametrize("case", DDP)
def test_under_ddp_the_forward_decides(lab: Any, case: str) -> None:
    assert min(values(lab, f"{case}-backward-inside")["collectives"]) > 0
    assert values(lab, f"{case}-forward-inside")["collectives"] == [0, 0, 0]


def test_under_fsdp2_the_backward_decides(lab: Any) -> None:
    assert values(lab, "fsdp2-backward-inside")["collectives"] == [0, 0, 2]
    assert values(lab, "fsdp2-forward-inside")["grad"] == [[None, None], [None, None], [14, 14]]
    assert values(lab, "fsdp2-last-left-out")["grad"][-1] == [6, 6]


def test_a_reduction_takes_a_call_a_bucket_and_one_for_the_map_of_unused_parameters(lab: Any) -> None:
    counts = [values(lab, f"{case}-last-synchronised")["collectives"] for case in DDP]
    assert counts == [[0, 0, 1], [0, 0, 3], [0, 0, 3]]  # two buckets and the map


def test_the_calculator_gives_every_gradient_and_every_count(lab: Any) -> None:
    rows = lab.rows("no_sync_timeline").values()
    assert len(rows) == 4 * 8
    assert {row["max_abs_difference"]["calculator"] for row in rows} == {0}
