"""From joined records to the reports of updates."""

from collections.abc import Mapping, Sequence

import numpy as np

from samestep.experiments.watch.joined import joining, weighing
from samestep.experiments.watch.joined.evidence import Evidence
from samestep.experiments.watch.joined.fitting import EXPLAINED, Fit
from samestep.experiments.watch.joined.joining import Joined
from samestep.experiments.watch.joined.weighing import Tokens
from samestep.experiments.watch.records import Cell, RankLog
from samestep.experiments.watch.telling import links
from samestep.experiments.watch.telling.causes import OWN, cause, filled
from samestep.experiments.watch.telling.report import CellReport, FitReport, OffReport, TermReport, UpdateReport
from samestep.experiments.watch.telling.saying import Said, mass
from samestep.experiments.watch.telling.verdict import say

COARSE_HOOKS = ("fp16", "bf16")
"""Parts of the names of DDP hooks that reduce in low precision."""

Cells = tuple[tuple[CellReport, ...], ...]


def updates(logs: Mapping[int, RankLog], objective: str) -> list[UpdateReport]:
    """Every watched update of the run, in the order in which rank 0 made them."""
    steps = joining.joined(logs)
    notices = {(notice.code, notice.where) for log in logs.values() for notice in log.notices}
    coarse = any(
        code == "communication_hook" and any(part in where for part in COARSE_HOOKS) for code, where in notices
    )
    full = _full_windows(steps)
    known = []
    for (optimizer, number), joined in steps.items():
        if number >= 0:  # one before is recorded only because its gradient may be left in the next
            before = steps.get((optimizer, number - 1))
            known.append(Evidence(joined, before, full[optimizer], coarse or joined.low_precision, objective, notices))
    said = [say(evidence) for evidence in known]
    _tell_constants(known, said)
    _tell_single_microsteps(known, said)
    return [_report(i, evidence, each) for i, (evidence, each) in enumerate(zip(known, said, strict=True))]


def _full_windows(steps: Mapping[tuple[int, int], Joined]) -> dict[int, int]:
    """Of each optimizer, the backwards of a rank in its longest window."""
    full: dict[int, int] = {}
    for (optimizer, _), joined in steps.items():
        longest = max((sum(not cell.discarded for cell in rank) for rank in joined.cells), default=1)
        full[optimizer] = max(full.get(optimizer, 1), longest)
    return full


def _tell_constants(known: Sequence[Evidence], said: Sequence[Said]) -> None:
    """A factor that follows N in update after update comes from a divisor that does not, whatever its name."""
    scaled = [i for i, each in enumerate(said) if each.cause == "scale"]
    weights = [(said[i].value or 0.0) / mass(known[i]) for i in scaled]
    masses = [mass(known[i]) for i in scaled]
    if len(scaled) < 2 or weighing.spread(np.array(masses)) < 0.01 or weighing.spread(np.array(weights)) > 1e-4:
        return
    for i in scaled:
        said[i].cause = "constant_denominator"
        said[i].sentence = filled(OWN["constant_denominator"].sentence, value=said[i].factor or "")


def _tell_single_microsteps(known: Sequence[Evidence], said: Sequence[Said]) -> None:
    """With one microstep a rank, means of ranks and of microbatches coincide: full windows tell which it is."""
    if not any(each.cause == "microbatch_equal" for each in said):
        return
    for evidence, each in zip(known, said, strict=True):
        if each.cause == "replica_equal" and evidence.microsteps == 1 < evidence.full:
            each.cause, each.sentence = "microbatch_equal", filled(cause("microbatch_equal").sentence)


def _report(index: int, evidence: Evidence, said: Said) -> UpdateReport:
    joined, term = evidence.joined, evidence.term
    fit = evidence.fits[0] if evidence.fits else None
    calculator, chapter = links.of(said, term)
    certain = fit is not None and evidence.explained
    return UpdateReport(
        index=index,
        N=sum(tokens.n for rank in term for tokens in rank),
        n_source="nonzero" if any(t.source == "nonzero" for rank in term for t in rank if t.n) else "targets",
        optimizer=joined.first.name,
        processes=len(joined.updates),
        fit=_fit_report(fit, EXPLAINED[evidence.low_precision]) if fit else None,
        replica_difference=joined.copies.difference if joined.copies else 0.0,
        leak_of_last=fit.leak if fit else None,
        discarded_backwards=sum(cell.discarded for rank in joined.cells for cell in rank),
        verdict=said.verdict,
        cause=said.cause,
        factor=said.factor,
        sentence=said.sentence,
        evidence=tuple(said.evidence),
        residual=fit.residual if fit else None,
        clip=_clip(joined),
        scale=evidence.scale,
        skipped=joined.first.skipped,
        cells=_cells(evidence, term, certain),
        terms=_terms(evidence, certain),
        unseen=evidence.unseen(),
        not_compared=_not_compared(joined),
        line=joined.first.line,
        chapter=chapter,
        calculator=calculator,
        ledger=links.ledger(term),
        mass=mass(evidence),
    )


def _cells(evidence: Evidence, term: Sequence[Sequence[Tokens]], certain: bool) -> Cells:
    total = sum(tokens.n for rank in term for tokens in rank)
    return tuple(
        tuple(
            _cell(tokens, evidence.joined.cells[r][k], evidence.factors[r][k] if certain else None, total)
            for k, tokens in enumerate(rank)
        )
        for r, rank in enumerate(term)
    )


def _cell(tokens: Tokens, cell: Cell, factor: float | None, total: int) -> CellReport:
    reduction = 0.0 if cell.discarded else factor
    none = CellReport(0, None, None, None, None, None, reduction, cell.line, tokens.line, 0, "empty", cell.discarded)
    if tokens.n == 0:
        return none
    weights = None if reduction is None else tokens.local * reduction
    weight = None if weights is None else float(weights.mean())
    return CellReport(
        tokens.n,
        weight,
        None if weights is None else float(weights.min()),
        None if weights is None else float(weights.max()),
        None if weight is None else weight * total,
        float(tokens.local.mean()),
        reduction,
        cell.line,
        tokens.line,
        tokens.silent,
        weighing.rule_within(tokens),
        cell.discarded,
    )


def _terms(evidence: Evidence, certain: bool) -> tuple[TermReport, ...] | None:
    """All parts of the loss, where it has several."""
    if len(evidence.weighed.terms) + len(evidence.weighed.others) < 2:
        return None
    made = []
    for term in evidence.weighed.terms:
        name = next((t.kind for rank in term for t in rank if t.kind), "")
        line = next((t.line for rank in term for t in rank if t.line), None)
        made.append(TermReport(name, line, _cells(evidence, term, certain)))
    for other in evidence.weighed.others:
        reduced = tuple(
            tuple(None if f is None else f * evidence.factors[r][k] for k, f in enumerate(rank))
            for r, rank in enumerate(other.factors)
        )
        made.append(TermReport(other.name, other.line, None, reduced if certain else None))
    return tuple(made)


def _clip(joined: Joined) -> float | None:
    """What clipping multiplied the gradient by."""
    if joined.copies is None or not any(update.clipped for update in joined.updates):
        return None
    goal = joined.copies.goals[0].ravel()
    square = float(goal @ goal)
    return float(goal @ joined.copies.stepped[0].ravel()) / square if square else None


def _not_compared(joined: Joined) -> tuple[str, ...]:
    """Tensors with a contribution that nobody stepped with."""
    stepped = {name for update in joined.updates for name in update.gradients}
    return tuple(name for name in joined.names if name not in stepped)


def _fit_report(fit: Fit, tolerance: float) -> FitReport:
    off = tuple(OffReport(each.name, each.factors, each.residual) for each in fit.off)
    return FitReport(fit.kind, fit.residual_one, fit.one_factor, tolerance, off)
