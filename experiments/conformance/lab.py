"""All frameworks, or those that are asked for: measure, judge, and put the rows and controls of the result together."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from samestep.app.evidence.bags import (
    DIFFERS,
    ConformanceRow,
    Control,
    Json,
    NotMeasured,
    Result,
    Row,
    Text,
)
from samestep.experiments.conformance import (
    PROCESSES,
    QUESTION,
    agreement,
    families,
    releases,
    store,
)
from samestep.experiments.conformance.families import FAMILIES, Family
from samestep.experiments.conformance.faults import FAULTS
from samestep.experiments.conformance.frameworks import FRAMEWORKS, TIER_0, Framework, Release
from samestep.experiments.conformance.pairs import Report, Task, measure_together
from samestep.experiments.conformance.rows import Subject, expected, rows_of, slug
from samestep.experiments.conformance.scenarios import SCENARIOS
from samestep.experiments.ranks import Tell
from samestep.experiments.results import control, result, write

NAME = "conformance"
RERUN = 1e-6
SCOPE: Text = {
    "zh": "CPU，极小的模型；两个 Gloo 进程，JAX 系列与 Keras 多是一个进程里的两个虚拟设备。SGD（空窗用 AdamW，计数用调"
    "度器、EMA 和 Adam）。不含 GPU、NCCL、损失缩放、上下文并行。部分构造函数或设备是替身的，行里有标注。结论只对所列版"
    "本成立。",
    "en": "CPUs and tiny models; two Gloo processes, or for Keras and most of JAX two virtual devices in one. SGD "
    "(AdamW for the empty window; schedulers, averages and Adam for counters). No GPU, NCCL, loss scaling or context "
    "parallelism. Rows say where a constructor or a device is a stand-in. What is said holds for the versions named.",
}


def run(place: Path, options: Mapping[str, Json], tell: Tell) -> Result:
    """Measure, and write `place/conformance/result.json`.

    Options: `framework`, `family`, `scenario`, `version`: lists of what to measure, everything installed when empty.
    `reader`: "watch" has watch read the same runs, too, and compares.
    `releases`: "listed" also measures the releases that the frameworks list, "cached" those of them that are here;
    `families`: the same of environments. `stored`: what was measured before by these very sources is taken as it is.
    """
    scenarios = cast(list[str], options.get("scenario") or [])
    chosen, absent = _subjects(options)
    rows: list[ConformanceRow] = []
    planted: list[tuple[ConformanceRow, str]] = []
    controls: list[Control] = []
    environment: dict[str, Json] = {}
    paths: dict[str, Text] = {}
    for group in _groups(chosen):
        with TemporaryDirectory(prefix="samestep-watch-") as seen:
            watch = Path(seen) if options.get("reader") == "watch" else None
            try:
                reports = _measure(group, scenarios, tell, watch, stored=bool(options.get("stored")))
            except families.NoEnvironmentError as error:
                absent += [_absent(subject.framework, str(error), subject.version) for subject in group]
                continue
            if watch is not None:
                for subject, report in reports:
                    agreed = agreement.judged(subject.framework, subject.version, report, watch)
                    if isinstance(agreed, str):
                        absent.append(_absent(subject.framework, agreed, subject.version))
                    else:
                        controls.append(agreed)
        for subject, report in reports:
            environment |= _environment(subject, report) if environment else report.environment
            own = list(rows_of(subject, report))
            rows += own
            planted += [(row, factor) for row in own if (factor := report.settings[row["setting"]]["planted"])]
            controls.append(_everything_measured(subject, report))
            absent += _unavailable(subject, report)
            paths |= {row["path"]: _path_title(subject, row["title"]) for row in own}
    if not rows and absent:
        raise releases.CannotMeasureError("; ".join(f"{each['framework']}: {each['reason']}" for each in absent))
    made = _result(rows, [*controls, *_planted(planted), *_redetected(rows)], paths, environment, absent)
    write(made, place)
    return made


def _subjects(options: Mapping[str, Json]) -> tuple[list[Subject], list[NotMeasured]]:
    """What will be measured, and what of it is not installed."""
    asked = _asked(options)
    versions = cast(list[str], options.get("version") or [])
    wanted = [found for each in versions for found in releases.named(each, asked or FRAMEWORKS.values())]
    chosen: list[Subject] = []
    absent: list[NotMeasured] = []
    for framework in asked or ([] if wanted else FRAMEWORKS.values()):
        if reason := _lacking(framework, asked=bool(asked), which=options.get("families")):
            absent.append(_absent(framework, reason))
            continue
        chosen.append(Subject(framework, cast(str, pinned(framework)), None))
        wanted += [(framework, release) for release in framework.releases if _also(release, options.get("releases"))]
    chosen += [Subject(framework, release.version, release) for framework, release in wanted]
    return chosen, absent


def _asked(options: Mapping[str, Json]) -> list[Framework]:
    """Frameworks that are asked for, by their own name or by that of their family."""
    names, groups = (cast(list[str], options.get(name) or []) for name in ("framework", "family"))
    return [each for each in FRAMEWORKS.values() if each.id in names or each.family in groups]


def _lacking(framework: Framework, *, asked: bool, which: Json) -> str | None:
    """Why it cannot be measured here, or None. An environment of its own is made only for what is asked for."""
    if framework.family:
        family = FAMILIES[framework.family]
        there = asked or which == "listed" or (which == "cached" and families.made(family))
        return None if there else f"in an environment of its own: run {NAME} --family {family.id} ({family.takes})"
    missing = [name for name in framework.packages if _version(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def pinned(framework: Framework) -> str | None:
    """The version that is measured unless another one is asked for: the family's pin, or what is installed."""
    package = framework.packages[0]
    if not framework.family:
        return _version(package)
    family = FAMILIES[framework.family]
    found = [pin for pin in (*family.pins, *family.alone) if pin.partition("==")[0].partition("[")[0] == package]
    return found[0].partition("==")[2]


def _also(release: Release, which: Json) -> bool:
    here = families.made(FAMILIES[release.family]) if release.family else releases.place(release).is_dir()
    return which == "listed" or (which == "cached" and here)


def _version(package: str) -> str | None:
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return None


def _absent(framework: Framework, reason: str, version: str = "", setting: str = "") -> NotMeasured:
    return {"framework": framework.id, "version": version, "setting": setting, "reason": reason}


def _groups(chosen: Sequence[Subject]) -> list[list[Subject]]:
    """Which of them share their processes: those that need torch alone, as it is installed."""
    bare = [each for each in chosen if each.framework.id in TIER_0 and each.release is None]
    return [*([bare] if bare else []), *([each] for each in chosen if each not in bare)]


def _measure(
    group: Sequence[Subject], scenarios: Sequence[str], tell: Tell, watch: Path | None, *, stored: bool = False
) -> list[tuple[Subject, Report]]:
    """Everything of a group; raises NoEnvironmentError, CannotMeasureError."""
    whole = not scenarios and watch is None
    places = {each.framework.id: store.place(each.framework, each.release, _family(each)) for each in group}
    reports = {name: store.load(place) for name, place in places.items()} if stored and whole else {}
    left = [each for each in group if reports.get(each.framework.id) is None]
    if left:
        first = left[0]
        where: dict[str, Any] = {"default": first.release is None, "watch": watch, **_environment_of(first, tell)}
        made = measure_together([each.framework for each in left], scenarios, tell, **where)
        reports |= {each.framework.id: report for each, report in zip(left, made, strict=True)}
    found = [(each, cast(Report, reports[each.framework.id])) for each in group]
    for each, report in found:
        if each in left and whole and report.problem is None and not _unexpected(report):
            store.save(report, places[each.framework.id])
    return found


def _environment_of(subject: Subject, tell: Tell) -> dict[str, Any]:
    """Where its processes run; what is missing there is installed."""
    if family := _family(subject):
        families.install(family, tell)
        return {"family": family}
    if release := subject.release:
        tell(f"install {' '.join(release.pins)} beside what is there", None)
        return {"target": releases.install(release), "hidden": release.hidden}
    return {}


def _unexpected(report: Report) -> list[Task]:
    """Measurements that brought the processes down where that is not what was expected."""
    return [task for task in report.failed if expected(report, task) != "aborts"]


def _family(subject: Subject) -> Family | None:
    """The environment to measure in, None for this one."""
    name = subject.framework.family if subject.release is None else subject.release.family
    return FAMILIES[name] if name else None


def _environment(subject: Subject, report: Report) -> dict[str, Json]:
    """Of a family, the Python that its environment has; all else is named with its rows."""
    family = _family(subject)
    # Not said where the last measurement ended its process.
    found = report.environment.get("python") if family else None
    return {f"python of {family.id}": found} if family and found else {}


def _unavailable(subject: Subject, report: Report) -> Iterator[NotMeasured]:
    reasons = {setting: reason for (setting, _), reason in report.unavailable.items()}
    for setting, reason in reasons.items():
        yield _absent(subject.framework, reason, subject.version, setting)


def _everything_measured(subject: Subject, report: Report) -> Control:
    """The framework could be started, and gave a row for every task."""
    measured = len(report.measured) + len(report.failed) - len(_unexpected(report))
    wanted = len(report.tasks) - len(report.unavailable)
    name = f"{subject.framework.name} {subject.version}"
    return control(
        slug(f"measured-{subject.framework.id}-{subject.version}"),
        {"zh": f"{name} 的每种设置都测到了", "en": f"every setting of {name} was measured"},
        report.problem is None and measured == wanted,
        measured=measured,
        wanted=wanted,
        **({"problem": report.problem} if report.problem else {}),
    )


def _planted(planted: Sequence[tuple[ConformanceRow, str]]) -> Iterator[Control]:
    """Rows whose setting has a factor planted in it must be seen to carry it, or the lab sees nothing."""
    if planted:
        seen = [row for row, factor in planted if row["met"] and f"*{factor}" in row["verdict"]]
        title: Text = {"zh": "故意放进去的 2 倍被认了出来", "en": "a factor of 2 that was planted is seen"}
        yield control("planted-factor", title, len(seen) == len(planted), planted=len(planted), seen=len(seen))


def _redetected(rows: Sequence[ConformanceRow]) -> Iterator[Control]:
    """A fault of an earlier release is a difference between what it does and what the pinned release does."""
    for fault in FAULTS:
        same = [row for row in rows if fault.concerns(row) and row["verdict"] != "not_measured"]
        old = next((row for row in same if row["version"] == fault.version), None)
        current = next((row for row in same if row["version"] == pinned(FRAMEWORKS[fault.framework])), None)
        if old is None or current is None:
            continue
        name = slug(f"fault-{fault.framework}-{fault.version}-{fault.setting}-{fault.scenario}")
        seen = _apart(old, current) > DIFFERS
        yield control(name, fault.title, seen, before=old["id"], after=current["id"], url=fault.url)


def _apart(one: ConformanceRow, other: ConformanceRow) -> float:
    """Largest difference between two releases: of a token's coefficient, or of a gradient's factor and direction."""
    pairs = [
        (a, b)
        for row, twin in zip(one["coefficients"] or (), other["coefficients"] or (), strict=True)
        for a, b in zip(row, twin, strict=True)
    ]
    shared = [name for name in one["values"] if name.endswith(("_factor", "_residual")) and name in other["values"]]
    pairs += [(cast(float, one["values"][name]), cast(float, other["values"][name])) for name in shared]
    return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)


def _path_title(subject: Subject, title: Text) -> Text:
    name = f"{subject.framework.name} {subject.version}"
    return {"zh": f"{name}：{title['zh']}", "en": f"{name}: {title['en']}"}


def _result(
    rows: Sequence[ConformanceRow],
    controls: list[Control],
    paths: dict[str, Text],
    environment: dict[str, Json],
    absent: list[NotMeasured],
) -> Result:
    setup: dict[str, Json] = {
        "scenarios": {
            each.id: cast(Json, {"counts": each.counts, "accumulation": each.accumulation, "before": each.before})
            for each in SCENARIOS.values()
        },
        "faults": [cast(Json, asdict(fault)) for fault in FAULTS],
    }
    return result(
        NAME,
        PROCESSES,
        question=QUESTION,
        scope=SCOPE,
        setup=cast(dict[str, Json], json.loads(json.dumps(setup))),
        cases={each.id: each.title for each in SCENARIOS.values() if any(row["case"] == each.id for row in rows)},
        paths=paths,
        rows=cast(list[Row], list(rows)),
        controls=controls,
        environment=environment,
        command=f"python -m experiments run {NAME}",
        rerun=RERUN,
        not_measured=absent,
    )
