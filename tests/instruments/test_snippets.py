"""The programs that a page offers: each runs, and prints the numbers of the calculator that it was written for."""

import ast
import contextlib
import importlib
import io
import math
import os
import random
import subprocess
import sys
from typing import Any

import pytest
import torch

from samestep.app.calculators import registry
from samestep.app.contract.models import Inputs
from samestep.app.contract.paths import value_at
from samestep.app.instruments.snippets import MAX_NUMBERS, number, python, snippet
from tests.kit import Program, cases

KINDS = {
    "ledger": "replica_ledger",
    "infonce": "info_nce",
    "clip": "clip_ownership",
    "overflow": "overflow_skip",
    "clip_order": "clip_order",
    "optimizer_empty_step": "empty_step",
    "sampler": "sampler_padding",
}
WITH_BODY = [case for case in cases().values() if case["kind"] in KINDS and case["id"] != "Z-02"]
"""Z-02 has two small states of its own in place of a body."""
CALCULATORS = sorted(registry())
PROGRAMS: dict[str, Program] = {
    name: importlib.import_module(f"tests.calculators.test_{name}").PROGRAM for name in CALCULATORS
}
"""What each calculator's own test says of its program."""


def default(name: str) -> Inputs:
    return registry()[name].query().inputs()


def body(name: str, **fields: Any) -> Inputs:
    return registry()[name].inputs.model_validate(fields)


def program(name: str, inputs: Inputs) -> str:
    source = snippet(name, inputs)
    assert source is not None
    return source


def output(source: str) -> str:
    """What a program prints; run here, because importing torch once a program would take minutes."""
    printed = io.StringIO()
    kind = torch.get_default_dtype()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(source, "snippet", "exec"), {"__name__": "__main__"})
    finally:
        torch.set_default_dtype(kind)
    return printed.getvalue()


def printed_values(text: str) -> dict[str, Any]:
    """The lines `path value`; a value that is no literal is a text."""
    values = {}
    for line in text.splitlines():
        path, value = line.split(" ", 1)
        try:
            values[path] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            values[path] = value
    return values


def same(printed: Any, answer: Any) -> bool:
    """Within 1e-9 of each other, relatively (or 1e-12, where a number is the rounding of others)."""
    if isinstance(printed, list) and isinstance(answer, list):
        return len(printed) == len(answer) and all(map(same, printed, answer))
    numbers = [type(value) in (int, float) for value in (printed, answer)]
    return math.isclose(printed, answer, rel_tol=1e-9, abs_tol=1e-12) if all(numbers) else printed == answer


def disagreements(name: str, inputs: Inputs, text: str) -> list[str]:
    """The lines of a program's output that the calculator's own JSON does not confirm."""
    answer = registry()[name].compute(inputs).model_dump(mode="json")
    values = printed_values(text)
    assert values
    return [
        f"{path}: {value}, not {value_at(answer, path)}"
        for path, value in values.items()
        if not same(value, value_at(answer, path))
    ]


def agrees(name: str, inputs: Inputs) -> None:
    assert disagreements(name, inputs, output(program(name, inputs))) == []


@pytest.mark.parametrize("name", CALCULATORS)
def test_the_program_of_a_panel_prints_its_main_numbers(name: str) -> None:
    inputs = default(name)
    text = output(program(name, inputs))
    assert disagreements(name, inputs, text) == []
    assert set(PROGRAMS[name].prints) <= set(printed_values(text))


@pytest.mark.parametrize("name", CALCULATORS)
def test_a_wrong_number_in_a_program_shows(name: str) -> None:
    inputs = default(name)
    right, wrong = PROGRAMS[name].planted
    source = program(name, inputs)
    assert source.count(right) == 1
    assert disagreements(name, inputs, output(source.replace(right, wrong)))


@pytest.mark.parametrize("case", WITH_BODY, ids=lambda case: case["id"])
def test_the_program_of_a_worked_case_prints_its_numbers(case: dict[str, Any]) -> None:
    agrees(KINDS[case["kind"]], body(KINDS[case["kind"]], **case["inputs"]))


@pytest.mark.parametrize("name", CALCULATORS)
def test_a_program_imports_only_torch_and_mathematics_and_fits_a_screen_or_two(name: str) -> None:
    source = program(name, default(name))
    imported = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name if isinstance(node, ast.Import) else node.module for node in imported for alias in node.names}
    assert {str(module).split(".")[0] for module in names} <= {"torch", "math"}
    assert max(map(len, source.splitlines())) <= 120
    assert len(source.splitlines()) <= 100


def test_a_program_stands_alone() -> None:
    source = program("replica_ledger", default("replica_ledger"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-I", "-c", source], capture_output=True, text=True, check=True, env=environment, cwd="/"
    )
    assert run.stderr == ""
    assert disagreements("replica_ledger", default("replica_ledger"), run.stdout) == []


@pytest.mark.parametrize("name", CALCULATORS)
def test_programs_of_general_states_print_their_numbers(name: str) -> None:
    source = random.Random(name)
    for _ in range(4 if name == "batch_noise" else 8):
        agrees(name, body(name, **PROGRAMS[name].bodies(source)))


def test_a_state_of_too_many_numbers_has_no_program() -> None:
    few, many = ({"n": [[1] * size], "g": [[1] * size]} for size in (MAX_NUMBERS // 4, MAX_NUMBERS))
    assert snippet("replica_ledger", body("replica_ledger", **few)) is not None
    assert snippet("replica_ledger", body("replica_ledger", **many)) is None


def test_a_number_whose_square_leaves_float64_has_no_program() -> None:
    assert snippet("clip_order", body("clip_order", microstep_grads=[["1e90"]], max_norm=1)) is not None
    assert snippet("clip_order", body("clip_order", microstep_grads=[["1e200"]], max_norm=1)) is None


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("0.1", "0.1"),
        ("1/3", "1/3"),
        ("-inf", 'float("-inf")'),
        (2.0, "2"),
        ("1e300", "1e+300"),
        ([1, "2/6"], "[1, 1/3]"),
    ],
)
def test_numbers_stand_in_a_program_as_they_are(typed: Any, written: str) -> None:
    assert number(typed) == written


def test_names_stand_in_a_program_as_quoted_text() -> None:
    hostile = 'x"\n" + __import__("os").name + "'
    assert ast.literal_eval(python(hostile)) == hostile
    schemes = [{"name": hostile, "denominator": "global"}]
    source = program("replica_ledger", body("replica_ledger", n=[[1]], g=[[2]], schemes=schemes))
    assert hostile in [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
