"""Unmodified scripts of real frameworks, watched: exact weights. On demand: `pytest tests/conformance/test_watch.py`.

By hand: with n labels in a cell, P = 2 ranks and K = 3, a mean of means gives 1/(P·K·n), a mean over each rank's own
labels 1/(P·n_r), the global token mean 1/N; a last window of one microstep that is divided by K has 1/(P·K·n).
"""

import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from samestep import watch
from samestep.experiments.conformance import lab
from samestep.experiments.watch import Report
from samestep.experiments.watch.telling.report import UpdateReport

HERE = Path(__file__).parent / "watched"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@cache
def watched(package: str, *arguments: str, launched: bool = True) -> Report:
    try:
        version(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed: pip install -e '.[conformance]'")
    command = [*TORCHRUN] if launched else [sys.executable]
    report = watch(*command, str(HERE / arguments[0]), *arguments[1:], updates=3, timeout=600)
    assert report.verdict != "error", report
    return report


def weights(update: UpdateReport) -> list[float]:
    return [cell.weight or 0.0 for rank in update.cells for cell in rank]


def mean_of_means(update: UpdateReport) -> list[float]:
    return [1 / (2 * 3 * cell.n) for rank in update.cells for cell in rank]


def rank_means(update: UpdateReport) -> list[float]:
    return [1 / (2 * sum(each.n for each in rank)) for rank in update.cells for cell in rank]


def global_mean(update: UpdateReport) -> list[float]:
    return [1 / update.N for rank in update.cells for _ in rank]


RUNS = {
    "accelerate": (("accelerate", "with_accelerate.py"), mean_of_means, 1e-6),
    "trainer": (("transformers", "with_trainer.py"), global_mean, 1e-6),
    "trainer, average off": (
        ("transformers", "with_trainer.py", "average_tokens_across_devices=off"), rank_means, 1e-6,
    ),
    "trainer, recomputed": (("transformers", "with_trainer.py", "gradient_checkpointing=on"), global_mean, 1e-6),
    "trainer, bf16": (("transformers", "with_trainer.py", "bf16=on"), global_mean, 1e-3),
    "trl": (("trl", "with_trl.py"), global_mean, 1e-6),
    "trl, bf16": (("trl", "with_trl.py", "bf16"), global_mean, 1e-3),
    **{f"deepspeed {z}": (("deepspeed", "with_deepspeed.py", str(z)), mean_of_means, 1e-6) for z in range(4)},
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_every_update_of_a_framework_has_the_weights_that_are_found_by_hand(name: str) -> None:
    arguments, rule, tolerance = RUNS[name]
    report = watched(*arguments)
    assert len(report.updates) == (2 if "deepspeed" in name else 3)
    for update in report.updates:
        assert weights(update) == pytest.approx(rule(update), rel=tolerance), report


def test_lightning_makes_its_second_rank_itself_and_a_mean_of_means() -> None:
    report = watched("lightning", "with_lightning.py", launched=False)
    assert len(report.updates) == 3
    for update in report.updates:
        assert update.processes == 2
        assert weights(update) == pytest.approx(mean_of_means(update), rel=1e-6), report


def test_a_tail_of_accelerate_is_a_third_of_what_it_should_be() -> None:
    tail = watched("accelerate", "with_accelerate.py").updates[-1]
    assert [len(rank) for rank in tail.cells] == [1, 1]
    assert tail.factor == "1/K"


def test_the_trainer_is_right_in_its_tail_too_and_links_to_its_recipe() -> None:
    report = watched("transformers", "with_trainer.py")
    assert [update.verdict for update in report.updates] == ["same"] * 3
    assert report.recipes == ("conformance/transformers",)


def test_a_script_that_makes_its_own_ranks_is_watched_with_its_arguments() -> None:
    report = watched("torch", "spawns.py", "--lr", "0.1", launched=False)
    assert len(report.updates) == 2
    for update in report.updates:
        assert update.processes == 2
        assert weights(update) == pytest.approx(rank_means(update), rel=1e-6), report


PUBLIC = {
    "nanoGPT": (("public_nanogpt.py",), mean_of_means, "microbatch_equal"),
    "minGPT": (("public_mingpt.py",), global_mean, None),
    "minGPT-ddp": (("public_mingpt_ddp.py",), rank_means, "replica_equal"),
    "minGPT-ddp, amp": (("public_mingpt_ddp.py", "amp"), rank_means, "replica_equal"),
    "torchtune": (("public_torchtune.py",), global_mean, None),
    "torchtitan": (("public_torchtitan.py",), mean_of_means, "microbatch_equal"),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_loops_of_public_training_scripts_get_the_weights_that_are_found_by_hand(name: str) -> None:
    arguments, rule, cause = PUBLIC[name]
    report = watched("torch", *arguments, launched=name != "minGPT")
    assert len(report.updates) >= 2
    for update in report.updates:
        assert weights(update) == pytest.approx(rule(update), rel=1e-6), report
        assert update.cause == cause, report


@pytest.mark.parametrize("framework", ["torch_ddp", "torch_fsdp2", "accelerate", "transformers", "trl", "lightning"])
def test_watch_reads_the_coefficients_that_the_conformance_lab_solves_for(framework: str, tmp_path: Path) -> None:
    wanted = {"framework": [framework], "scenario": ["A", "B", "C", "D", "E"], "reader": "watch"}
    try:
        result = lab.run(tmp_path, wanted, lambda step, done: None)
    except lab.releases.CannotMeasureError as error:
        pytest.skip(str(error))
    (control,) = [each for each in result["controls"] if each["id"].startswith("watched-")]
    assert control["met"], control
    assert control["values"]["compared"] >= 10, control
