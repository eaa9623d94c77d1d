"""The stages of a case in order, each with its difference, and which of them comes first."""

from collections.abc import Sequence
from dataclasses import replace

from samestep.experiments.audit.judging import compare, noted
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.judging.compare import Difference
from samestep.experiments.audit.telling.report import Stage, Status

Found = dict[str, Difference | None]

WORST = 5


def compared(case: Case) -> Found:
    """Every stage's difference; None where there is nothing to compare."""
    reference, first, atol = case.reference, case.ranks[0], case.atol
    lenient = compare.noise(reference.gradient) if "gradient" in reference.vectors else []
    consumption, loss = case.consumption, compare.loss(reference, case.ranks, atol)
    kinds = ("parameters",) if case.reduced_within else ("clipped_gradient", "parameters")
    gradients = [compare.replicas(case.ranks, kind, atol) for kind in kinds]
    found: Found = {
        "samples": None if consumption is None else Difference(consumption.difference, 0.0),
        "loss": loss[0] if loss else None,
        "replicas": max(gradients, key=lambda each: (each.there, each.max_abs)) if case.processes > 1 else None,
        "gradient": None,
        "norm": None,
        "clipped_gradient": None,
        "parameters": None,
        "optimizer_state": _state(case, lenient),
        "buffers": noted.beside(reference, case.ranks, atol),
        "notes": noted.notes(reference, case.ranks, atol),
    }
    if "gradient" in reference.vectors and case.gradient is not None:
        found["gradient"] = compare.vectors(reference.gradient, case.gradient, atol)
        found["norm"] = _norm(case, atol)
        if case.clipped_gradient is not None:
            found["clipped_gradient"] = compare.vectors(reference.clipped_gradient, case.clipped_gradient, atol)
    clipped = found["clipped_gradient"]
    same = clipped is not None and not clipped.there
    if case.clipped_gradient is not None:
        first = replace(first, vectors={**first.vectors, "clipped_gradient": case.clipped_gradient})
    found["parameters"] = compare.parameters(
        reference, first, atol, lenient, same_gradient=same, exact=case.exact or None
    )
    return found


def _state(case: Case, lenient: list[str]) -> Difference | None:
    """Moments and steps, and the numbers that rule the next update."""
    if "optimizer_state" not in case.reference.vectors or "optimizer_state" not in case.ranks[0].vectors:
        return None
    moments = compare.states(case.reference.optimizer_state, case.optimizer_state, case.atol, lenient)
    changed = case.changed_settings
    if not changed or moments.there:
        return moments
    worst = sorted(((name, abs(value - got)) for name, value, got in changed), key=lambda each: -each[1])
    return Difference(worst[0][1], 0.0, tuple(worst))


def _norm(case: Case, atol: float) -> Difference | None:
    """Of the norms that the step computed; without any on either side, nothing."""
    expected = case.reference.norms
    if case.clips_each_microbatch:
        expected = [case.reference.gradient.norm]
    return compare.norms(expected, case.norms, atol)


def first(found: Found) -> str | None:
    """The headline: the first stage that differs; a sample without effect, or a loss, is none by itself."""
    different = [stage for stage in compare.STAGES if (each := found[stage]) is not None and each.there]
    later = [stage for stage in different if compare.STAGES.index(stage) > compare.STAGES.index("loss")]
    if later:
        return "samples" if "samples" in different and "gradient" in later else later[0]
    return None


def listed(found: Found, headline: str | None) -> tuple[Stage, ...]:
    """All stages for the report."""
    return tuple(_stage(name, found[name], headline) for name in compare.STAGES)


def _stage(name: str, difference: Difference | None, headline: str | None) -> Stage:
    if difference is None:
        return Stage(name, "not compared", None)
    status: Status = "same"
    if difference.there:
        follows = headline is not None and compare.STAGES.index(name) > compare.STAGES.index(headline)
        status = "follows" if follows else "different"
    worst: Sequence[tuple[str, float]] = [each for each in difference.tensors if each[1] > difference.allowed]
    return Stage(name, status, difference.max_abs, difference.allowed, tuple(worst[:WORST]))
