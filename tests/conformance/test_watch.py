"""Unmodified scripts of real frameworks, watched: exact weights. On demand: `pytest tests/conformance/test_watch.py`.

By hand: with n labels in a cell, P = 2 ranks and K = 3, a mean of means gives 1/(P·K·n), a mean over each rank's own
labels 1/(P·n_r), the global token mean 1/N; a last window of one microstep that is divided by K has 1/(P·K·n).

With the extra `conformance` (1.8 GB) it takes 8 minutes of one processor: 8 of the clock on two cores that others used
as well. DeepSpeed's operator is built first (5 minutes, once).
"""

import json
import os
import socket
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from samestep import watch
from samestep.experiments.conformance import lab
from samestep.experiments.conformance.frameworks import deepspeed
from samestep.experiments.registry import ROOT
from samestep.experiments.watch import Report
from samestep.experiments.watch.command import EXAMPLES
from samestep.experiments.watch.telling.report import UpdateReport

HERE = Path(__file__).parent / "watched"
Rows = list[list[int]]
"""n of every cell, a row for each rank."""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def installed(package: str) -> None:
    try:
        version(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed: pip install -e '.[conformance]'")


@cache
def operator() -> str:
    """Where DeepSpeed's operator is; built once, for two ranks that build it for minutes do not wait for each other."""
    if reason := deepspeed.unavailable(""):
        pytest.skip(reason)
    program = "from samestep.experiments.conformance.frameworks import deepspeed; deepspeed.prepare()"
    path = {**os.environ, "PYTHONPATH": str(ROOT / ".src")}
    subprocess.run([sys.executable, "-c", program], env=path, capture_output=True, check=True, timeout=900)
    return str(deepspeed.operators())


@cache
def watched(package: str, *arguments: str, launched: bool = True) -> Report:
    installed(package)
    command = [*TORCHRUN] if launched else [sys.executable]
    with pytest.MonkeyPatch.context() as patch:
        if package == "deepspeed":
            patch.setenv("TORCH_EXTENSIONS_DIR", operator())
        report = watch(*command, str(HERE / arguments[0]), *arguments[1:], updates=3, timeout=600)
    assert report.verdict != "error", report
    return report


def weights(update: UpdateReport) -> list[float]:
    return [cell.weight or 0.0 for rank in update.cells for cell in rank]


def mean_of_means(rows: Rows) -> list[float]:
    return [1 / (2 * 3 * n) for rank in rows for n in rank]


def rank_means(rows: Rows) -> list[float]:
    return [1 / (2 * sum(rank)) for rank in rows for _ in rank]


def global_mean(rows: Rows) -> list[float]:
    return [1 / sum(map(sum, rows)) for rank in rows for _ in rank]


def counts(update: UpdateReport) -> Rows:
    return [[cell.n for cell in rank] for rank in update.cells]


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
        assert weights(update) == pytest.approx(rule(counts(update)), rel=tolerance), report


def test_lightning_makes_its_second_rank_itself_and_a_mean_of_means() -> None:
    report = watched("lightning", "with_lightning.py", launched=False)
    assert len(report.updates) == 3
    for update in report.updates:
        assert update.processes == 2
        assert weights(update) == pytest.approx(mean_of_means(counts(update)), rel=1e-6), report


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
        assert weights(update) == pytest.approx(rank_means(counts(update)), rel=1e-6), report


CALLBACKS = {
    "accelerate": ("accelerate", "callback_accelerate.py", (), mean_of_means),
    "trainer": ("transformers", "callback_trainer.py", ("on",), global_mean),
    "trainer, average off": ("transformers", "callback_trainer.py", ("off",), rank_means),
    "lightning": ("lightning", "callback_lightning.py", (), mean_of_means),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_in_a_script_that_somebody_else_starts_sees_every_rank(name: str, tmp_path: Path) -> None:
    package, script, arguments, rule = CALLBACKS[name]
    installed(package)
    place = tmp_path / "report.json"
    launched = [] if package == "lightning" else TORCHRUN[1:]
    command = [sys.executable, *launched, str(HERE / script), str(place), *arguments]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / ".src"), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    updates = json.loads(place.read_text("utf-8"))["updates"]
    assert [update["processes"] for update in updates] == [2, 2, 2]
    for update in updates:
        rows = [[cell["n"] for cell in rank] for rank in update["cells"]]
        found = [cell["weight"] for rank in update["cells"] for cell in rank]
        assert found == pytest.approx(rule(rows), rel=1e-6), update


def test_ranks_of_two_hosts_meet_in_a_folder_and_end_with_one_code(tmp_path: Path) -> None:
    """Two launchers on one machine that know of each other as hosts do: by a rendezvous alone."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place, folder = tmp_path / "report.json", tmp_path / "shared"
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "two-hosts"]
    watching = ["-m", "samestep.experiments.watch", "--folder", str(folder), "--json", str(place)]
    command = [*TORCHRUN[:3], "--nnodes", "2", "--nproc-per-node", "1", *meet, *watching, str(EXAMPLES / "ddp.py")]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / ".src"), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    hosts = [subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        assert [host.wait(200) for host in hosts] == [1, 1]
    finally:
        for host in hosts:
            host.kill()
    report = json.loads(place.read_text("utf-8"))
    assert (report["cause"], [update["processes"] for update in report["updates"]]) == ("microbatch_equal", [2, 2])
    for update in report["updates"]:
        rows = [[cell["n"] for cell in rank] for rank in update["cells"]]
        found = [cell["weight"] for rank in update["cells"] for cell in rank]
        assert found == pytest.approx(mean_of_means(rows), rel=1e-6)
    assert list(folder.iterdir()) == []


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
        assert weights(update) == pytest.approx(rule(counts(update)), rel=1e-6), report
        assert update.cause == cause, report


READ = {
    **dict.fromkeys(("torch_ddp", "torch_fsdp2", "accelerate", "transformers", "trl", "lightning"), ("ABCDE", 10)),
    "deepspeed": ("AB", 11),
    "trl_grpo": ("SGH", 14),
}
"""Framework → scenarios, and how many rows at least are compared."""


def second_reading(framework: str, scenarios: str, folder: Path) -> Any:
    try:
        wanted = {"framework": [framework], "scenario": [*scenarios], "reader": "watch"}
        return lab.run(folder, wanted, lambda step, done: None)
    except lab.releases.CannotMeasureError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("framework", READ)
def test_watch_reads_the_coefficients_that_the_conformance_lab_solves_for(framework: str, tmp_path: Path) -> None:
    scenarios, rows = READ[framework]
    result = second_reading(framework, scenarios, tmp_path)
    (control,) = [each for each in result["controls"] if each["id"].startswith("watched-")]
    assert control["met"], control
    assert control["values"]["compared"] >= rows, control


@pytest.mark.parametrize(
    ("framework", "scenarios", "why"),
    [
        ("torch_pipelining", "M", "pipeline stages"),
        ("trl_preference", "QR", "counts another number of them"),
    ],
)
def test_what_watch_cannot_read_is_refused_with_its_reason(
    framework: str, scenarios: str, why: str, tmp_path: Path
) -> None:
    result = second_reading(framework, scenarios, tmp_path)
    assert not any(each["id"].startswith("watched-") for each in result["controls"])
    assert [why in each["reason"] for each in result["not_measured"]] == [True]
