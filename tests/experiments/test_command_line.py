"""The command line: what it refuses before any process starts, and that nothing of it needs torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from samestep.app.evidence.bags import Row
from samestep.experiments import __main__ as lab
from samestep.experiments.commands import runs
from samestep.experiments.commands.runs import print_result
from samestep.experiments.ranks.launch import Step
from samestep.experiments.ranks.progress import Progress
from samestep.experiments.registry import ROOT, experiments

EXPERIMENTS = (
    "audit_walkthrough",
    "clip_ownership",
    "conformance",
    "fsdp_timeline",
    "gradient_scaling",
    "info_nce",
    "other_terms",
    "train_tiny",
    "transformer_update",
)


def test_the_experiments_are_found_without_importing_them() -> None:
    known = experiments()
    assert set(EXPERIMENTS) <= set(known)
    for experiment in known.values():
        assert experiment.question["zh"]
        assert experiment.question["en"].endswith("?")
        assert experiment.processes >= 2
        tests = ROOT / "tests" / "experiments"
        assert (tests / f"test_{experiment.name}.py").is_file() or (tests / experiment.name).is_dir()


def test_the_sources_of_an_experiment_are_what_it_imports_here() -> None:
    names = {place.relative_to(ROOT).as_posix() for place in experiments()["transformer_update"].sources}
    assert {
        "experiments/transformer_update/__init__.py",
        "experiments/transformer_update/paths.py",
        "experiments/train_tiny.py",
        "experiments/tiny/tiny_transformer.py",
        "experiments/tiny/tokenizer.py",
        "experiments/ranks/world.py",
    } <= names
    assert not any("publish" in name or "verify" in name for name in names)  # they change no number


def test_the_sources_of_a_package_are_all_its_modules_and_what_they_import_here() -> None:
    names = {place.relative_to(ROOT).as_posix() for place in experiments()["conformance"].sources}
    assert {
        "experiments/conformance/__init__.py",
        "experiments/conformance/classifier.py",
        "experiments/conformance/frameworks/torch_ddp.py",
        "experiments/results.py",
    } <= names
    assert "experiments/registry.py" not in names
    assert "experiments/conformance/classifier.py" not in {
        place.relative_to(ROOT).as_posix() for place in experiments()["info_nce"].sources
    }


def test_listing_and_verifying_leave_torch_alone() -> None:
    code = (
        "import sys; from samestep.experiments.__main__ import main\n"
        "main(['list']); main(['verify']); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run"], "name the experiments, or say --all"),
        (["run", "info_nce", "--all"], "name the experiments, or say --all"),
        (["run", "nonsense"], "there is no experiment nonsense"),
        (["verify", "info_nce", "nonsense"], "there is no experiment nonsense"),
        (["run", "transformer_update", "--weights", "/nonexistent"], "holds no weights.safetensors"),
        (["train", "--corpus", "/nonexistent"], "--freeze-corpus"),
        (["run", "info_nce", "--framework", "trl"], "--framework is for conformance"),
        (["run", "conformance", "--version", "nonsense==1"], "no release of a framework"),
        (["run", "conformance", "--processes", "4"], "always runs 2 processes"),
        (["watch", "train.py", "--html", "report.html"], "--html stands behind train.py and would be given to it"),
        (["watch", "torchrun", "train.py", "--updates=3"], "--updates stands behind torchrun"),
    ],
)
def test_what_cannot_run_says_why_and_ends_with_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab.main(arguments) == 2
    assert reason in capsys.readouterr().err


def test_what_runs_long_gets_processes_of_its_own_and_training_is_not_part_of_all() -> None:
    launches = runs.plan(runs.chosen([], True, training=False), None)
    assert [[each.name for each in launch.experiments] for launch in launches] == [
        ["clip_ownership", "fsdp_timeline", "gradient_scaling", "info_nce", "mesh", "no_sync_timeline", "other_terms"],
        ["audit_walkthrough"],
        ["conformance"],
        ["watch_walkthrough"],
        ["transformer_update"],
    ]
    assert [launch.processes for launch in launches] == [4, 2, 2, 2, 2]
    ordered = [each.name for each in runs.chosen([], True, training=True)]
    assert ordered.index("train_tiny") < ordered.index("transformer_update")  # it publishes what the other reads


def test_progress_is_a_line_a_step_and_a_tenth(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream, Progress(stream) as progress:
        progress(Step(0, "import torch", None))
        progress(Step(1, "import torch", None))
        for k in range(1, 101):
            progress(Step(0, f"step {k}/100, loss 1.000", k / 100))
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == "· import torch"
    assert len(lines) == 1 + 11


def test_a_verdict_line_for_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    row: Row = {
        "id": "case-path",
        "case": "case",
        "path": "path",
        "title": {"zh": "", "en": ""},
        "expectation": "differs",
        "expected": {"loss": "undefined", "gradient": "differs"},
        "max_abs_difference": {"loss": None, "gradient": 0.5},
        "values": {},
        "met": True,
    }
    result = {"name": "x", "question": {"en": "?"}, "rows": [row, {**row, "met": False}], "controls": []}
    result["not_measured"] = [{"framework": "trl", "version": "", "setting": "", "reason": "not installed: trl"}]
    print_result({**result, "verdict": "fails"})  # type: ignore[typeddict-item]
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["ok", "case-path", "differs", "loss", "undefined", "gradient", "5.0e-01"]
    assert lines[3].startswith("  FAIL case-path")
    assert lines[4].split() == ["--", "not", "measured:", "trl:", "not", "installed:", "trl"]
    assert lines[5] == "x fails: 1 of 2 checks hold"
