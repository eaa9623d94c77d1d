"""The command line on real scripts: what it starts, how it ends, and what it says when something goes wrong."""

import contextlib
import json
import os
import pickle
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from samestep import watch
from samestep.experiments.__main__ import main
from samestep.experiments.audit.failure import Failure
from samestep.experiments.watch import __main__ as module, rank, records
from samestep.experiments.watch.command import EXAMPLES, examples
from samestep.experiments.watch.joined.assembling import assemble
from samestep.experiments.watch.settings import Settings, SettingsError
from tests.experiments.watch.conftest import HERE, environment

SCRIPTS = HERE / "scripts"
LAB = [sys.executable, "-m", "samestep.experiments", "watch"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@dataclass(frozen=True)
class Ran:
    """A command line that has ended; `report`: the JSON that it was asked for."""

    code: int
    out: str
    err: str
    report: Any


def commands(folder: Path) -> Mapping[str, list[str]]:
    """All at once: importing torch is most of the time that they take."""

    def lab(name: str, *rest: str) -> list[str]:
        return [*LAB, "--json", str(folder / f"{name}.json"), *rest]

    def script(name: str) -> str:
        return str(SCRIPTS / f"{name}.py")

    return {
        "torchrun": lab("torchrun", "--html", str(folder / "torchrun.html"), "--", *TORCHRUN, str(EXAMPLES / "ddp.py")),
        "raises": lab("raises", script("raises")),
        "sticks": lab("sticks", "--timeout", "6", script("sticks")),
        "goes_on": lab("goes_on", "--stop", "--processes", "1", script("goes_on")),
    }


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Ran]:
    folder = tmp_path_factory.mktemp("command")

    def run(name: str, command: list[str]) -> Ran:
        done = subprocess.run(
            command, cwd=folder, env=environment(LANG="C"), capture_output=True, text=True, timeout=200
        )
        place = folder / f"{name}.json"
        report = json.loads(place.read_text("utf-8")) if place.exists() else None
        return Ran(done.returncode, done.stdout, done.stderr, report)

    with ThreadPoolExecutor(4) as pool:
        started = {name: pool.submit(run, name, command) for name, command in commands(folder).items()}
    return {name: future.result() for name, future in started.items()}


def test_an_unmodified_script_under_torchrun_is_told_what_its_tokens_weigh(ran: Mapping[str, Ran]) -> None:
    done = ran["torchrun"]
    assert done.code == 1, done.err
    assert (done.report["verdict"], done.report["cause"]) == ("different", "microbatch_equal")
    for update in done.report["updates"]:
        for row in update["cells"]:
            for cell in row:
                assert cell["weight"] == pytest.approx(1 / (2 * 3 * cell["n"]), rel=1e-6)
                assert cell["share"] == pytest.approx(update["N"] / (6 * cell["n"]), rel=1e-6)
    assert "times its share" in done.out
    assert "loss ddp.py:" in done.out


def test_an_exception_is_the_readers_own_with_its_rank_and_code_2(ran: Mapping[str, Ran]) -> None:
    done = ran["raises"]
    assert done.code == 2
    assert done.report["failure"]["rank"] == 1
    assert "LookupError: the shard of rank 1 is missing" in done.err
    own = done.report["failure"]["own_traceback"]
    assert 'raises.py", line' in own
    assert "in update" in own
    assert "experiments/watch/" not in own.replace("tests/experiments/watch", "")


def test_ranks_that_wait_for_each_other_are_ended_and_the_one_to_blame_is_named(ran: Mapping[str, Ran]) -> None:
    done = ran["sticks"]
    assert done.code == 2
    assert done.report["failure"]["rank"] == 1
    assert "nothing has moved for 6 s" in done.report["failure"]["message"]
    assert "sticks.py" in done.report["failure"]["log"]
    assert "wait_for_ever()" in done.report["failure"]["log"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([sys.executable, str(SCRIPTS / "no_training.py")], "no backward of torch"),
        (["a-command-that-is-not-there"], "No such file"),
    ],
)
def test_what_trains_nothing_could_not_be_watched(
    command: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "report.json"
    assert main(["watch", "--json", str(place), "--", *command]) == 2
    assert json.loads(place.read_text("utf-8"))["verdict"] == "error"
    assert message in capfd.readouterr().err


def test_a_run_without_end_is_ended_once_it_has_been_seen(ran: Mapping[str, Ran]) -> None:
    assert (ran["goes_on"].code, ran["goes_on"].report["verdict"]) == (0, "same")
    assert len(ran["goes_on"].report["updates"]) == 2


Alone = Callable[[Callable[[], object], list[str]], int]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Alone:
    """`alone(do, argv)`: what the only process of a run does, done in this one; the code that it ends with."""

    def ended(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(rank, "end", ended)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    monkeypatch.setitem(sys.modules, "common", None)
    monkeypatch.delitem(sys.modules, "common")  # and what is imported under this name is taken away again

    def run(do: Callable[[], object], arguments: list[str]) -> int:
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as end:
            do()
        return int(str(end.value.code))

    return run


def test_a_block_in_a_script_is_watched_and_its_clip_is_not_in_the_weights(alone: Alone, tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    script = str(SCRIPTS / "watches_itself.py")
    assert alone(lambda: runpy.run_path(script, run_name="__main__"), [script, str(place)]) == 0
    report = json.loads(place.read_text("utf-8"))
    assert (report["verdict"], len(report["updates"])) == ("same", 2)
    assert all(update["clip"] < 0.9 for update in report["updates"])
    assert list(tmp_path.glob("samestep-watch-*")) == []


def test_a_rank_of_somebody_elses_launch_reports_by_itself(alone: Alone, tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    assert alone(module.main, ["watch", "--json", str(place), str(SCRIPTS / "alone.py")]) == 1
    report = json.loads(place.read_text("utf-8"))
    assert (report["cause"], report["factor"], report["script"]) == ("scale", "K", "alone.py")
    assert list(tmp_path.glob("samestep-watch-*")) == []


def test_a_folder_that_is_used_again_loses_what_the_same_rank_and_ranks_that_are_no_more_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("0-7.watch", "1-8.watch", "2-9.watch", "3-10.watch"):
        (tmp_path / name).touch()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert rank.opened(tmp_path) == tmp_path
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0-7.watch", "2-9.watch"]


def test_a_folder_goes_also_while_somebody_writes_into_it(tmp_path: Path) -> None:
    folder = tmp_path / "common"
    folder.mkdir()

    def pulse() -> None:
        while folder.is_dir():
            with contextlib.suppress(OSError):
                (folder / "1.alive").touch()

    pulses = threading.Thread(target=pulse, daemon=True)
    pulses.start()
    while not any(folder.iterdir()):
        time.sleep(0.01)
    rank.remove(folder)
    pulses.join(5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", examples())
def test_an_example_is_printed_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--example", name]) == 0
    assert capsys.readouterr().out == (EXAMPLES / f"{name}.py").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "watch needs a COMMAND"),
        (["--updates", "0", "--", "train.py"], "updates must be 1 or more, not 0"),
        (["--processes", "0", "train.py"], "processes must be 1 or more"),
        (["--tensors", "0", "train.py"], "tensors must be 1 or more"),
        (["--timeout", "0", "train.py"], "timeout must be more than 0"),
    ],
)
def test_an_option_that_cannot_be_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_processes_without_a_group_are_not_taken_for_ranks_of_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(**versions: str) -> str:
        headers = [records.Header(number, 2, number, 0.0, "alone.py", versions) for number in range(2)]
        monkeypatch.setattr(records, "ranks", lambda folder: {each.rank: records.RankLog(each) for each in headers})
        return (assemble(Path("none"), "tokens").refusal or {"en": ""})["en"]

    assert "--processes 1" in refusal()
    assert refusal(backend="gloo") == ""


def test_settings_are_checked_in_python_too() -> None:
    with pytest.raises(SettingsError, match="objective must be one of"):
        watch("train.py", objective="words")
    assert Settings().updates == 2


@pytest.mark.parametrize("killed", [True, False])
def test_a_rank_that_is_gone_without_a_word_is_blamed_before_those_that_lost_it(killed: bool, tmp_path: Path) -> None:
    lost = records.Failure("RuntimeError: Connection closed by peer", "…", 7.0)
    for number, messages in ((0, [lost, records.Done(ended=True)]), (1, [])):
        header = records.Header(number, 2, 10 + number, 1.0, "train.py", {})
        data = b"".join(map(pickle.dumps, (header, *messages)))
        (tmp_path / f"{number}-{header.pid}{records.SUFFIX}").write_bytes(data)
    told = Failure("was killed by SIGKILL", 1) if killed else Failure("ended with code 1")
    failure = assemble(tmp_path, "tokens", failure=told).failure
    assert failure is not None
    assert (failure.rank, "killed by SIGKILL" in failure.message) == (1, killed)


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_and_one_that_it_has_started_itself_agree_on_a_folder(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Lightning's first rank starts the others: what is the parent of one is the other itself."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    parents, found = {0: 11, 1: os.getpid()}, {}
    for number in (first, 1 - first):
        monkeypatch.setenv("RANK", str(number))
        monkeypatch.setattr(os, "getppid", lambda number=number: parents[number])
        found[number] = rank.common_folder()
        found[number].mkdir(parents=True, exist_ok=True)
    assert found[0].samefile(found[1])
    assert not found[0].samefile(rank.opened(rank.common_folder(1)))  # where the next block of the script is watched
