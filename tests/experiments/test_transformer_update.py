"""The whole Transformer: right paths within 2e-10 of the full batch, wrong ones seen to fail, and no side effects."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from samestep.experiments.tensors import load

RIGHT = ("accumulation-global-count", "ddp-global-count", "ddp-global-count-no-sync")
MEANS = ("microbatch-means", "ddp-microbatch-means", "ddp-local-means", "masked-means")
OPTIMIZERS = ("sgd", "adamw")
COUNTS = {"unequal": (8, 24, 48, 80), "equal": (32, 32, 32, 32), "tail": (96, 96, 96, 5), "empty": (0, 0, 40, 60)}


def row(lab: Any, name: str) -> Any:
    return lab.rows("transformer_update")[name]


def test_every_check_holds(lab: Any) -> None:
    assert lab.results["transformer_update"]["verdict"] == "holds", lab.output
    assert lab.results["transformer_update"]["setup"]["parameters"] == 298_176


@pytest.mark.parametrize(("case", "path", "optimizer"), list(product(COUNTS, RIGHT, OPTIMIZERS)))
def test_right_paths_make_the_same_update(lab: Any, case: str, path: str, optimizer: str) -> None:
    differences = row(lab, f"{case}-{path}-{optimizer}")["max_abs_difference"]
    quantities = {"loss", "gradient", "weights"} | (
        {"exp_avg", "exp_avg_sq", "step"} if optimizer == "adamw" else set()
    )
    assert differences.keys() == quantities
    assert max(differences.values()) <= 2e-10


@pytest.mark.parametrize(("path", "optimizer"), list(product(MEANS, OPTIMIZERS)))
def test_mean_rules_pass_at_equal_counts_only(lab: Any, path: str, optimizer: str) -> None:
    assert max(row(lab, f"equal-{path}-{optimizer}")["max_abs_difference"].values()) <= 2e-10
    for case in ("unequal", "tail"):
        differences = row(lab, f"{case}-{path}-{optimizer}")["max_abs_difference"]
        assert min(differences["gradient"], differences["weights"]) > 1e-6
    assert row(lab, f"empty-{path}-{optimizer}")["expectation"] == "undefined"
    assert row(lab, f"empty-{path}-{optimizer}")["max_abs_difference"]["loss"] is None


@pytest.mark.parametrize(
    ("case", "path"), list(product(("unequal", "equal", "tail"), ("divided-again", "sum-of-means")))
)
def test_wrong_factors_fail_even_at_equal_counts(lab: Any, case: str, path: str) -> None:
    for optimizer in OPTIMIZERS:
        assert row(lab, f"{case}-{path}-{optimizer}")["max_abs_difference"]["gradient"] > 1e-6


def test_an_empty_mean_is_nan_but_whether_the_gradient_is_depends_on_how_it_is_written(lab: Any) -> None:
    by_framework = row(lab, "empty-microbatch-means-sgd")["max_abs_difference"]
    assert by_framework["gradient"] == row(lab, "empty-clamped-means-sgd")["max_abs_difference"]["gradient"]
    assert row(lab, "empty-masked-means-sgd")["max_abs_difference"]["gradient"] is None


def test_without_labels_nothing_is_defined_and_only_a_skip_is_safe(lab: Any) -> None:
    for path in (*RIGHT, *MEANS, "divided-again", "sum-of-means"):
        assert row(lab, f"none-{path}")["values"]["loss"] == "nan"
    for path in ("coordinated-skip", "none-gradients-step"):
        assert set(row(lab, f"none-{path}-adamw")["max_abs_difference"].values()) == {0.0}
    moved = row(lab, "none-zero-loss-step-adamw")["max_abs_difference"]
    assert moved["step"] == 1.0
    assert min(moved.values()) > 1e-6  # weights and both moments, although every gradient is exactly 0
    assert row(lab, "none-zero-loss-step-sgd")["max_abs_difference"] == {"weights": 0.0}


def test_clipping_hides_a_gradient_four_times_too_large(lab: Any) -> None:
    hidden = row(lab, "unequal-four-times-then-clipped-adamw")["max_abs_difference"]
    assert hidden["gradient"] > 1e-6
    assert max(hidden["clipped_gradient"], hidden["weights"]) <= 2e-10


def test_processes_hold_the_same_bits_and_did_communicate(lab: Any) -> None:
    for each in lab.results["transformer_update"]["rows"]:
        assert each["values"]["processes_agree"], each["id"]
        assert (each["values"]["collectives"] > 0) == each["path"].startswith("ddp"), each["id"]


def test_published_sums_determine_every_gradient(lab: Any) -> None:
    """Recomputed here from the four per-window sums alone, without torch and without processes."""
    files = lab.folder / "transformer_update"
    stored = load(files / "gradient_sums.safetensors")
    names = sorted({name.partition(".")[2] for name in stored})
    sums = [np.concatenate([stored[f"window{k}.{name}"].ravel() for name in names]) for k in range(4)]
    assert all(len(each) == 298_176 for each in sums)
    counts = COUNTS["unequal"]
    right = sum(sums) / sum(counts)
    equally = sum(each / count for each, count in zip(sums, counts, strict=True)) / 4
    locally = ((sums[0] + sums[1]) / (8 + 24) + (sums[2] + sums[3]) / (48 + 80)) / 2
    for path, gradient in {
        "microbatch-means": equally,
        "ddp-local-means": locally,
        "divided-again": right / 4,
        "sum-of-means": 4 * equally,
    }.items():
        recorded = row(lab, f"unequal-{path}-sgd")["max_abs_difference"]["gradient"]
        assert np.abs(gradient - right).max() == pytest.approx(recorded, abs=1e-12), path


def test_windows_are_real_text_and_the_supervision_is_recorded(lab: Any) -> None:
    setup = lab.results["transformer_update"]["setup"]
    tokens = load(lab.folder / "transformer_update" / "windows.safetensors")["tokens"]
    assert tokens.shape == (4, 97)
    assert len({window["document"] for window in setup["windows"]}) == 4
    assert {case: tuple(counts) for case, counts in setup["supervision"].items()} == {**COUNTS, "none": (0, 0, 0, 0)}
    assert [entry["file"] for entry in setup["initial"]] == [
        "train_tiny/data/weights.safetensors",
        "train_tiny/data/optimizer.safetensors",
        "train_tiny/data/tokenizer.json",
    ]
