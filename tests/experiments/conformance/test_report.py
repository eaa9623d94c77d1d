"""A report stands on published rows and on a script that needs the framework alone, and does what it says."""

import contextlib
import os
import re
import socket
import sys
from functools import cache
from pathlib import Path

import pytest

from samestep.app.evidence.bags import Library
from samestep.experiments import __main__ as command
from samestep.experiments.conformance import report
from samestep.experiments.conformance.families import FAMILIES
from samestep.experiments.conformance.frameworks import FRAMEWORKS
from samestep.experiments.conformance.report import SURPRISES
from tests import warm
from tests.kit import CONTENT


@pytest.mark.parametrize("name", SURPRISES)
def test_a_report_has_its_versions_numbers_and_a_script_without_any_import_of_ours(name: str) -> None:
    text = report.written(name)
    assert SURPRISES[name].title in text
    assert SURPRISES[name].url in text
    assert "samestep" not in text
    for framework, *_, last in SURPRISES[name].rows:
        version = last if "." in last else version_of(framework)
        assert f"{FRAMEWORKS[framework].packages[0]} {version}" in text
        assert f"({version})" in text
    compile(report.script(name), name, "exec")
    assert text.count("| ") > 4 * len(SURPRISES[name].rows)


def version_of(framework: str) -> str:
    return next(row["version"] for row in rows() if row["framework"] == framework)


@cache
def rows() -> list[dict[str, str]]:
    found: list[dict[str, str]] = Library(CONTENT / "evidence").bag("conformance").result["rows"]  # type: ignore[assignment]
    return found


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the scripts that need torch alone print, one after the other on two processes: importing costs most."""
    folder = tmp_path_factory.mktemp("scripts")
    names = [name for name, surprise in SURPRISES.items() if surprise.packages == ("torch",)]
    for name in names:
        (folder / f"{name}.py").write_text(report.script(name))
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in names]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        ports = [probe.getsockname()[1] for probe in probes]  # each its own: the store of the last one may still listen
    program = folder / "one_after_the_other.py"
    program.write_text(f"""import os, runpy
for name, port in {list(zip(names, ports, strict=True))}:
    os.environ["MASTER_PORT"] = str(port)
    runpy.run_path(f"{{name}}.py", run_name="__main__")""")
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks, logs = [], [folder / f"rank{rank}.log" for rank in range(2)]
    try:
        for rank, log in enumerate(logs):
            environment = {**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, str(program)]
            with log.open("wb") as stream:
                ranks.append(warm.starter().Popen(command, cwd=folder, env=environment, stdout=stream, stderr=stream))
        codes = [rank.wait(120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    printed = "".join(log.read_text("utf-8") for log in logs)
    assert codes == [0, 0], printed
    return printed


def test_what_a_script_prints_is_what_was_published(said: str) -> None:
    for setting, printed in (("gpipe_sum_over_total", "defaults"), ("gpipe_recipe", "'scale_grads': False")):
        line = next(line for line in said.splitlines() if line.startswith((printed, f"{{{printed}")))
        (published,) = [row["coefficients"] for row in rows() if row["setting"] == setting]
        assert [float(each) for each in re.findall(r"\d+\.\d+", line)] == pytest.approx(published[0], abs=1e-5)


def test_a_norm_that_the_plan_leaves_out_differs_on_every_rank(said: str) -> None:
    named, plain = (re.findall(rf"{words}, rank \d: ([\d.]+) x", said) for words in ("in the plan", "left out"))
    assert named == ["1.0000", "1.0000"]
    assert len(set(plain)) == 2
    assert sum(map(float, plain)) == pytest.approx(1, abs=1e-3)  # parts of one gradient


def test_the_command_writes_a_file_and_lists_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["report", "torch_pipelining", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "torch_pipelining.md").read_text().startswith("# A pipeline schedule")
    assert command.main(["report"]) == 0
    assert set(SURPRISES) <= set(re.findall(r"^\w+", capsys.readouterr().out, re.M))
    assert command.main(["report", "nothing"]) == 2
    assert "there is no report nothing" in capsys.readouterr().err


def test_every_package_of_a_report_is_one_that_a_row_names() -> None:
    known = {pin.partition("==")[0] for family in FAMILIES.values() for pin in (*family.pins, *family.alone)}
    known |= {package for framework in FRAMEWORKS.values() for package in framework.packages}
    for surprise in SURPRISES.values():
        assert set(surprise.packages) <= known
        assert bool(surprise.packages) != bool(surprise.family in FAMILIES)
