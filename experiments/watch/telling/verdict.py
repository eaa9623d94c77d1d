"""Which verdict an update gets, with the one sentence that says why: the first of these that its evidence shows.

skipped, no gradient, not finite → ranks that differ → not explained → a gradient left over → clipped in between →
no tokens seen → rows against each other → the same data twice → not to be told apart → tokens thrown away →
weights by their rule
"""

from collections.abc import Sequence

import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.watch.joined.evidence import Evidence
from samestep.experiments.watch.joined.weighing import rule_within
from samestep.experiments.watch.records import Array
from samestep.experiments.watch.telling import causes
from samestep.experiments.watch.telling.causes import NOTES, filled
from samestep.experiments.watch.telling.comparing import compared
from samestep.experiments.watch.telling.saying import NOTHING, Said, cells_named, found, unexplained


def say(evidence: Evidence) -> Said:
    """The verdict of one update."""
    said = _without_weights(evidence)
    if said is None:
        said = compared(evidence)
        if said.verdict == "same" and evidence.joined.first.clipped_while_scaled:
            said = found("clip_before_unscale", scale=evidence.scale or 1.0)
    if evidence.fits and said.verdict != "vacuous":
        said.evidence += _notes(evidence)
    return said


def _without_weights(evidence: Evidence) -> Said | None:
    """What is said before any token is compared; None where there is nothing to say."""
    joined, term = evidence.joined, evidence.term
    if joined.first.skipped:
        return Said("vacuous", causes.EMPTY["skipped"])
    if joined.copies is None:
        return Said("vacuous", causes.EMPTY["no_gradient"])
    if not evidence.fits:
        return unexplained("not_finite", where=_where_not_finite(evidence))
    if not np.any(joined.copies.goals):
        return Said("vacuous", causes.EMPTY["no_gradient"])
    fit = evidence.fits[0]
    if evidence.differing:
        where = evidence.noticed("collectives_in_step")
        return _not_reduced(evidence) if where is None else unexplained("reduced_in_step", where=where)
    if not evidence.explained:
        return unexplained("residual", residual=fit.residual_all)
    if fit.leak is not None and abs(fit.leak) > NOTHING:
        return found("stale_gradient", filled(causes.STALE, leak=fit.leak))
    if joined.first.clipped_inside:
        return found("per_microbatch_clip")
    if not any(tokens.n for rank in term for tokens in rank):
        return _without_tokens(evidence)
    if (coupled := evidence.coupled()) is not None:
        return unexplained("batch_coupled", where=coupled.line or coupled.kind)
    if (same := _same_data(evidence)) is not None:
        return same
    unclear = [joined.places[j] for j in np.flatnonzero(~fit.determined)]
    if unclear := [(r, k) for r, k in unclear if term[r][k].n]:
        return unexplained("undetermined", which=cells_named(unclear))
    return None


def _where_not_finite(evidence: Evidence) -> Text:
    """The cells whose own contribution is not finite."""
    joined = evidence.joined
    wrong = [place for j, place in enumerate(joined.places) if not np.all(np.isfinite(joined.columns[:, :, j]))]
    if not wrong:
        return {"en": "", "zh": ""}
    named = cells_named(wrong)
    return {"en": f", from {named['en']}", "zh": f"，来自 {named['zh']}"}


def _not_reduced(evidence: Evidence) -> Said:
    """The ranks step with different gradients: each with its own part alone, or which tensors."""
    copies, joined = evidence.joined.copies, evidence.joined
    assert copies is not None
    own = len(evidence.fits) == len(joined.cells) and evidence.explained and not evidence.fits[0].off
    if own and all(
        abs(fit.factors[j]) < NOTHING * abs(fit.factors).max()
        for rank, fit in enumerate(evidence.fits)
        for j, (r, _) in enumerate(joined.places)
        if r != rank
    ):
        why: Text = {"en": "Each rank steps with its own backwards alone.", "zh": "每个 rank 只用自己的反向更新。"}
        return found("not_reduced", why=why)
    if own and (late := _reach_one_rank(evidence)):
        named = cells_named(late)
        return found(
            "not_reduced",
            why={
                "en": f"Of all backwards these reach the gradient of their own rank alone: {named['en']}.",
                "zh": f"各次反向中只有这些仅进入自己 rank 的梯度：{named['zh']}。",
            },
        )
    names = ", ".join(name for name, away in copies.worst[:3] if away > 0.01 * copies.difference)
    many = len(joined.names)
    return found(
        "not_reduced",
        why={
            "en": f"They differ by {copies.difference:.2g} of the gradient's size; of {many} tensors most in {names}.",
            "zh": f"相差梯度大小的 {copies.difference:.2g} 倍；{many} 个张量里差得最多的是 {names}。",
        },
    )


def _reach_one_rank(evidence: Evidence) -> list[tuple[int, int]]:
    """Backwards that were not reduced where others were: the last of a window under no_sync, for instance."""
    least = NOTHING * max(float(np.abs(fit.factors).max(initial=0.0)) for fit in evidence.fits)
    places = evidence.joined.places
    reached = [[abs(fit.factors[j]) > least for fit in evidence.fits] for j in range(len(places))]
    alone = [place for place, ranks in zip(places, reached, strict=True) if ranks[place[0]] and sum(ranks) == 1]
    return alone if len(alone) < len(places) else []


def _without_tokens(evidence: Evidence) -> Said:
    cells = [cell for rank in evidence.joined.cells for cell in rank]
    residual = evidence.fits[0].residual
    if any(cell.losses for cell in cells):
        return Said("vacuous", causes.EMPTY["no_token"])
    if evidence.noticed("compiled_loss") is not None:
        return unexplained("compiled", residual=residual)
    ends = dict.fromkeys(end for cell in cells for end in cell.ends)
    return unexplained("no_tokens", residual=residual, ends=", ".join(ends) or "?")


def _same_data(evidence: Evidence) -> Said | None:
    """Cells with the same labels and the same gradient."""
    joined, term = evidence.joined, evidence.term
    columns = joined.columns.reshape(-1, len(joined.places))
    groups: dict[tuple[str, ...], list[int]] = {}
    for j, (r, k) in enumerate(joined.places):
        digests = tuple(loss.digest for loss in joined.cells[r][k].losses)
        if term[r][k].n and digests and all(digests):
            groups.setdefault(digests, []).append(j)
    twins = []
    for group in groups.values():
        alike = [joined.places[j] for j in group if _parallel(columns[:, group[0]], columns[:, j])]
        if len(alike) > 1:
            twins.append(alike)
    if not twins:
        return None
    n = sum(tokens.n for rank in term for tokens in rank)
    twice = sum(term[r][k].n for group in twins for r, k in group[1:])
    return found("duplicated_samples", filled(causes.SAME_DATA, which=cells_named(twins[0]), n=n, unique=n - twice))


def _parallel(one: Array, other: Array) -> bool:
    length = float(np.linalg.norm(one) * np.linalg.norm(other))
    return length > 0 and float(one @ other) > (1 - 1e-9) * length


def _notes(evidence: Evidence) -> list[Text]:
    """What limits or completes the verdict."""
    notes = []
    tokens = [each for rank in evidence.term for each in rank if each.n]
    if 0 < evidence.microsteps < evidence.full:
        notes.append(filled(NOTES["partial"], k=evidence.microsteps, full=evidence.full))
    if any(each.source == "nonzero" for each in tokens):
        notes.append(NOTES["nonzero"])
    elif any(0 < each.silent < each.n for each in tokens):
        notes.append(filled(NOTES["silent"], count=sum(each.silent for each in tokens)))
    if any(rule_within(each) == "class_weights" for each in tokens):
        notes.append(NOTES["class_weights"])
    return notes + _notes_of_the_fit(evidence)


def _notes_of_the_fit(evidence: Evidence) -> list[Text]:
    notes, fit = [], evidence.fits[0]
    if fit.off and not evidence.differing:
        others = len(evidence.joined.names) - len(fit.off)
        notes.append(filled(NOTES["off"], names=_listed([each.name for each in fit.off]), others=others))
    if evidence.low_precision:
        notes.append(filled(NOTES["low_precision"], tolerance=evidence.tolerance))
    for other in evidence.weighed.others:
        factors = dict.fromkeys(f"{f:.4g}" for rank in other.factors for f in rank if f is not None)
        notes.append(filled(NOTES["other_term"], name=other.name, factor=_listed(list(factors)) or "0"))
    if unseen := evidence.unseen():
        notes.append(filled(NOTES["unseen"], names=_listed(unseen)))
    return [text for i, text in enumerate(notes) if text not in notes[:i]]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f", … ({len(names)})" if len(names) > 4 else "")
