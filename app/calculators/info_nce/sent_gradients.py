"""The full objective query by query: logits, probabilities, and what each query sends to each document."""

from typing import NamedTuple

import numpy as np

from samestep.app.calculators.info_nce.embeddings import Embeddings
from samestep.app.calculators.info_nce.unit_vectors import through_unit
from samestep.app.contract.models import Result

MAX_LISTED_QUERIES = 64
MAX_LISTED_PARTS = 65_536
"""Above these a panel leaves out the table and the contributions of single queries."""

Component = float | list[float]
"""A vector; a plain number where there is one dimension."""


class TableRow(Result):
    """One query of the full objective: its logits and probabilities over all documents."""

    query: int
    logits: list[float]
    probabilities: list[float]


class SentGradients(NamedTuple):
    """`contributions[j][i]` is the part of ∂L/∂d_j that runs through logit_ij, with 1/N (and the halves) inside."""

    table: list[TableRow]
    contributions: list[list[Component]]


def listed(embeddings: Embeddings) -> bool:
    """Whether there are few enough queries to list."""
    queries = len(embeddings.q)
    return queries <= MAX_LISTED_QUERIES and queries * embeddings.q.size <= MAX_LISTED_PARTS


def sent_gradients(embeddings: Embeddings) -> SentGradients | None:
    """For embeddings without hard negatives; None where float64 cannot hold a logit or a part."""
    q, d, scale, shares = embeddings.q, embeddings.d, embeddings.scale, embeddings.directions
    form = embeddings.logits
    labels = np.arange(len(q))
    similarities = q @ d.T
    block = form.block(similarities.copy(), labels)
    through = shares["q2d"] * block.derivative()
    if "d2q" in shares:
        back = form.block(similarities.T.copy(), labels)
        through = through + shares["d2q"] * back.derivative().T
    logits = scale * similarities + (form.bias or 0.0)
    parts = (scale / len(labels) * through.T)[:, :, None] * q
    if embeddings.lengths is not None:
        parts = through_unit(parts, d[:, None, :], embeddings.lengths["d"][:, None, None])
    if not (np.isfinite(logits).all() and np.isfinite(parts).all()):
        return None
    rows = zip(logits.tolist(), block.probabilities(labels).tolist(), strict=True)
    return SentGradients(
        [TableRow(query=i, logits=row, probabilities=p) for i, (row, p) in enumerate(rows)],
        [[component(part) for part in sent] for sent in (parts + 0.0).tolist()],
    )


def component(vector: list[float]) -> Component:
    return vector[0] if len(vector) == 1 else vector
