"""Two ranks find the right terms by what they gather, and miss them elsewhere by what the calculators predict."""

from typing import Any

import pytest


def rows(lab: Any) -> dict[str, Any]:
    found: dict[str, Any] = lab.rows("other_terms")
    return found


def test_every_check_holds(lab: Any) -> None:
    assert lab.results["other_terms"]["verdict"] == "holds", lab.output


def test_the_calculators_give_every_gradient_and_every_rate(lab: Any) -> None:
    assert max(row["max_abs_difference"]["calculator"] for row in rows(lab).values()) < 1e-12


def test_only_the_gathered_statistics_and_the_right_counts_and_clock_agree(lab: Any) -> None:
    assert {name for name, row in rows(lab).items() if row["expectation"] == "agrees"} == {
        "unequal-balance-global",
        "equal-balance-global",
        "equal-balance-global-f-local-p",
        "rewards-whitening-global",
        "terms-kl-own-global-count",
        "schedule-clock-per-update",
    }


@pytest.mark.parametrize("way", ["per-rank", "per-microbatch", "averaged-moments"])
def test_whitened_rewards_are_as_far_off_as_predicted(lab: Any, way: str) -> None:
    found = rows(lab)[f"rewards-whitening-{way}"]["values"]
    assert found["away"] == pytest.approx(found["predicted_away"], rel=1e-12)
    assert found["away"] > 1


@pytest.mark.parametrize(
    ("recipe", "arrived"),
    [("own-global-count", 1), ("first-terms-count", 16 / 12), ("global-count-without-P", 1 / 2)],
)
def test_a_kl_arrives_as_the_stated_multiple(lab: Any, recipe: str, arrived: float) -> None:
    found = rows(lab)[f"terms-kl-{recipe}"]["values"]
    assert found["arrived"][1] == pytest.approx(arrived, rel=1e-12)
    assert found["multiples"][1] == pytest.approx(arrived, rel=1e-12)


def test_means_of_cells_weigh_their_units_unevenly_although_their_multiple_is_one(lab: Any) -> None:
    found = rows(lab)["terms-kl-own-cell-mean"]["values"]
    assert found["multiples"] == [1, 1]
    assert all(abs(share - 1) > 1e-3 for share in found["arrived"])


def test_a_mean_divided_by_the_first_terms_count_is_a_fraction_of_itself(lab: Any) -> None:
    found = rows(lab)["terms-kl-per-token-loss"]["values"]
    assert found["multiples"] == [1, pytest.approx(4 / 12)]
    assert found["arrived"][1] < 0.4


def test_a_clock_that_moves_twice_an_update_is_at_its_end_after_half_the_updates(lab: Any) -> None:
    right, twice = (
        rows(lab)[f"schedule-clock-{name}"]["values"] for name in ("per-update", "per-update-times-processes")
    )
    assert [one / other for one, other in zip(twice["rates"][1:3], right["rates"][1:3], strict=True)] == [2, 2]
    assert twice["steps"] == 2 * right["steps"]
    assert twice["rates"][5:] == [0, 0, 0]


def test_accelerates_own_scheduler_is_measured_or_said_to_be_missing(lab: Any) -> None:
    found = rows(lab).get("schedule-clock-accelerate")
    if found is None:
        assert [one["framework"] for one in lab.results["other_terms"]["not_measured"]] == ["accelerate"]
    else:
        assert found["values"] == rows(lab)["schedule-clock-per-update-times-processes"]["values"]
