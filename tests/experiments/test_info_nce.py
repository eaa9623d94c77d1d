"""The contrastive experiment gives the numbers of the page, and every wrong path is seen to be wrong."""

from typing import Any

import pytest

from samestep.experiments import calculated

WRONG = ("remote-detached", "own-slice", "single-pair", "every-slice-detached", "whole-loss-remote-detached")
RIGHT = (
    "gather-with-grad",
    "library-gather-with-grad",
    "whole-loss-gather-with-grad",
    "whole-loss-remote-detached-times-p",
)
CASES = ("page", "asymmetric-2", "asymmetric-3", "asymmetric-4")


def values(lab: Any, row: str) -> dict[str, Any]:
    found: dict[str, Any] = lab.rows("info_nce")[row]["values"]
    return found


def test_every_check_holds(lab: Any) -> None:
    assert lab.results["info_nce"]["verdict"] == "holds", lab.output
    assert lab.results["info_nce"]["processes"] == 4


@pytest.mark.parametrize("case", CASES)
def test_right_paths_reach_every_gradient_of_the_reference(lab: Any, case: str) -> None:
    for path in RIGHT:
        row = lab.rows("info_nce")[f"{case}-{path}"]
        compared = {name: far for name, far in row["max_abs_difference"].items() if name != "loss"}
        assert all(far <= 2e-10 for far in compared.values()), row["id"]


@pytest.mark.parametrize("case", CASES)
def test_wrong_paths_differ_in_the_document_tower(lab: Any, case: str) -> None:
    for path in WRONG:
        row = lab.rows("info_nce")[f"{case}-{path}"]
        assert row["expectation"] == "differs"
        assert row["max_abs_difference"]["wd"] > 1e-6, row["id"]


def test_parameter_gradients_and_updates_of_the_page(lab: Any) -> None:
    right, detached = values(lab, "page-gather-with-grad"), values(lab, "page-remote-detached")
    assert right["loss"] == pytest.approx(2.072538969480391, abs=1e-12)
    assert detached["loss"] == pytest.approx(right["loss"], abs=1e-12)  # the loss does not show the fault
    assert detached["wq_gradient"] == pytest.approx(right["wq_gradient"], abs=1e-12)  # nor does w_q
    assert right["wd_gradient"] == pytest.approx([1.844825], abs=5e-7)
    assert detached["wd_gradient"] == pytest.approx([0.922412], abs=5e-7)
    assert right["wd"] == pytest.approx([0.815518], abs=5e-7)  # 1 − 0.1 · 1.844825
    assert detached["wd"] == pytest.approx([0.907759], abs=5e-7)


def test_document_gradients_of_the_page(lab: Any) -> None:
    right, detached = values(lab, "page-gather-with-grad"), values(lab, "page-remote-detached")
    assert right["document_gradients"] == [pytest.approx([0.922412], abs=5e-7), pytest.approx([-0.922412], abs=5e-7)]
    assert detached["document_gradients"] == [
        pytest.approx([-0.059601], abs=5e-7),
        pytest.approx([-0.982014], abs=5e-7),
    ]
    largest = lab.rows("info_nce")["page-remote-detached"]["max_abs_difference"]["documents"]
    assert largest == pytest.approx(0.982014, abs=5e-7)


def test_what_each_process_holds_before_ddp(lab: Any) -> None:
    right = values(lab, "page-gather-with-grad")["ranks"]
    assert [rank["loss"] for rank in right] == pytest.approx([0.126928, 4.018150], abs=5e-7)
    assert [rank["wq_before"][0] for rank in right] == pytest.approx([-0.238406, 3.928055], abs=5e-7)
    assert [rank["wd_before"][0] for rank in right] == pytest.approx([1.844825, 1.844825], abs=5e-7)
    detached = values(lab, "page-remote-detached")["ranks"]
    assert [rank["wd_before"][0] for rank in detached] == pytest.approx([-0.119203, 1.964028], abs=5e-7)


def test_one_pair_alone_has_no_loss_and_no_gradient(lab: Any) -> None:
    alone = values(lab, "page-single-pair")
    assert (alone["loss"], alone["wq_gradient"], alone["wd_gradient"]) == (0.0, [0.0], [0.0])
    assert (alone["wq"], alone["wd"]) == ([1.0], [1.0])


def test_detaching_every_slice_lets_the_replicas_drift_apart_unnoticed(lab: Any) -> None:
    drifting = values(lab, "page-every-slice-detached")
    assert drifting["replicas_agree"] is False
    assert [rank["wq_after"][0] for rank in drifting["ranks"]] == pytest.approx([-0.238406, 3.928055], abs=5e-7)
    assert [rank["wd_after"] for rank in drifting["ranks"]] == [None, None]
    assert drifting["next_forward"].startswith("Expected to have finished reduction")


def test_a_backward_that_keeps_the_own_slice_is_as_wrong_as_detaching(lab: Any) -> None:
    for case in CASES:
        kept, cut = values(lab, f"{case}-own-slice"), values(lab, f"{case}-remote-detached")
        assert kept["wd_gradient"] == pytest.approx(cut["wd_gradient"], abs=1e-15)


def test_only_the_antisymmetric_fixture_makes_detaching_look_like_a_factor(lab: Any) -> None:
    for case in CASES:
        right, cut = (values(lab, f"{case}-{path}")["wd_gradient"] for path in ("gather-with-grad", "remote-detached"))
        ratios = [a / b for a, b in zip(cut, right, strict=True)]
        if case == "page":
            assert ratios == pytest.approx([0.5], abs=1e-12)
        else:
            assert max(ratios) - min(ratios) > 0.01, case


def test_collectives_were_counted(lab: Any) -> None:
    # gather forward, gather backward, DDP; without the gather's backward; nothing but DDP; the gather alone
    counted = {"gather-with-grad": 3, "remote-detached": 2, "single-pair": 1, "every-slice-detached": 1}
    assert {path: values(lab, f"page-{path}")["collectives"] for path in counted} == counted


def test_the_calculator_gives_the_measured_numbers(lab: Any) -> None:
    result = lab.results["info_nce"]
    found = calculated.agreement("info_nce", result["setup"], result["rows"])
    assert found is not None
    assert len(found) == len(CASES) * 9
    assert max(found.values()) <= 1e-12
