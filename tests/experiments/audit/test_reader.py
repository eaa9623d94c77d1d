"""The reader's file: what it must define and return, and whose traceback is shown."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from samestep.experiments.audit.failure import ReaderError
from samestep.experiments.audit.running import reader
from samestep.experiments.audit.running.context import Context, ContextError

STEP = "\ndef step(ctx, model, optimizer, data): ...\n"
BUILD = """
import torch
def build():
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)
"""
DATA = "\ndef data(): return {'x': torch.zeros(3, 2), 'y': torch.zeros(3)}\n"

Load = Callable[[str], reader.ReaderFile]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.setattr(sys, "path", list(sys.path))

    def loaded(text: str) -> reader.ReaderFile:
        place = tmp_path / "my_step.py"
        place.write_text(text)
        return reader.load(place, torch.float64)

    return loaded


def test_a_file_with_the_three_functions_loads_and_weighs_every_sample_one(load: Load) -> None:
    file = load(BUILD + DATA + STEP)
    assert file.weights(file.data()) == [1.0, 1.0, 1.0]


def test_what_is_missing_is_named(load: Load) -> None:
    with pytest.raises(ReaderError, match=r"my_step.py does not define data\(\) and step\(\)"):
        load(BUILD)


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        ("import torch\ndef build(): return torch.nn.Linear(1, 1)", "a value of type Linear"),
        ("import torch\ndef build(): return None", "returned None"),
        ("import torch\ndef build(): return 1, 2", r"a tuple of 2: \(int, int\)"),
    ],
)
def test_a_build_that_returns_something_else_is_told_so(load: Load, build: str, complaint: str) -> None:
    with pytest.raises(ReaderError, match=complaint):
        load(build + DATA + STEP).build()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("[1, 2]", "type list"),
        ("{'x': 1}", r"data\(\)\['x'\] must be a tensor"),
        ("{'x': torch.zeros(3), 'y': torch.zeros(4)}", "x: 3, y: 4"),
    ],
)
def test_data_that_are_no_rows_are_told_so(load: Load, data: str, complaint: str) -> None:
    with pytest.raises(ReaderError, match=complaint):
        load(f"{BUILD}\ndef data(): return {data}\n{STEP}").data()


def test_weights_must_be_one_number_a_sample(load: Load) -> None:
    file = load(BUILD + DATA + STEP + "\ndef weights(data): return torch.ones(2)\n")
    with pytest.raises(ReaderError, match=r"tensor of 3 numbers, got a tensor of shape \(2,\)"):
        file.weights(file.data())


@pytest.mark.parametrize("weight", ["-1", "nan", "inf"])
def test_a_weight_that_is_negative_or_not_finite_is_refused(load: Load, weight: str) -> None:
    file = load(BUILD + DATA + STEP + f"\ndef weights(data): return torch.tensor([1, 1, float('{weight}')])\n")
    with pytest.raises(ReaderError, match=rf"must not be negative and must be finite, one is {weight}"):
        file.weights(file.data())


def test_model_and_data_take_the_type_of_the_audit_and_integers_stay(load: Load) -> None:
    text = BUILD.replace("Linear(2, 1)", "Linear(2, 1, dtype=torch.float32)")
    file = load(text + "\ndef data(): return {'x': torch.zeros(3, dtype=torch.float32), 'y': torch.arange(3)}\n" + STEP)
    model, _ = file.build()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert [tensor.dtype for tensor in file.data().values()] == [torch.float64, torch.int64]


def test_the_traceback_begins_at_the_readers_line_and_has_no_frame_of_this_package(load: Load) -> None:
    file = load(BUILD + DATA + "\ndef step(ctx, model, optimizer, data):\n    inner()\ndef inner():\n    1 / 0\n")
    with pytest.raises(ReaderError) as caught:
        file.step(*[None] * 4)  # type: ignore[list-item]
    lines = caught.value.own_traceback.splitlines()
    assert lines[1].endswith("in step")
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "experiments/audit/" not in caught.value.own_traceback


def test_a_reader_who_calls_exit_ends_the_audit_and_not_the_process(load: Load) -> None:
    with pytest.raises(ReaderError, match="SystemExit: 3"):
        load("import sys\nsys.exit(3)\n")


def test_a_syntax_error_shows_its_line(load: Load) -> None:
    with pytest.raises(ReaderError) as caught:
        load("def build(:\n")
    assert "line 1" in caught.value.own_traceback


def test_every_load_is_a_fresh_module_and_so_are_the_files_beside_it(load: Load, tmp_path: Path) -> None:
    (tmp_path / "beside_my_step.py").write_text("count = 0\n")
    text = "import beside_my_step\nbeside_my_step.count += 1\nseen = beside_my_step.count\n" + BUILD + DATA + STEP
    assert [load(text).module.seen, load(text).module.seen] == [1, 1]


def test_a_file_gets_the_module_beside_itself_and_not_one_of_the_same_name_beside_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("first", "second", "first"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "what_is_shared.py").write_text(f"where = {name!r}\n")
        (folder / "my_step.py").write_text("from what_is_shared import where\n" + BUILD + DATA + STEP)
        assert reader.load(folder / "my_step.py", torch.float64).module.where == name


def test_an_unseeded_build_has_another_digest_and_a_seeded_one_the_same(load: Load) -> None:
    unseeded = load(BUILD + DATA + STEP)
    assert reader.built_digest(*unseeded.build()) != reader.built_digest(*unseeded.build())
    seeded = load(BUILD.replace("model =", "torch.manual_seed(1); model =") + DATA + STEP)
    assert reader.built_digest(*seeded.build()) == reader.built_digest(*seeded.build())


def context(shares: list[list[int]], notes: dict[str, float] | None = None) -> Context:
    kept = notes if notes is not None else {}
    return Context(1, 2, torch.device("cpu"), shares, 4, 4.0, kept.__setitem__)


def test_a_rank_without_samples_has_microbatches_of_zero_rows() -> None:
    data = {"x": torch.arange(8.0).reshape(4, 2)}
    assert [tuple(part["x"].shape) for part in context([[], []]).microbatches(data)] == [(0, 2), (0, 2)]


def test_microbatches_of_something_else_than_the_batch_are_refused() -> None:
    with pytest.raises(ContextError, match="4 rows"):
        context([[0]]).microbatches({"x": torch.zeros(3)})


def test_a_whole_count_is_an_integer_and_a_note_is_a_number() -> None:
    notes: dict[str, float] = {}
    here = context([[0]], notes)
    here.note("norm", torch.tensor(2.5))
    assert (here.global_count(), type(here.global_count()), notes) == (4, int, {"norm": 2.5})


def test_several_norms_are_noted_as_the_norm_of_all() -> None:
    notes: dict[str, float] = {}
    context([[0]], notes).note("norm", torch.tensor([3.0, 4.0]))
    assert notes == {"norm": 5.0}


SCHEDULED = BUILD.replace(
    "return model, torch.optim.SGD(model.parameters(), lr=0.1)",
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    "    return model, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer)",
)


@pytest.mark.parametrize("arguments", ["model, optimizer, data, schedule", "model, optimizer, schedule, data"])
def test_what_build_returns_beside_the_optimizer_is_handed_to_the_step(load: Load, arguments: str) -> None:
    file = load(
        SCHEDULED.replace("model = ", "torch.manual_seed(1); model = ")
        + DATA
        + f"""
def step(ctx, {arguments}):
    assert isinstance(schedule, torch.optim.lr_scheduler.ConstantLR)
    assert set(data) == {{"x", "y"}}
"""
    )
    built = file.built()
    assert [type(each).__name__ for each in built.optimizers] == ["SGD"]
    file.step(context([[0]]), built.model, built.optimizer, file.data(), built.others)


def test_several_optimizers_in_a_list_are_all_known(load: Load) -> None:
    two = BUILD.replace("lr=0.1)", "lr=0.1), torch.optim.SGD(model.parameters(), lr=0.2)").replace(
        "return model, ", "return model, ["
    )
    assert len(load(two + "]" + DATA + STEP).built().optimizers) == 2
