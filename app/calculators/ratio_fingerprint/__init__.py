"""Which fault a ratio names: the numbers of a parallel step beside the right ones, and every known cause ranked by fit.

Words and symbols: P data-parallel ranks, K accumulation microsteps, n_rk valid tokens of a cell, N = Σ n_rk. The
reference is the right update (one process, or all cells by n_rk/N); observed is what the run under suspicion showed:
its loss, the norm of its gradient, or some entries of the gradient g. With entries

    ratio k = <g, g*> / <g*, g*>        residual = |g - k·g*| / |g|

so that a pure scale error has the residual 0 and its factor as ratio; without entries the ratio is that of the norms,
or of the losses. `per_rank` and `per_cell` hold mean gradient and loss of a rank's or cell's own tokens; from them and
the counts follow the predictions of the faults that only weight cells wrongly. The hypotheses are those of
`hypotheses`, the ranking that of `ranking`; nothing here is a table of ratios. Sources of the faults: the
mean that the objective defines, DDP's average over ranks and `clip_grad_norm_`'s norm (PyTorch documentation).
"""

from typing import Literal

import numpy as np

from samestep.app.calculators.ratio_fingerprint.evidence import Channel, Numbers, evidence_of
from samestep.app.calculators.ratio_fingerprint.hypotheses import Evidence, Hypothesis
from samestep.app.calculators.ratio_fingerprint.inputs import Inputs, Query
from samestep.app.calculators.ratio_fingerprint.monomials import SINGLES, Monomial
from samestep.app.calculators.ratio_fingerprint.ranking import Candidate, Ranking, rank
from samestep.app.calculators.ratio_fingerprint.results import Ask, Cause, Entry, Mark, Next, Number, Ratios, Result
from samestep.app.calculators.ratio_fingerprint.separating import coprime_choice
from samestep.app.contract.arrays import Floats
from samestep.app.contract.errors import InputError

__all__ = ["Inputs", "Query", "Result", "compute", "panel"]

MAX_LISTED = 12
"""So many causes are listed, and gradient entries of a prediction."""
_LEAST_FIT, _FARTHEST = 1e-3, 0.2
"""What fits worse, or misses by more, is not listed."""

_SCALES: dict[str, Next] = {
    "P": "reduction_sums",
    "1/P": "reduction_averages",
    "K": "accumulation_sums",
    "1/K": "divided_twice",
    "P*K": "both_sum",
    "1/(P*K)": "both_divide",
    "N": "loss_is_a_sum",
    "N/P": "loss_is_a_sum_averaged",
    "1/N": "count_divided_twice",
    "P^2": "scaled_by_ranks_twice",
}
_NEXT: dict[str, Next] = {
    "replica_equal": "replica_means",
    "microbatch_equal": "microbatch_means",
    "sample_weighted": "sample_weights",
    "dropped_microbatch": "which_microbatch",
    "duplicated_samples": "which_samples",
    "not_reduced": "reduction_missing",
    "detached_remote": "remote_gradient",
    "local_norm": "norm_of_shards",
    "copies_counted": "norm_of_copies",
    "sign_flip": "sign_of_loss",
}


@np.errstate(all="ignore")
def compute(inputs: Inputs) -> Result:
    """Rank every cause; InputError where the numbers do not fit together or there is nothing to compare."""
    evidence, consistent = evidence_of(_numbers(inputs))
    return _result(evidence, consistent)


def _result(evidence: Evidence, consistent: bool | None) -> Result:
    ratios = _ratios(evidence)
    ratio = next((r for r in (ratios.gradient, ratios.gradient_norm, ratios.loss) if r is not None), None)
    ranking = None if ratio is None else rank(evidence)
    ask = Ask(number="gradient", P=None, K=None, counts=None) if ranking is None else _ask(ranking, evidence)
    return Result(
        defined=ratio is not None,
        ratio=ratio,
        residual=_residual(evidence, ratios.gradient),
        ratios=ratios,
        same=ranking is not None and ranking.same,
        cannot_tell=ranking is None or ranking.cannot_tell,
        agreed_factor=None if ranking is None else _agreed(ranking),
        causes=[] if ranking is None else _causes(ranking, evidence),
        ask=ask,
        consistent=consistent,
        count=evidence.window.total if evidence.window.counts is not None else None,
        entries=_entry_rows(evidence),
        scale=[Mark(factor=str(f), value=evidence.value(f)) for f in evidence.factors(SINGLES)],
        reason=None if ratio is not None else "zero_reference",
    )


_FIELDS: dict[tuple[str, str], str] = {
    ("reference", "loss"): "reference_loss",
    ("reference", "gradient_norm"): "reference_norm",
    ("reference", "gradient"): "reference_gradient",
    ("reference", "replicated_norm"): "replicated_norm",
    ("reference", "per_rank"): "part_gradients",
    ("reference", "per_cell"): "part_gradients",
    ("observed", "loss"): "observed_loss",
    ("observed", "gradient"): "observed_gradient",
}


def panel(query: Query) -> Result:
    """The panel's state, through the same `compute`; errors name the panel's fields."""
    try:
        return compute(query.inputs())
    except InputError as error:
        path = error.field
        if path[:1] in (("reference",), ("observed",)):
            named = _FIELDS.get((str(path[0]), str(path[1])) if len(path) > 1 else ("", ""), "observed_norm")
            named = "part_losses" if path[-1] == "loss" and len(path) > 2 else named
            raise InputError(error.en, error.zh, field=named, code=error.code) from None
        raise


def _numbers(inputs: Inputs) -> Numbers:
    reference, observed = inputs.reference, inputs.observed
    if reference.per_rank is not None and reference.per_cell is not None:
        en, zh = "give per_rank or per_cell, not both", "per_rank 与 per_cell 只能给一个"
        raise InputError(en, zh, field=("reference", "per_cell"), code="exclusive")
    if reference.per_rank is not None and len(reference.per_rank) != inputs.P:
        en, zh = f"needs one entry a rank, P = {inputs.P}", f"应每个 rank 一项，P = {inputs.P}"
        raise InputError(en, zh, field=("reference", "per_rank"), code="shape_mismatch")
    cells = reference.per_cell
    if cells is not None and [len(row) for row in cells] != [inputs.K] * inputs.P:
        en, zh = f"needs P = {inputs.P} rows of K = {inputs.K} cells", f"应有 P = {inputs.P} 行，每行 K = {inputs.K} 格"
        raise InputError(en, zh, field=("reference", "per_cell"), code="shape_mismatch")
    units = reference.per_rank or [part for row in cells or [] for part in row]
    return Numbers(
        ranks=inputs.P,
        microsteps=inputs.K,
        counts=inputs.counts,
        samples=inputs.samples,
        units=[Channel(part.gradient, part.loss) for part in units],
        units_path="per_rank" if cells is None else "per_cell",
        reference=Channel(reference.gradient, reference.loss),
        reference_norm=reference.gradient_norm,
        replicated_norm=reference.replicated_norm,
        observed=Channel(observed.gradient, observed.loss),
        observed_norm=observed.gradient_norm,
    )


def _ratios(evidence: Evidence) -> Ratios:
    gradient = None
    if evidence.seen_gradient is not None:
        gradient = _projection(evidence.seen_gradient[1], evidence.seen_gradient[0])
    return Ratios(loss=_quotient(evidence.seen_loss), gradient_norm=_quotient(evidence.seen_norm), gradient=gradient)


def _quotient(seen: tuple[float, float] | None) -> float | None:
    return seen[1] / seen[0] if seen is not None and seen[0] else None


def _projection(vector: Floats, reference: Floats) -> float | None:
    """<vector, reference> / <reference, reference>."""
    peak = float(np.abs(reference).max())
    if peak == 0:
        return None
    unit = reference / peak
    return float((vector / peak) @ unit) / float(unit @ unit)


def _residual(evidence: Evidence, ratio: float | None) -> float | None:
    if evidence.seen_gradient is None or ratio is None:
        return None
    reference, observed = evidence.seen_gradient
    peak = float(np.abs(observed).max())
    if peak == 0:
        return 0.0
    return float(np.linalg.norm((observed - ratio * reference) / peak) / np.linalg.norm(observed / peak))


def _causes(ranking: Ranking, evidence: Evidence) -> list[Cause]:
    total = sum(c.weight for c in ranking.candidates)
    tied = {id(c) for c in ranking.tied}
    if ranking.tied:
        tied.add(id(ranking.best))
    named = [c for c in ranking.candidates if c.hypothesis is None or c.hypothesis.codes]
    kept = [c for c in named if id(c) in tied or (c.weight / total >= _LEAST_FIT and c.error <= _FARTHEST)]
    return [_cause(c, evidence, c.weight / total, id(c) in tied) for c in kept[:MAX_LISTED]]


def _cause(candidate: Candidate, evidence: Evidence, fit: float, tied: bool) -> Cause:
    found = candidate.hypothesis
    codes = ("unknown",) if found is None else found.codes
    gradient = candidate.gradient if evidence.seen_gradient is not None else None
    place = () if found is None else found.weighting.place if found.weighting else found.norm_place
    return Cause(
        code=codes[0],
        codes=list(codes),
        factor=None if found is None or candidate.free else found.written_factor,
        on=None if found is None else found.on,
        place=list(place),
        form=found.weighting.form if found is not None and found.weighting else "",
        predicted=None if candidate.free else _predicted_ratio(candidate, evidence),
        predicted_loss=candidate.loss,
        predicted_norm=candidate.norm,
        predicted_gradient=None if gradient is None else gradient[:MAX_LISTED].tolist(),
        share=candidate.share,
        error=None if found is None else candidate.error,
        fit=fit,
        tied=tied,
        next=_next(found, codes[0]),
    )


def _predicted_ratio(candidate: Candidate, evidence: Evidence) -> float | None:
    """The predicted value over the reference, on the channel that the answer's own ratio is of."""
    if evidence.seen_gradient is not None and candidate.gradient is not None:
        ratio = _projection(candidate.gradient, evidence.seen_gradient[0])
        if ratio is not None:
            return ratio
    if evidence.seen_norm is not None and evidence.seen_norm[0]:
        return None if candidate.norm is None else candidate.norm / evidence.seen_norm[0]
    if evidence.seen_loss is not None and evidence.seen_loss[0] and candidate.loss is not None:
        return candidate.loss / evidence.seen_loss[0]
    return None


def _next(found: Hypothesis | None, code: str) -> Next:
    if found is None:
        return "capture_step"
    if code == "scale":
        return "logged_loss" if found.on == "loss" else _SCALES.get(str(found.factor), "two_factors")
    return _NEXT[code]


def _agreed(ranking: Ranking) -> str | None:
    """The factor that the best explanation and all tied ones share, where they differ in other things."""
    found = [c.hypothesis for c in (ranking.best, *ranking.tied) if c.hypothesis is not None]
    written = {h.written_factor for h in found}
    return written.pop() if len(written) == 1 and not ranking.best.free and not ranking.same else None


def _ask(ranking: Ranking, evidence: Evidence) -> Ask | None:
    """What would settle it; None where nothing is open."""
    if not ranking.cannot_tell:
        return None
    found = [c.hypothesis for c in (ranking.best, *ranking.tied) if c.hypothesis is not None]
    alike = any(h.weighting is not None and h.weighting.alike for h in found)
    count = evidence.window.total or 1.0
    factors: list[Monomial] = [h.factor * h.norm_factor * h.loss_factor for h in found]
    choice = None
    if len(set(factors)) > 1:
        choice = coprime_choice(factors, evidence.window.ranks, evidence.window.microsteps, count)
    number = _further_number(ranking, found, evidence)
    counts: Literal["unequal", "other"] | None = "unequal" if alike else None
    if number is None and choice is None and counts is None:
        counts = "other"
    return Ask(number=number, P=choice[0] if choice else None, K=choice[1] if choice else None, counts=counts)


def _further_number(ranking: Ranking, found: list[Hypothesis], evidence: Evidence) -> Number | None:
    """The number that would tell most: the next rung that was not looked at, or what a free fault leaves open."""
    best = ranking.best
    if best.free and best.hypothesis is not None:
        open_numbers: dict[str, Number] = {"local_norm": "norm_per_rank", "copies_counted": "replicated_norm"}
        return open_numbers.get(best.hypothesis.codes[0], "per_rank")
    if best.hypothesis is None or (ranking.same and evidence.loss_alone):
        if evidence.seen_gradient is None:
            return "gradient"
        return "per_rank" if evidence.units.gradients is None else "gradient_norm" if not evidence.seen_norm else None
    if evidence.seen_gradient is None and (
        len({h.flipped for h in found}) > 1 or len({h.norm_code for h in found}) > 1
    ):
        return "gradient"
    if evidence.seen_norm is None and evidence.loss_alone:
        return "gradient_norm"
    return None


def _entry_rows(evidence: Evidence) -> list[Entry] | None:
    if evidence.seen_gradient is None:
        return None
    return [
        Entry(
            reference=reference,
            observed=observed,
            ratio=observed / reference if reference else None,
            reason=None if reference else "zero_reference",
        )
        for reference, observed in zip(*(part[:64].tolist() for part in evidence.seen_gradient), strict=True)
    ]
