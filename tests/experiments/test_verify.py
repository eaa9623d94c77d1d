"""Published evidence from end to end in a checkout of its own: publish, verify, repeat, and every kind of damage."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from samestep.app.evidence.bags import Library, sha256_of
from samestep.experiments.commands import verify
from samestep.experiments.commands.publish import write_tags
from samestep.experiments.registry import ROOT, experiments

NAME = "clip_ownership"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, committed, in which the quickest experiment was published by the command line."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("app", "experiments", ".src"):
        shutil.copytree(ROOT / name, root / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "content" / "evidence").mkdir(parents=True)
    (root / ".gitignore").write_text("__pycache__/\n")
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "sources"]):
        subprocess.run(["git", "-C", str(root), *command], check=True, capture_output=True)
    done = lab(root, "publish", NAME)
    assert done.returncode == 0, done.stdout + done.stderr
    return root


def lab(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "experiments", *arguments]
    return subprocess.run(command, cwd=root, env=using(root), capture_output=True, text=True, timeout=150)


def using(root: Path) -> dict[str, str]:
    """An environment in which the package is that checkout's, not the one that is installed."""
    return {**os.environ, "PYTHONPATH": str(root / ".src")}


@pytest.fixture
def bag(checkout: Path) -> Iterator[Path]:
    """The published bag, put back afterwards as it was."""
    place, safe = checkout / "content" / "evidence" / NAME, checkout.parent / "safe"
    shutil.copytree(place, safe)
    yield place
    shutil.rmtree(place)
    safe.rename(place)


def found(bag: Path) -> list[str]:
    return list(verify.problems(Library(bag.parent).bag(NAME), experiments()[NAME]))


def test_verify_passes_in_seconds_without_torch(checkout: Path) -> None:
    program = (
        "import sys; from samestep.experiments.__main__ import main\n"
        f"code = main(['verify', '{NAME}']); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    began = time.monotonic()
    command, here = [sys.executable, "-c", program], using(checkout)
    done = subprocess.run(command, cwd=checkout, env=here, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"ok   {NAME}: ")
    assert time.monotonic() - began < 5


def test_a_repeated_run_is_bit_identical_here(checkout: Path) -> None:
    done = lab(checkout, "verify", NAME, "--rerun")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{NAME} again: bit-identical" in done.stdout


def test_an_experiment_without_evidence_fails_verification(checkout: Path) -> None:
    done = lab(checkout, "verify")
    assert done.returncode == 1
    assert "FAIL info_nce: not published" in done.stdout


def test_list_tells_what_is_current(checkout: Path) -> None:
    done = lab(checkout, "list")
    assert done.returncode == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if not line.startswith(" ")}
    assert lines[NAME].endswith("current")
    assert lines["info_nce"].endswith("not published")


def test_a_whole_bag_has_no_problem(bag: Path) -> None:
    assert found(bag) == []


def test_a_flipped_bit_is_found(bag: Path) -> None:
    place = bag / "data" / "result.json"
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 1
    place.write_bytes(content)
    assert len(found(bag)) == 1
    assert found(bag)[0].startswith("data/result.json: changed: promised SHA-256 ")


@pytest.mark.parametrize("name", ["data/result.json", "data/provenance.json", "bagit.txt", "manifest-sha256.txt"])
def test_a_missing_file_is_found(bag: Path, name: str) -> None:
    (bag / name).unlink()
    assert any(problem.startswith(f"{name}: missing") for problem in found(bag))


@pytest.mark.parametrize("name", ["data/extra.bin", "extra.txt"])
def test_an_extra_file_is_found(bag: Path, name: str) -> None:
    (bag / name).write_text("x")
    assert [problem.partition(" (")[0] for problem in found(bag)] == [f"{name}: not in the manifest"]


def rewrite(bag: Path, change: Callable[[dict[str, Any]], None], name: str = "result.json") -> None:
    """Change a file and make all digests fit again, as a careful forger would."""
    place = bag / "data" / name
    content = json.loads(place.read_text("utf-8"))
    change(content)
    place.write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    statement = json.loads((bag / "data" / "provenance.json").read_text("utf-8"))
    for subject in statement["subject"]:
        subject["digest"]["sha256"] = sha256_of(bag / subject["name"])
    (bag / "data" / "provenance.json").write_text(json.dumps(statement), "utf-8")
    write_tags(bag, "?")


def test_a_verdict_that_does_not_follow_from_its_numbers_is_found(bag: Path) -> None:
    def forge(result: dict[str, Any]) -> None:
        result["rows"][0]["max_abs_difference"]["norm"] = 1e-3

    rewrite(bag, forge)
    assert found(bag) == ["data/result.json: row shards-global-owner does not do what it was expected to do"]


def test_numbers_that_the_calculator_does_not_give_are_found(bag: Path) -> None:
    def forge(result: dict[str, Any]) -> None:
        result["rows"][0]["values"]["norm"] = 5.5

    rewrite(bag, forge)
    assert found(bag) == ["data/result.json: row shards-global-owner differs from today's calculator by 0.5"]


def test_a_source_that_changed_since_makes_evidence_stale(bag: Path) -> None:
    def forge(statement: dict[str, Any]) -> None:
        sources = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
        changed = next(each for each in sources if each.get("name") == "experiments/ranks/world.py")
        changed["digest"]["sha256"] = "0" * 64
        gone = next(each for each in sources if each.get("name") == "experiments/results.py")
        gone["name"] = "experiments/removed.py"

    rewrite(bag, forge, "provenance.json")
    assert sorted(found(bag)) == [
        "stale: experiments/ranks/world.py has changed",
        "stale: experiments/removed.py is gone",
        "stale: experiments/results.py is new",
    ]


def test_a_repeated_run_elsewhere_gives_its_largest_difference(bag: Path, tmp_path: Path) -> None:
    def shift(by: float) -> verify.Comparison:
        result = json.loads((bag / "data" / "result.json").read_text("utf-8"))
        result["rows"][0]["values"]["coefficient"] += by
        (tmp_path / "result.json").write_text(json.dumps(result), "utf-8")
        return verify.compare(Library(bag.parent).bag(NAME), tmp_path)

    assert str(shift(0.0)) == "bit-identical"
    near = shift(3e-13)
    assert near.holds
    assert "within tolerance (largest difference 3e-13 at rows.shards-global-owner.values.coefficient" in str(near)
    far = shift(1e-3)
    assert not far.holds
    assert "rows.shards-global-owner.values.coefficient differs by 0.001" in str(far)


def test_a_repeated_run_with_other_files_or_words_is_different(bag: Path, tmp_path: Path) -> None:
    result = json.loads((bag / "data" / "result.json").read_text("utf-8"))
    result["rows"][0]["values"]["decision"] = ["skip", "update"]
    (tmp_path / "result.json").write_text(json.dumps(result), "utf-8")
    (tmp_path / "more.safetensors").write_bytes(b"")
    comparison = verify.compare(Library(bag.parent).bag(NAME), tmp_path)
    assert not comparison.holds
    assert "more.safetensors is in one of the two runs only" in str(comparison)
    assert "rows.shards-global-owner.values.decision.0 is not the same" in str(comparison)
