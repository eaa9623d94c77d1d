"""From a measurement to a row: how far it is from the reference and from what was expected, and what that is called.

A row is met when every quantity does what is expected of it and the expected verdict is among those that fit.

    coefficients   `from_global_mean`  largest distance of a token from 1/N;  `from_expected`, from the expected rule
                   `residual`          part of the update that no re-weighting of tokens explains
    state          what the empty window changed in parameters, moments and step counter
    clipping       the reported norm beside the true one, the applied one beside the threshold
    contrastive    of each group, factor beside what is expected, and residual; `sharded` too
    counters       what a counter says beside the updates that were made
    every kind     `replicas`          largest difference between what the two ranks saw
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from samestep.app.evidence import bags
from samestep.app.evidence.bags import DIFFERS, Expectation, Json
from samestep.experiments.conformance.classifier import (
    Cells,
    Finding,
    Resolution,
    by_sequence,
    classify,
    coefficients,
    distance,
    listing,
    means,
    of_cells,
    spread,
)
from samestep.experiments.conformance.counters import counted
from samestep.experiments.conformance.scenarios import Kind, Scenario
from samestep.experiments.results import number

CLIPPING = 1e-5
"""torch adds 1e-6 to a norm before it divides by it, so that a clipped gradient is a little shorter than asked."""

AGREE: Expectation = "agrees"
Seen = Mapping[str, Any]
"""A measurement as a child sent it."""


@dataclass(frozen=True)
class Judged:
    """`fits`: whether what was expected is among what fits, True where nothing was expected."""

    kind: Kind
    verdict: str
    candidates: list[str]
    expectation: Expectation
    expected: dict[str, Expectation]
    differences: dict[str, float | None]
    values: dict[str, Json]
    agrees: float
    fits: bool
    coefficients: list[list[float | None]] | None = None
    residual: float | None = None
    finding: Finding | None = field(default=None)


def judge(seen: Sequence[Seen | None], scenario: Scenario, expected: Any, tolerance: float) -> Judged:
    """Judge rank 0's measurement, and compare the other ranks' with it."""
    first = cast(Seen, seen[0])
    judges = {
        Kind.COEFFICIENTS: _tokens,
        Kind.STATE: _state,
        Kind.CLIPPING: _clipping,
        Kind.CONTRASTIVE: _contrastive,
        Kind.SHARDED: _contrastive,
        Kind.COUNTERS: _counters,
    }
    judged = judges[Kind(first["kind"])](first, scenario, expected, tolerance)
    others = [each for each in seen[1:] if each is not None]
    if others:
        judged.differences["replicas"] = _finite(max(_apart(first, each) for each in others))
        judged.expected["replicas"] = "agrees"
    return judged


def reading(first: Seen, scenario: Scenario, tolerance: float) -> Finding:
    """What the coefficients of one scenario say by themselves."""
    finding = classify(first["tokens"], scenario, tolerance, first["later"], first.get("positions"))
    if finding.verdict == "undefined" or math.isnan(first["residual"]):
        return Finding("undefined", frozenset({"undefined"}))
    return finding if first["residual"] <= tolerance else Finding("other")


def _tokens(first: Seen, scenario: Scenario, expected: Any, tolerance: float) -> Judged:
    tokens, finding = first["tokens"], reading(first, scenario, tolerance)
    reference = coefficients("global_token_mean", scenario)
    from_global = distance(tokens, reference, scenario)
    differences: dict[str, float | None] = {"from_global_mean": from_global, "residual": _finite(first["residual"])}
    wanted = _wanted(expected, scenario, first.get("positions"))
    if wanted is None:
        global_expected = _outcome(from_global, tolerance)
    else:
        differences["from_expected"] = distance(tokens, wanted, scenario)
        global_expected = "agrees" if _away(wanted, reference, scenario) <= tolerance else "differs"
    rest: Expectation = "agrees"
    if expected == "undefined":
        global_expected = rest = "undefined"
    cells = means(tokens)
    return Judged(
        kind=Kind.COEFFICIENTS,
        verdict=finding.verdict,
        candidates=listing(finding.candidates, scenario),
        expectation=global_expected,
        expected={name: global_expected if name == "from_global_mean" else rest for name in differences},
        differences=differences,
        values={
            "coefficients": _plain(cells),
            "spread": number(spread(tokens, scenario)),
            "residual": number(first["residual"]),
            **({"factors": cast(Json, dict(finding.nearest))} if finding.nearest else {}),
            **_more(first, scenario),
        },
        agrees=tolerance,
        fits=not isinstance(expected, str) or expected in finding.candidates or expected == finding.verdict,
        coefficients=[[_finite(mean) for mean in rank] for rank in cells],
        residual=_finite(first["residual"]),
        finding=finding,
    )


def _more(first: Seen, scenario: Scenario) -> dict[str, Json]:
    """What some scenarios have beside the mean of a cell: each sequence's, the padded length, the update after."""
    found: dict[str, Json] = {}
    if scenario.lengths:
        found["sequences"] = _plain([means(rank) for rank in by_sequence(first["tokens"], scenario)])
    if first.get("positions") is not None:
        found["positions"] = first["positions"]
    if first["later"] is not None:
        found["later"] = _plain(means(first["later"]))
    return found


def _away(wanted: Cells, reference: Cells, scenario: Scenario) -> float:
    """Largest difference of a token's expected coefficient from the reference."""
    lengths = [n for rank in scenario.sequences for cell in rank for n in cell]
    pairs = zip(_flat(wanted), _flat(reference), lengths, strict=True)
    return max((abs(a - b) for a, b, n in pairs if n), default=0.0)


def _flat(cells: Cells) -> list[float]:
    return [value for rank in cells for cell in rank for value in cell]


def _wanted(expected: Any, scenario: Scenario, positions: int | None) -> Cells | None:
    """The coefficients that are expected; None where no number is."""
    if expected is None or expected in ("undefined", "other"):
        return None
    if isinstance(expected, str):
        return coefficients(expected, scenario, positions)
    by_cell = not isinstance(expected[0][0], list | tuple)
    return of_cells(expected, scenario) if by_cell else cast(Cells, expected)


def _state(first: Seen, scenario: Scenario, expected: Any, tolerance: float) -> Judged:
    changes = {name: _finite(first[name]) for name in ("parameters", "moments")}
    if None in changes.values():
        verdict = "undefined"
    elif cast(float, changes["parameters"]) > DIFFERS:
        verdict = "moved"
    else:
        verdict = "state_only" if first["steps"] or cast(float, changes["moments"]) > DIFFERS else "no_op"
    usual: dict[str, Expectation] = {"no_op": "agrees", "state_only": "agrees", "moved": "differs"}
    decisive = usual.get(expected or verdict, "undefined")
    return Judged(
        kind=Kind.STATE,
        verdict=verdict,
        candidates=[verdict],
        expectation=decisive,
        expected={"parameter_change": decisive},
        differences={"parameter_change": changes["parameters"]},
        values={name: number(first[name]) for name in ("parameters_before", "parameters", "moments", "steps", "loss")},
        agrees=max(tolerance, DIFFERS),
        fits=expected in (None, verdict),
    )


def _clipping(first: Seen, scenario: Scenario, expected: Any, tolerance: float) -> Judged:
    reported = [each for each in first["reported"] if each is not None]
    away = max((abs(each - first["true"]) for each in reported), default=None)
    agrees = max(CLIPPING, tolerance)
    verdict = "not_reported" if away is None else "true_norm" if away <= agrees else "wrong_norm"
    applied = {"applied_norm": abs(first["updated"] - first["max_norm"]), "direction": first["residual"]}
    usual: dict[str, Expectation] = {"true_norm": "agrees", "wrong_norm": "differs", "not_reported": "undefined"}
    decisive = usual[expected or verdict]
    held = {name: _finite(value) for name, value in applied.items()} if decisive != "differs" else {}
    names = ("reported", "true", "max_norm", "updated")
    return Judged(
        kind=Kind.CLIPPING,
        verdict=verdict,
        candidates=[verdict],
        expectation=decisive,
        expected={"reported_norm": decisive, **dict.fromkeys(held, AGREE)},
        differences={"reported_norm": away, **held},
        values={**{name: _plain(first[name]) for name in names}, "residual": number(first["residual"])},
        agrees=agrees,
        fits=expected in (None, verdict),
        residual=_finite(first["residual"]),
    )


def _contrastive(first: Seen, scenario: Scenario, expected: Any, tolerance: float) -> Judged:
    groups: Mapping[str, Mapping[str, float]] = first["groups"]
    parallel = all(each["residual"] <= tolerance for each in groups.values())
    full = parallel and all(abs(each["factor"] - 1) <= tolerance for each in groups.values())
    verdict = "full_batch" if full else "scaled" if parallel else "another_direction"
    factors = dict.fromkeys(groups, 1.0) if expected == "full_batch" else expected
    differences: dict[str, float | None] = {}
    wanted: dict[str, Expectation] = {}
    values: dict[str, Json] = {}
    for name, each in groups.items():
        values |= {f"{name}_factor": number(each["factor"]), f"{name}_residual": number(each["residual"])}
        differences[f"{name}_from_full_batch"] = _finite(max(abs(each["factor"] - 1), each["residual"]))
        differences[f"{name}_residual"] = _finite(each["residual"])
        if isinstance(factors, Mapping):
            factor = factors[name]
            wanted[f"{name}_residual"] = "differs" if factor is None else "agrees"
            wanted[f"{name}_from_full_batch"] = "agrees" if factor == 1.0 else "differs"
            if factor is not None:
                differences[f"{name}_from_expected"] = _finite(abs(each["factor"] - factor))
                wanted[f"{name}_from_expected"] = "agrees"
        else:
            wanted[f"{name}_from_full_batch"] = _outcome(differences[f"{name}_from_full_batch"], tolerance)
    return Judged(
        kind=Kind(first["kind"]),
        verdict=verdict,
        candidates=[verdict],
        expectation="agrees" if set(wanted.values()) == {"agrees"} else "differs",
        expected=wanted,
        differences={name: differences[name] for name in wanted},
        values=values,
        agrees=tolerance,
        fits=not isinstance(expected, str) or expected == verdict,
        residual=_finite(max(each["residual"] for each in groups.values())),
    )


def _counters(first: Seen, scenario: Scenario, expected: Any, tolerance: float) -> Judged:
    updates, count = first["updates"], first["count"]
    finding = counted(updates, count, scenario)
    agrees: Expectation = "agrees" if (expected or finding.verdict) == "per_update" else "differs"
    return Judged(
        kind=Kind.COUNTERS,
        verdict=finding.verdict,
        candidates=listing(finding.candidates, scenario),
        expectation=agrees,
        expected={"from_updates": agrees},
        differences={"from_updates": float(abs(count - updates))},
        values={"counter": first["counter"], "updates": updates, "count": count, "rates": _plain(list(first["rates"]))},
        agrees=tolerance,
        fits=expected is None or expected in finding.candidates,
        finding=finding,
    )


def met(judged: Judged) -> bool:
    """Every quantity did what was expected, and so did the whole."""
    return judged.fits and bags.met(judged.expected, judged.differences, judged.agrees)


def in_light_of(judged: Judged, resolution: Resolution, scenario: Scenario) -> str:
    """The verdict when a setting's other scenarios have excluded what they can exclude."""
    return resolution.verdict(judged.finding, scenario) if judged.finding else judged.verdict


def _outcome(away: float | None, tolerance: float) -> Expectation:
    if away is None:
        return "undefined"
    return "agrees" if away <= tolerance else "differs"


def _apart(one: Seen, other: Seen) -> float:
    """Largest difference between two ranks' views; infinite when they have different shapes."""
    left, right = list(_numbers(dict(one))), list(_numbers(dict(other)))
    if len(left) != len(right):
        return math.inf
    pairs = [(a, b) for a, b in zip(left, right, strict=True) if not (math.isnan(a) and math.isnan(b))]
    return max((abs(a - b) for a, b in pairs), default=0.0)


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict):
        for name, each in value.items():
            if name != "residual":
                yield from _numbers(each)
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, int | float):
        yield float(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _plain(value: Any) -> Json:
    return [_plain(each) for each in value] if isinstance(value, list) else number(value)
