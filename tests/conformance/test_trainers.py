"""Trainers in the releases that are pinned, and upstream faults in older ones: `pytest tests/conformance`.

Not collected by default: it needs the extra `conformance` (1.8 GB), and the older releases (430 MB) are installed on
the way. Without that, and without DeepSpeed's operator (5 minutes, once), it takes 5 minutes of one processor: 6 of the
clock on two cores that others used as well.
"""

import json
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest

from samestep.experiments.conformance import lab
from samestep.experiments.conformance.faults import FAULTS, Fault
from samestep.experiments.conformance.frameworks import FRAMEWORKS
from samestep.experiments.conformance.frameworks.deepspeed import unavailable

Measured = dict[tuple[str, str], dict[str, Any]]
TRAINERS = ("deepspeed", "transformers", "accelerate", "trl", "lightning")

GLOBAL = ((1 / 16, 1 / 16), (1 / 16, 1 / 16))
RANKS = ((1 / 20, 1 / 20), (1 / 12, 1 / 12))
MICROBATCHES = ((1 / 8, 1 / 32), (1 / 20, 1 / 4))
FULL_WINDOW = {
    "deepspeed": {**{f"zero{stage}": MICROBATCHES for stage in range(4)}, "recipe": GLOBAL},
    "transformers": {
        "default": GLOBAL,
        "fsdp2": GLOBAL,
        "zero1": GLOBAL,
        "zero2": GLOBAL,
        "average_off": RANKS,
        "no_kwargs": MICROBATCHES,
        "mean_loss_func": ((0.5, 0.125), (0.2, 1.0)),
        "sum_loss_func": GLOBAL,
    },
    "accelerate": {"accumulate_mean": MICROBATCHES, "recipe": GLOBAL},
    "trl": {"default": GLOBAL, "average_off": RANKS},
    "lightning": {"trainer_mean": MICROBATCHES, "trainer_recipe": GLOBAL, "fabric_mean": MICROBATCHES},
}
"""Coefficients of n = (2, 8 | 5, 1), by hand: 1/16 each; 1/(2·10), 1/(2·6); 1/(4·2), 1/(4·8), 1/(4·5), 1/(4·1)."""
TAILS = {
    ("deepspeed", "zero1"): (0, 0),
    ("deepspeed", "recipe"): (1 / 7, 1 / 7),
    ("transformers", "default"): (1 / 7, 1 / 7),
    ("transformers", "no_kwargs"): (1 / 8, 1 / 6),
    ("accelerate", "accumulate_mean"): (1 / 16, 1 / 12),
    ("accelerate", "recipe"): (1 / 7, 1 / 7),
    ("trl", "default"): (1 / 7, 1 / 7),
    ("trl", "average_off"): (1 / 8, 1 / 6),
    ("lightning", "trainer_mean"): (1 / 16, 1 / 12),
    ("lightning", "trainer_recipe"): (1 / 7, 1 / 7),
}
"""Coefficients of a last window (4 | 3) of half the usual length: 1/7; or 1/(2·4) and 1/(2·3); or half that."""


@cache
def measured(framework: str) -> Measured:
    """Rows of the pinned release by setting and scenario."""
    return {(row["setting"], row["scenario"]): row for row in result_of(framework)["rows"]}


def result_of(framework: str, **wanted: list[str]) -> dict[str, Any]:
    missing = [name for name in FRAMEWORKS[framework].packages if not installed(name)]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: pip install -e '.[conformance]'")
    if framework == "deepspeed" and (reason := unavailable("")):
        pytest.skip(reason)
    with TemporaryDirectory() as folder:
        lab.run(Path(folder), {"framework": [framework], **wanted}, lambda step, done: None)
        return cast(dict[str, Any], json.loads((Path(folder) / "conformance" / "result.json").read_text("utf-8")))


def installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


@pytest.mark.parametrize("framework", TRAINERS)
def test_every_setting_does_what_is_said_of_it(framework: str) -> None:
    rows = measured(framework)
    assert [key for key, row in rows.items() if not row["met"]] == []
    assert {scenario for _, scenario in rows} >= {*"ABCDEF", "clip"}


@pytest.mark.parametrize(
    ("framework", "setting"), [(name, setting) for name, settings in FULL_WINDOW.items() for setting in settings]
)
def test_coefficients_of_a_full_window_are_the_fractions_found_by_hand(framework: str, setting: str) -> None:
    wanted = FULL_WINDOW[framework][setting]
    row = measured(framework)[setting, "B"]
    assert row["coefficients"] == [pytest.approx(list(cells), abs=1e-5) for cells in wanted]
    assert (row["verdict"] == "global_token_mean") is (wanted == GLOBAL)


@pytest.mark.parametrize(("framework", "setting"), TAILS)
def test_coefficients_of_a_tail_are_the_fractions_found_by_hand(framework: str, setting: str) -> None:
    found = measured(framework)[setting, "D"]["coefficients"]
    assert [cells[0] for cells in found] == pytest.approx(TAILS[framework, setting], abs=1e-5)


@pytest.mark.parametrize("framework", TRAINERS)
def test_a_window_without_labels_moves_the_parameters_by_moments_alone(framework: str) -> None:
    states = [row["values"] for (_, scenario), row in measured(framework).items() if scenario == "F"]
    assert all(0 < each["parameters"] < each["parameters_before"] and each["steps"] == 1 for each in states)
    assert states


def test_the_transformers_trainer_logs_zero_for_it_where_lightning_logs_nan() -> None:
    assert measured("transformers")["default", "F"]["values"]["loss"] == 0.0
    assert measured("lightning")["trainer_mean", "F"]["values"]["loss"] == "nan"


def test_a_tail_that_deepspeed_leaves_behind_is_in_the_next_update() -> None:
    assert measured("deepspeed")["zero1", "D"]["verdict"] == "leaking"
    assert measured("deepspeed")["recipe", "D"]["verdict"] == "global_token_mean"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.url.rpartition("/")[2])
def test_an_upstream_fault_is_seen_in_the_older_release_and_not_in_the_pinned_one(fault: Fault) -> None:
    release = f"{FRAMEWORKS[fault.framework].packages[0]}=={fault.version}"
    result = result_of(fault.framework, version=[release], scenario=[fault.scenario])
    new, old = [row for row in result["rows"] if row["setting"] == fault.setting]
    assert old["version"] == fault.version != new["version"]
    assert old["met"]
    assert new["met"]
    (control,) = [each for each in result["controls"] if each["values"].get("url") == fault.url]
    assert control["met"]
