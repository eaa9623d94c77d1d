"""A family's environment holds its pins and this project's code, and nothing else; half of one never stays."""

import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from samestep.experiments.conformance import families, lab, store
from samestep.experiments.conformance.families import FAMILIES, Family, NoEnvironmentError
from samestep.experiments.conformance.frameworks import FRAMEWORKS, Framework
from samestep.experiments.conformance.pairs import Report
from samestep.experiments.registry import ROOT


def silent(what: str, done: float | None) -> None:
    pass


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A distribution of one module of two megabytes, so that nothing is fetched."""
    place = tmp_path_factory.mktemp("wheels") / "tiny_distribution-1.5-py3-none-any.whl"
    info = "tiny_distribution-1.5.dist-info"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("tiny_module.py", f"ANSWER = 42\n# {'-' * 2**21}\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-distribution\nVersion: 1.5\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return place


@pytest.fixture(scope="module")
def family(wheel: Path) -> Family:
    return Family("tiny", (str(wheel),), megabytes=100)


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAMESTEP_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def seen(family: Family, program: str) -> str:
    command = [str(families.interpreter(family)), "-c", program]
    path = {"PYTHONPATH": str(families.code(family)), "PATH": ""}
    return subprocess.run(command, env=path, capture_output=True, text=True, check=True).stdout.strip()


def test_an_environment_has_its_pins_and_our_code_and_nothing_of_ours_beside_it(family: Family) -> None:
    assert families.install(family, silent) == families.interpreter(family)
    assert seen(family, "import tiny_module; print(tiny_module.ANSWER)") == "42"
    assert seen(family, "import samestep.experiments.conformance.adapter as a; print(a.__name__)").endswith("adapter")
    assert seen(family, "from importlib.util import find_spec; print(find_spec('torch'), find_spec('pytest'))") == (
        "None None"
    )


def test_what_is_there_is_not_made_again_and_other_pins_take_its_place(family: Family, wheel: Path) -> None:
    families.install(family, silent)
    mark = families.place(family) / "mark"
    mark.touch()
    families.install(family, silent)
    assert mark.exists()
    other = replace(family, alone=(str(wheel),))
    families.install(other, silent)
    assert families.interpreter(other).exists()
    assert not families.place(family).exists()


def test_what_was_killed_half_way_is_made_again(family: Family) -> None:
    half = replace(family, id="half")
    families.place(half).mkdir(parents=True)
    assert not families.made(half)
    families.install(half, silent)
    assert families.made(half)
    assert seen(half, "import tiny_module; print(tiny_module.ANSWER)") == "42"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"pins": ("samestep-no-such-distribution==1.0", "--no-index")}, "pip.* failed: ERROR.*no-such-distribution"),
        ({"megabytes": 1}, "broken takes . MB, more than the 1 MB that it may"),
        ({"megabytes": 10**9}, "broken may take 1000000000 MB, and only .* MB are free"),
        ({"python": "2.1"}, "broken needs Python 2.1, and there is no python2.1"),
    ],
)
def test_what_cannot_be_made_says_why_and_leaves_nothing(family: Family, wrong: dict[str, object], reason: str) -> None:
    broken = replace(family, **{"id": "broken", **wrong})  # type: ignore[arg-type]
    with pytest.raises(NoEnvironmentError, match=reason):
        families.install(broken, silent)
    assert not families.place(broken).exists()


def test_every_framework_of_a_family_has_a_pin_there() -> None:
    of_families = [framework for framework in FRAMEWORKS.values() if framework.family]
    assert of_families
    for framework in of_families:
        assert framework.family in FAMILIES
        assert lab.pinned(framework)
        assert "MB" in FAMILIES[framework.family].takes
    assert all("==" in pin for family in FAMILIES.values() for pin in (*family.pins, *family.alone))


def test_a_family_is_not_measured_unless_it_is_asked_for(tmp_path: Path) -> None:
    chosen, absent = lab._subjects({})
    assert not [subject for subject in chosen if subject.framework.family]
    reasons = {each["framework"]: each["reason"] for each in absent}
    for framework in FRAMEWORKS.values():
        if framework.family:
            said = f"in an environment of its own: run conformance --family {framework.family} ("
            assert reasons[framework.id].startswith(said)
            assert FAMILIES[framework.family].takes in reasons[framework.id]


def test_what_was_measured_is_found_again_until_a_source_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = Framework("toy", "Toy", ("torch",), adapter="samestep.experiments.conformance.frameworks.torch_ddp")
    report = Report(tasks=[("a", "B")], packages={"torch": "1"}, measured={("a", "B"): [{"kind": "state"}, None]})
    report.unavailable["b", "A"] = "no compiler"
    place = store.place(framework, None, None)
    store.save(report, place)
    assert store.load(place) == report
    assert store.load(store.place(replace(framework, seconds=1.0), None, None)) is None
    changed = store.sources(store.CHILD)
    monkeypatch.setattr(store, "sources", lambda *modules: changed)
    assert store.load(store.place(framework, None, None)) is None


def test_a_comment_changes_no_measurement_and_a_number_does(tmp_path: Path) -> None:
    texts = ('"""Say it."""\nX = 1\n', '"""Say it better."""\n# why\nX = 1\n"""Of X."""\n', '"""Say it."""\nX = 2\n')
    places = [tmp_path / f"{i}.py" for i in range(len(texts))]
    for place, text in zip(places, texts, strict=True):
        place.write_text(text)
    one, commented, changed = map(store._meaning, places)
    assert one == commented != changed


def test_the_sources_of_a_measurement_are_what_its_process_imports() -> None:
    found = {place.relative_to(ROOT).as_posix() for place in store.sources(store.CHILD, FRAMEWORKS["torch_ddp"].module)}
    needed = {"child", "reader", "scenarios", "adapter", "frameworks/torch_ddp", "frameworks/plain_loop"}
    assert {f"experiments/conformance/{name}.py" for name in needed} <= found
    assert not {"experiments/conformance/lab.py", "experiments/conformance/frameworks/lightning.py"} & found
