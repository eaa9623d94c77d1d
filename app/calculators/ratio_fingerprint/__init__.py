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

import numpy as np

from samestep.app.calculators.ratio_fingerprint.asking import agreed_factor, asked_for
from samestep.app.calculators.ratio_fingerprint.comparing import projection, ratios_of, residual_of
from samestep.app.calculators.ratio_fingerprint.evidence import Channel, Numbers, evidence_of
from samestep.app.calculators.ratio_fingerprint.hypotheses import Evidence, Hypothesis
from samestep.app.calculators.ratio_fingerprint.inputs import Inputs, Query
from samestep.app.calculators.ratio_fingerprint.monomials import SINGLES
from samestep.app.calculators.ratio_fingerprint.ranking import Candidate, Ranking, rank
from samestep.app.calculators.ratio_fingerprint.results import Ask, Cause, Entry, Mark, Next, Result
from samestep.app.calculators.ratio_fingerprint.solved_weights import as_fractions, solved_weights
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
    "1/P^2": "divided_by_ranks_twice",
}
_NEXT: dict[str, Next] = {
    "replica_equal": "replica_means",
    "microbatch_equal": "microbatch_means",
    "sample_weighted": "sample_weights",
    "dropped_microbatch": "which_microbatch",
    "duplicated_samples": "which_samples",
    "rescaled_accumulation": "rescaled_gradient",
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
    ratios = ratios_of(evidence)
    ratio = next((r for r in (ratios.gradient, ratios.gradient_norm, ratios.loss) if r is not None), None)
    ranking = None if ratio is None else rank(evidence)
    ask = Ask(number="gradient", P=None, K=None, counts=None) if ranking is None else asked_for(ranking, evidence)
    weights = solved_weights(evidence)
    return Result(
        defined=ratio is not None,
        ratio=ratio,
        residual=residual_of(evidence, ratios.gradient),
        ratios=ratios,
        same=ranking is not None and ranking.same,
        cannot_tell=ranking is None or ranking.cannot_tell,
        agreed_factor=None if ranking is None else agreed_factor(ranking),
        causes=[] if ranking is None else _causes(ranking, evidence),
        ask=ask,
        consistent=consistent,
        count=evidence.window.total if evidence.window.counts is not None else None,
        effective_weights=None if weights is None else weights.tolist(),
        effective_weights_exact=None if weights is None else as_fractions(weights),
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
    weighting = None if found is None else found.weighting
    place = () if found is None else weighting.place if weighting else found.norm_place
    places = weighting.places if weighting and weighting.places else (place,) if place else ()
    return Cause(
        code=codes[0],
        codes=list(codes),
        factor=None if found is None or candidate.free else found.written_factor,
        on=None if found is None else found.on,
        place=list(place),
        places=[list(one) for one in places],
        base=weighting.base if weighting else None,
        form=weighting.form if weighting else "",
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
        ratio = projection(candidate.gradient, evidence.seen_gradient[0])
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
