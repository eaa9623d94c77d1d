"""Publishing is atomic, and refuses what must not become evidence."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import bagit
import pytest

from samestep.app.evidence.bags import Library, Result, Row
from samestep.experiments.commands import publish
from samestep.experiments.registry import ROOT, experiments


def finished(folder: Path, size: int = 10_000) -> Path:
    """What a run leaves: a result and a file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text('{"verdict": "holds"}\n')
    (folder / "tensors.safetensors").write_bytes(random.Random(size).randbytes(size))
    return folder


def result(verdict: str = "holds") -> Result:
    said = {"verdict": verdict, "processes": 2, "setup": {"seed": 5}, "command": "…", "question": {"en": "?"}}
    return cast(Result, {**said, "rows": []})


def put(made: Path, folder: Path, verdict: str = "holds") -> Path:
    experiment = experiments()["clip_ownership"]
    started = datetime(2026, 1, 2, tzinfo=UTC)
    return publish.publish(experiment, made, result(verdict), folder, commit="0" * 40, started=started)


def test_a_bag_is_valid_for_others_too(tmp_path: Path) -> None:
    bag = put(finished(tmp_path / "made"), tmp_path / "evidence")
    assert bagit.Bag(str(bag)).is_valid()
    check = ["sha256sum", "--check", "--strict", "manifest-sha256.txt", "tagmanifest-sha256.txt"]
    assert subprocess.run(check, cwd=bag, capture_output=True, check=False).returncode == 0
    assert Library(tmp_path / "evidence").bag("clip_ownership").whole


def test_provenance_names_files_sources_commit_and_packages_but_nothing_of_this_machine(tmp_path: Path) -> None:
    bag = put(finished(tmp_path / "made"), tmp_path / "evidence")
    text = (bag / "data" / "provenance.json").read_text()
    assert str(tmp_path) not in text
    assert str(ROOT) not in text
    assert os.uname().nodename not in text or os.uname().nodename == "localhost"
    statement = json.loads(text)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert {subject["name"] for subject in statement["subject"]} == {"data/result.json", "data/tensors.safetensors"}
    build = statement["predicate"]["buildDefinition"]
    assert build["externalParameters"] == {"experiment": "clip_ownership", "processes": 2, "seed": 5}
    names = {each.get("name") for each in build["resolvedDependencies"]}
    assert {"commit", "experiments/clip_ownership.py", "experiments/results.py", "experiments/ranks/world.py"} <= names
    assert any(each.get("uri", "").startswith("pkg:pypi/torch@") for each in build["resolvedDependencies"])


def test_a_second_publication_replaces_the_first_and_leaves_nothing_behind(tmp_path: Path) -> None:
    put(finished(tmp_path / "made", 10), tmp_path / "evidence")
    put(finished(tmp_path / "made", 20), tmp_path / "evidence")
    assert [place.name for place in (tmp_path / "evidence").iterdir()] == ["clip_ownership"]
    bag = Library(tmp_path / "evidence").bag("clip_ownership")
    assert bag.whole
    assert bag.file("data/tensors.safetensors").size == 20


@pytest.mark.parametrize("at_once", [True, False], ids=["exchanged at once", "in two steps"])
def test_a_publication_killed_at_any_moment_leaves_a_whole_bag(tmp_path: Path, at_once: bool) -> None:
    evidence, chance = tmp_path / "evidence", random.Random(1)
    put(finished(tmp_path / "made"), evidence)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from test_publish import publish, put\n"
        f"{'' if at_once else 'publish._swap = lambda one, other: False'}\n"
        "print('begin', flush=True)\n"
        "while True: put(Path(sys.argv[2]), Path(sys.argv[3]))"
    )
    arguments = [str(Path(__file__).parent), str(tmp_path / "made"), str(evidence)]
    library = Library(evidence)
    for _ in range(8):
        child = subprocess.Popen([sys.executable, "-c", program, *arguments], cwd=ROOT, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.1))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        if not at_once:
            publish.tidy(evidence, "clip_ownership")  # what the next publication begins with
        assert library.bag("clip_ownership").whole
    put(tmp_path / "made", evidence)
    assert [place.name for place in evidence.iterdir()] == ["clip_ownership"]  # leftovers are cleared


def test_without_an_atomic_exchange_an_interrupted_replacement_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = tmp_path / "evidence"
    put(finished(tmp_path / "made", 10), evidence)
    monkeypatch.setattr(publish, "_swap", lambda one, other: False)
    put(finished(tmp_path / "made", 20), evidence)
    assert Library(evidence).bag("clip_ownership").file("data/tensors.safetensors").size == 20
    (evidence / "clip_ownership").rename(evidence / ".clip_ownership.old")  # killed between the two steps
    publish.tidy(evidence, "clip_ownership")
    assert Library(evidence).bag("clip_ownership").file("data/tensors.safetensors").size == 20


def test_a_full_disk_is_said_in_one_line_and_leaves_the_old_bag_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = tmp_path / "evidence"
    put(finished(tmp_path / "made", 10), evidence)

    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publish, "_flush", full)
    with pytest.raises(publish.RefusedError, match="No space left on device"):
        put(finished(tmp_path / "made", 20), evidence)
    assert [place.name for place in evidence.iterdir()] == ["clip_ownership"]
    assert Library(evidence).bag("clip_ownership").file("data/tensors.safetensors").size == 10


def test_a_failed_run_is_not_published(tmp_path: Path) -> None:
    with pytest.raises(publish.RefusedError, match="a failed run"):
        put(finished(tmp_path / "made"), tmp_path / "evidence", verdict="fails")
    assert not (tmp_path / "evidence").exists()


def test_a_run_that_could_not_measure_everything_is_not_published(tmp_path: Path) -> None:
    partial = result()
    partial["not_measured"] = [{"framework": "trl", "version": "", "setting": "", "reason": "not installed: trl"}]
    with pytest.raises(publish.RefusedError, match="trl : not installed: trl"):
        publish.publish(
            experiments()["conformance"],
            finished(tmp_path / "made"),
            partial,
            tmp_path / "evidence",
            commit="0" * 40,
            started=datetime(2026, 1, 2, tzinfo=UTC),
        )
    assert not (tmp_path / "evidence").exists()


def test_provenance_names_every_version_of_a_framework_that_rows_were_measured_with(tmp_path: Path) -> None:
    measured = result()
    measured["rows"] = cast(
        list[Row], [{"packages": {"transformers": release, "torch": "2.13.0"}} for release in ("5.24.0", "4.50.3")]
    )
    made = finished(tmp_path / "bag" / "data").parent
    started = datetime(2026, 1, 2, tzinfo=UTC)
    statement = publish.provenance(
        experiments()["conformance"], made, measured, commit="0" * 40, started=started, inputs=()
    )
    resolved = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    packages = [each["uri"] for each in resolved if each.get("uri", "").startswith("pkg:pypi/")]
    assert {"pkg:pypi/transformers@5.24.0", "pkg:pypi/transformers@4.50.3"} <= set(packages)
    assert len([each for each in packages if each.startswith("pkg:pypi/torch@")]) == 1


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small repository with one commit and one piece of evidence."""
    root = tmp_path / "checkout"
    (root / "content" / "evidence").mkdir(parents=True)
    (root / "code.py").write_text("x = 1\n")
    (root / "content" / "evidence" / "file").write_text("old\n")
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", "-C", str(root), *command], check=True, capture_output=True)
    return root


def test_a_clean_checkout_gives_its_commit_even_with_new_evidence(checkout: Path) -> None:
    (checkout / "content" / "evidence" / "file").write_text("new\n")
    (checkout / "content" / "evidence" / "another").write_text("new\n")
    assert len(publish.clean_commit(checkout)) == 40


@pytest.mark.parametrize("change", ["code.py", "new.py", "content/new.md"])
def test_a_dirty_checkout_is_refused_and_the_file_named(checkout: Path, change: str) -> None:
    (checkout / change).write_text("x = 2\n")
    with pytest.raises(publish.RefusedError, match=change.replace(".", r"\.")):
        publish.clean_commit(checkout)


def test_a_place_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(publish.RefusedError, match="no checkout"):
        publish.clean_commit(tmp_path)
