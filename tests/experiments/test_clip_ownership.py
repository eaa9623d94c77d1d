"""The clipping experiment gives the numbers of the page, and ranks that decide alone are seen to part."""

from typing import Any

import pytest

from samestep.experiments import calculated


def values(lab: Any, row: str) -> dict[str, Any]:
    found: dict[str, Any] = lab.rows("clip_ownership")[row]["values"]
    return found


def test_every_check_holds(lab: Any) -> None:
    assert lab.results["clip_ownership"]["verdict"] == "holds", lab.output


def test_shards_share_one_norm_and_one_coefficient(lab: Any) -> None:
    scene = values(lab, "shards-global-owner")
    assert (scene["norm"], scene["coefficient"], scene["collectives"]) == (5.0, pytest.approx(0.2, abs=1e-15), 3)
    assert scene["applied"] == [[pytest.approx(0.6, abs=1e-15)], [pytest.approx(0.8, abs=1e-15)]]
    assert scene["parameters"] == [[pytest.approx(0.94, abs=1e-15)], [pytest.approx(0.92, abs=1e-15)]]


def test_clipping_by_each_ranks_own_norm_gives_root_two(lab: Any) -> None:
    scene = values(lab, "shards-per-rank")
    assert scene["applied"] == [[1.0], [1.0]]
    assert scene["clipped_norm"] == pytest.approx(2**0.5, abs=1e-15)


def test_a_copy_counts_once(lab: Any) -> None:
    assert values(lab, "replicated-global-owner")["norm"] == pytest.approx(13.0, abs=1e-14)
    assert values(lab, "replicated-every-copy")["norm"] == pytest.approx(313**0.5, abs=1e-14)
    assert values(lab, "replicated-every-copy")["clipped_norm"] == pytest.approx(13 / 313**0.5, abs=1e-14)


def test_norm_zero_and_threshold_zero_are_no_special_trouble(lab: Any) -> None:
    assert values(lab, "zero-norm-global-owner")["coefficient"] == 1.0
    nothing = values(lab, "zero-threshold-global-owner")
    assert (nothing["coefficient"], nothing["applied"], nothing["parameters"]) == (0.0, [[0.0], [0.0]], [[1.0], [1.0]])


@pytest.mark.parametrize("scene", ["inf-on-rank-0", "inf-on-rank-1", "nan-on-rank-0", "nan-on-rank-1", "both-ranks"])
def test_one_flag_makes_both_ranks_skip(lab: Any, scene: str) -> None:
    together = values(lab, f"{scene}-coordinated")
    assert together["decision"] == ["skip", "skip"]
    assert together["parameters"] == [[1.0], [1.0]]
    assert together["next_scale"] == [32768.0, 32768.0]


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_decide_alone_part(lab: Any, rank: int) -> None:
    alone = values(lab, f"inf-on-rank-{rank}-alone")
    assert alone["decision"][rank] == "skip"
    assert alone["decision"][1 - rank] == "update"
    assert alone["parameters"][1 - rank] == [pytest.approx(0.9, abs=1e-15)]
    assert alone["next_scale"][rank] != alone["next_scale"][1 - rank]


def test_a_maximum_of_norms_may_lose_a_nan(lab: Any) -> None:
    # Measured on Gloo: it depends on which rank holds the NaN. So reduce a flag.
    assert values(lab, "nan-on-rank-0-maximum-of-norms")["decision"] == ["skip", "skip"]
    lost = values(lab, "nan-on-rank-1-maximum-of-norms")
    assert lost["decision"] == ["update", "update"]
    assert lost["parameters"][1] == ["nan"]


def test_loss_scales_that_disagree_split_a_replicated_parameter(lab: Any) -> None:
    assert values(lab, "scales-disagree-agreed-scale")["parameters"] == [[pytest.approx(0.6)], [pytest.approx(0.6)]]
    own = values(lab, "scales-disagree-own-scale")["parameters"]
    assert own == [[pytest.approx(0.725)], [pytest.approx(0.45)]]  # 1 − 0.1·22/8 and 1 − 0.1·22/4


def test_where_nothing_is_clipped_every_rule_agrees(lab: Any) -> None:
    for path in ("global-owner", "per-rank", "every-copy"):
        row = lab.rows("clip_ownership")[f"below-threshold-{path}"]
        assert row["expectation"] == "agrees"
        assert row["values"]["coefficient"] in (1.0, [1.0, 1.0])


def test_the_calculators_give_the_measured_numbers(lab: Any) -> None:
    result = lab.results["clip_ownership"]
    found = calculated.agreement("clip_ownership", result["setup"], result["rows"])
    assert found is not None
    assert len(found) == 5 * 3 + 5 * 2 + 1
    assert max(found.values()) <= 1e-12
