"""From a measurement to a row: how far it is from the reference and from what was expected, and what that is called.

A row is met when every quantity does what is expected of it and the expected verdict is among those that fit.

    coefficients   `from_global_mean`  largest distance of a token from 1/N;  `from_expected`, from the expected rule
                   `residual`          part of the update that no re-weighting of tokens explains
    state          what the empty window changed in parameters, moments and step counter
    clipping       the reported norm beside the true one, the applied one beside the threshold
    contrastive    of each group, factor beside what is expected, and residual
    every kind     `replicas`          largest difference between what the two ranks saw
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from samestep.app.evidence import bags
from samestep.app.evidence.bags import DIFFERS, Expectation, Json
from samestep.experiments.conformance.classifier import (
    Finding,
    Resolution,
    cell_means,
    classify,
    coefficients,
    distance,
    listing,
    spread,
)
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
    }
    judged = judges[Kind(first["kind"])](first, scenario, expected, tolerance)
    others = [each for each in seen[1:] if each is not None]
    if others:
        judged.differences["replicas"] = _finite(max(_apart(first, each) for each in others))
        judged.expected["replicas"] = "agrees"
    return judged


def reading(first: Seen, scenario: Scenario, tolerance: float) -> Finding:
    """What the coefficients of one scenario say by themselves."""
    finding = classify(first["tokens"], scenario, tolerance, first["later"])
    if finding.verdict == "undefined" or math.isnan(first["residual"]):
        return Finding("undefined", frozenset({"undefined"}))
    return finding if first["residual"] <= tolerance else Finding("other")


def _tokens(first: Seen, scenario: Scenario, expected: Any, tolerance: float) -> Judged:
    tokens, finding = first["tokens"], reading(first, scenario, tolerance)
    from_global = distance(tokens, coefficients("global_token_mean", scenario))
    differences: dict[str, float | None] = {"from_global_mean": from_global, "residual": _finite(first["residual"])}
    wanted = _wanted(expected, scenario)
    reference = coefficients("global_token_mean", scenario)
    if wanted is None:
        global_expected = _outcome(from_global, tolerance)
    else:
        differences["from_expected"] = distance(tokens, wanted)
        away = max(
            abs(a - b)
            for line, other, counts in zip(wanted, reference, scenario.counts, strict=True)
            for a, b, n in zip(line, other, counts, strict=True)
            if n
        )
        global_expected = "agrees" if away <= tolerance else "differs"
    rest: Expectation = "agrees"
    if expected == "undefined":
        global_expected = rest = "undefined"
    means = cell_means(tokens)
    return Judged(
        kind=Kind.COEFFICIENTS,
        verdict=finding.verdict,
        candidates=listing(finding.candidates, scenario),
        expectation=global_expected,
        expected={name: global_expected if name == "from_global_mean" else rest for name in differences},
        differences=differences,
        values={
            "coefficients": _plain(means),
            "spread": number(spread(tokens)),
            "residual": number(first["residual"]),
            **({"factors": cast(Json, dict(finding.nearest))} if finding.nearest else {}),
        },
        agrees=tolerance,
        fits=not isinstance(expected, str) or expected in finding.candidates or expected == finding.verdict,
        coefficients=[[_finite(mean) for mean in rank] for rank in means],
        residual=_finite(first["residual"]),
        finding=finding,
    )


def _wanted(expected: Any, scenario: Scenario) -> list[list[float]] | None:
    """The coefficients that are expected; None where no number is."""
    if expected is None or expected in ("undefined", "other"):
        return None
    return coefficients(expected, scenario) if isinstance(expected, str) else [list(line) for line in expected]


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
        kind=Kind.CONTRASTIVE,
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
