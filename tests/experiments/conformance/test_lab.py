"""What is installed is measured and does what is said of it; what is not installed is said to be missing."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from samestep.experiments.conformance import lab as conformance, releases
from samestep.experiments.conformance.frameworks import FRAMEWORKS, TIER_0, Framework

TORCH = version("torch").partition("+")[0].replace(".", "-")


def installed(framework: Framework) -> bool:
    try:
        return not framework.family and all(version(name) for name in framework.packages)
    except PackageNotFoundError:
        return False


@pytest.fixture(scope="session")
def rows(lab: Any) -> dict[str, Any]:
    found: dict[str, Any] = lab.rows("conformance")
    return found


@pytest.mark.parametrize("name", [name for name, framework in FRAMEWORKS.items() if installed(framework)])
def test_every_installed_framework_does_what_is_said_of_it(lab: Any, run: Any, tmp_path: Path, name: str) -> None:
    made = lab if name in TIER_0 else run("run", "conformance", "--framework", name, folder=tmp_path)
    found = [row for row in made.results["conformance"]["rows"] if row["framework"] == name]
    assert [row["id"] for row in found if not row["met"]] == [], made.output
    assert len(found) >= 5
    assert all(control["met"] for control in made.results["conformance"]["controls"]), made.output


@pytest.mark.parametrize("framework", ["torch-ddp", "torch-fsdp2"])
@pytest.mark.parametrize(
    ("scenario", "mean"),
    [
        ("a", [[1 / 4], [1 / 16]]),
        ("b", [[1 / 8, 1 / 32], [1 / 20, 1 / 4]]),
        ("c", [[None], [1 / 16]]),
        ("d", [[1 / 16], [1 / 12]]),
        ("e", [[1 / 8, None], [1 / 20, 1 / 4]]),
    ],
)
def test_a_local_mean_weighs_micro_batches_alike(
    rows: dict[str, Any], framework: str, scenario: str, mean: list[list[float | None]]
) -> None:
    found = rows[f"{scenario}-{framework}-local-mean-{TORCH}"]
    wanted = [[None if cell is None else pytest.approx(cell, abs=1e-15) for cell in rank] for rank in mean]
    assert found["coefficients"] == wanted
    assert found["verdict"] == ("microbatch_equal*1/K" if scenario == "d" else "microbatch_equal")


@pytest.mark.parametrize("framework", ["torch-ddp", "torch-fsdp2"])
@pytest.mark.parametrize(("scenario", "total"), [("a", 10), ("b", 16), ("c", 8), ("d", 7), ("e", 8)])
def test_a_scaled_sum_is_the_global_token_mean(rows: dict[str, Any], framework: str, scenario: str, total: int) -> None:
    found = rows[f"{scenario}-{framework}-scaled-sum-{TORCH}"]
    cells = [cell for rank in found["coefficients"] for cell in rank if cell is not None]
    assert cells == [pytest.approx(1 / total, abs=1e-15)] * len(cells)
    assert found["verdict"] == "global_token_mean"


@pytest.mark.parametrize("planted", ["torch-ddp-sum-hook-local-mean", "torch-fsdp2-divide-factor-1"])
def test_a_planted_factor_of_two_is_seen_and_named(rows: dict[str, Any], planted: str) -> None:
    for scenario in "abce":
        assert rows[f"{scenario}-{planted}-{TORCH}"]["verdict"] == "microbatch_equal*P"
    assert rows[f"b-{planted}-{TORCH}"]["coefficients"] == [
        [pytest.approx(1 / 4), pytest.approx(1 / 16)],
        [pytest.approx(1 / 10), pytest.approx(1 / 2)],
    ]


def test_join_divides_by_the_initial_world_size_or_by_who_is_left(rows: dict[str, Any]) -> None:
    assert rows[f"c-torch-ddp-join-initial-{TORCH}"]["coefficients"] == [[None], [pytest.approx(1 / 16)]]
    assert rows[f"c-torch-ddp-join-remaining-{TORCH}"]["coefficients"] == [[None], [pytest.approx(1 / 8)]]


def test_a_norm_over_shards_is_the_whole_norm_and_that_of_one_shard_is_not(rows: dict[str, Any]) -> None:
    whole = rows[f"clip-torch-fsdp2-local-mean-{TORCH}"]["values"]
    assert whole["reported"] == [pytest.approx(whole["true"], abs=1e-12)] * 2
    assert whole["updated"] == pytest.approx(whole["max_norm"], rel=1e-5)
    shard = rows[f"clip-torch-fsdp2-shard-clip-{TORCH}"]["values"]
    assert max(shard["reported"]) < shard["true"] - 0.01
    squares = sum(norm**2 for norm in shard["reported"])
    assert squares**0.5 == pytest.approx(shard["true"])  # the shards make up the whole


def test_a_window_without_labels_still_moves_adamw(rows: dict[str, Any]) -> None:
    for framework in ("torch-ddp", "torch-fsdp2"):
        values = rows[f"f-{framework}-local-mean-{TORCH}"]["values"]
        assert values["parameters"] > 0.01
        assert (values["steps"], values["loss"]) == (1, "nan")


def test_coinciding_candidates_are_said(rows: dict[str, Any]) -> None:
    assert rows[f"a-torch-ddp-local-mean-{TORCH}"]["candidates"] == ["replica_equal", "microbatch_equal"]
    assert rows[f"b-torch-ddp-local-mean-{TORCH}"]["candidates"] == ["microbatch_equal"]


def test_a_framework_that_is_not_installed_cannot_be_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    absent = Framework("absent", "Absent", ("samestep-no-such-distribution",))
    monkeypatch.setitem(FRAMEWORKS, "absent", absent)
    with pytest.raises(releases.CannotMeasureError, match="absent: not installed: samestep-no-such-distribution"):
        conformance.run(tmp_path, {"framework": ["absent"]}, lambda what, done: None)
    assert not list(tmp_path.iterdir())


def test_a_listed_release_comes_with_its_companions() -> None:
    ((framework, release),) = releases.named("transformers==4.50.3", FRAMEWORKS.values())
    assert (framework.id, release.version) == ("transformers", "4.50.3")
    assert "accelerate==1.5.2" in release.pins
    ((_, other),) = releases.named("transformers==4.50.3,accelerate==1.6.0", FRAMEWORKS.values())
    assert other.pins[1] == "accelerate==1.6.0"


def test_a_release_is_measured_in_every_framework_of_its_package_or_in_those_that_are_asked_for() -> None:
    found = [framework.id for framework, _ in releases.named("trl==1.5.0", FRAMEWORKS.values())]
    assert {"trl", "trl_grpo"} <= set(found)
    ((only, _),) = releases.named("trl==1.5.0", [FRAMEWORKS["trl_grpo"], FRAMEWORKS["accelerate"]])
    assert only.id == "trl_grpo"
    with pytest.raises(releases.CannotMeasureError, match="no release of a framework here"):
        releases.named("trl==1.5.0", [FRAMEWORKS["accelerate"]])


def test_releases_have_places_of_their_own() -> None:
    places = {releases.place(release) for framework in FRAMEWORKS.values() for release in framework.releases}
    pins = {release.pins for framework in FRAMEWORKS.values() for release in framework.releases}
    assert len(places) == len(pins)  # one for several frameworks of a package
