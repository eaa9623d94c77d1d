"""The command line of the audit, without starting a process."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from samestep.experiments.__main__ import main
from samestep.experiments.audit import Report, audit_many, command
from samestep.experiments.audit.failure import Failure
from samestep.experiments.audit.settings import SettingsError
from samestep.experiments.audit.telling.report import PlanReport, Stage, as_json, failed
from samestep.experiments.registry import ROOT


def test_an_example_is_printed_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--example"]) == 0
    assert capsys.readouterr().out == (command.EXAMPLES / "ddp.py").read_text("utf-8")


def test_without_a_file_the_command_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit"]) == 2
    assert "--example" in capsys.readouterr().err


def test_an_impossible_option_is_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "my_step.py", "--processes", "0"]) == 2
    assert "at least 1 process" in capsys.readouterr().err


def test_a_name_that_is_no_plan_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["audit", "my_step.py", "--plan", "even"])
    assert ended.value.code == 2
    assert "'empty-rank'" in capsys.readouterr().err


def plan(verdict: str, first: str | None = None) -> PlanReport:
    stages = (Stage("gradient", "different" if first else "same", float("inf"), 2e-10),)
    return PlanReport("ragged", ((1,), (2,)), ((1.0,), (2.0,)), verdict, stages, first)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("report", "verdict", "code"),
    [
        (Report(Path("f.py"), (plan("same"),)), "same", 0),
        (Report(Path("f.py"), (plan("same"), plan("different", "gradient"))), "different", 1),
        (Report(Path("f.py"), (plan("same"), plan("vacuous"))), "vacuous", 1),
        (failed(Path("f.py"), Failure("no", 1)), "error", 2),
    ],
)
def test_the_worst_plan_is_the_verdict_and_the_exit_code(report: Report, verdict: str, code: int) -> None:
    assert (report.verdict, report.code) == (verdict, code)


def test_files_that_need_other_processes_are_not_audited_together() -> None:
    with pytest.raises(SettingsError, match="the same ranks"):
        audit_many(["a.py", ("b.py", {"processes": 3})])


def test_the_report_for_machines_has_the_documented_keys_and_no_infinity() -> None:
    value = json.loads(as_json(Report(Path("f.py"), (plan("different", "gradient"),))))
    assert {"verdict", "first_difference", "cause", "factor", "stages", "weights", "plans"} <= set(value)
    assert (value["verdict"], value["first_difference"]) == ("different", "gradient")
    assert value["stages"][0]["max_abs_difference"] is None


def test_a_failure_names_the_rank_what_it_did_and_the_readers_lines() -> None:
    failure = Failure("step() failed: ValueError: no", 1, "plan ragged: step()", "Traceback …\nValueError: no\n")
    assert str(failure).splitlines() == [
        "rank 1 (plan ragged: step()): step() failed: ValueError: no",
        "Traceback …",
        "ValueError: no",
    ]


def test_a_signal_unwinds_the_command_so_that_ranks_and_folder_go_and_is_itself_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, command._ending_ranks_too():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_front_of_the_package_starts_without_torch() -> None:
    modules = "samestep.experiments.__main__, samestep.experiments.audit.telling.printing"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
