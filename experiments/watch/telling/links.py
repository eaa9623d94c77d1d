"""Addresses in the wiki that explain an update: the section, the calculator's state, and the ledger of these counts."""

from collections.abc import Sequence

from samestep.experiments.watch.joined.weighing import Tokens
from samestep.experiments.watch.telling import causes
from samestep.experiments.watch.telling.saying import Said

LISTED = 512
"""Cells up to which a link carries the counts."""
SCHEMES = {
    "replica_equal": "replica_mean_then_ddp_mean",
    "microbatch_equal": "microstep_mean_div_K_then_ddp_mean",
}
USUAL = "P_over_N_then_ddp_mean"

Term = Sequence[Sequence[Tokens]]


def of(said: Said, term: Term) -> tuple[str, str]:
    """Calculator with its state, and chapter with its section; empty where the book has nothing to say."""
    if said.cause is None:
        return (ledger(term) or "", "first-difference#sec-weights" if said.verdict == "different" else "")
    cause = causes.cause(said.cause)
    if said.cause in SCHEMES:
        return ledger(term, SCHEMES[said.cause]) or "", cause.chapter
    found = {
        "P": len(term),
        "K": max((len(rank) for rank in term), default=1) or 1,
        "counts": _counts(term),
        "gradients": _gradients(term),
        "reference_norm": "1",
        "observed_norm": f"{abs(said.value):.6g}" if said.value else "",
        "norm_rows": "",
    }
    return cause.calculator.format(**found), cause.chapter


def ledger(term: Term, scheme: str = USUAL) -> str | None:
    """`replica_ledger` with these counts, the first cell's gradient 1; None without tokens, or for a huge window."""
    cells = sum(len(rank) for rank in term)
    if not 0 < cells <= LISTED or not any(tokens.n for rank in term for tokens in rank) or not all(map(len, term)):
        return None
    return f"replica_ledger?counts={_counts(term)}&gradients={_gradients(term)}&scheme={scheme}"


def _counts(term: Term) -> str:
    return ";".join(",".join(str(tokens.n) for tokens in rank) for rank in term)


def _gradients(term: Term) -> str:
    """1 in the first cell that has tokens, so that the ledger's sum is that cell's weight."""
    first = next(((r, k) for r, rank in enumerate(term) for k, tokens in enumerate(rank) if tokens.n), (0, 0))
    return ";".join(",".join("1" if (r, k) == first else "0" for k in range(len(rank))) for r, rank in enumerate(term))
