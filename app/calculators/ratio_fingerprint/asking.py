"""What the tied explanations agree in, and what would settle the rest."""

from typing import Literal

from samestep.app.calculators.ratio_fingerprint.comparing import ratios_of, residual_of
from samestep.app.calculators.ratio_fingerprint.hypotheses import Evidence, Hypothesis
from samestep.app.calculators.ratio_fingerprint.monomials import Monomial
from samestep.app.calculators.ratio_fingerprint.ranking import Ranking
from samestep.app.calculators.ratio_fingerprint.results import Ask, Number
from samestep.app.calculators.ratio_fingerprint.separating import coprime_choice

_SCALE_ALONE = 1e-4


def agreed_factor(ranking: Ranking) -> str | None:
    """The factor that the best explanation and all tied ones share, where they differ in other things."""
    found = [c.hypothesis for c in (ranking.best, *ranking.tied) if c.hypothesis is not None]
    written = {h.written_factor for h in found}
    return written.pop() if len(written) == 1 and not ranking.best.free and not ranking.same else None


def asked_for(ranking: Ranking, evidence: Evidence) -> Ask | None:
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
    if best.hypothesis is None and _counts_would_tell(evidence):
        return "counts"
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


def _counts_would_tell(evidence: Evidence) -> bool:
    """Whether counts are missing that would show a weighting, or a factor N: then the ratio, P times or one over it is
    whole."""
    if evidence.window.counts is not None:
        return False
    if evidence.units.gradients is not None:
        return True
    ratios = ratios_of(evidence)
    if (residual_of(evidence, ratios.gradient) or 0.0) > _SCALE_ALONE:
        return False
    ratio = next((r for r in (ratios.gradient, ratios.gradient_norm, ratios.loss) if r), None)
    if ratio is None:
        return False
    sizes = (abs(ratio), abs(ratio) * evidence.window.ranks, 1 / abs(ratio))
    return any(size >= 2 and abs(size - round(size)) <= max(_SCALE_ALONE, evidence.rounding) * size for size in sizes)
