"""The summands of the loss, each with weights of its own: one wrong term in a right sum is named.

T_tc is the gradient of term t on cell c alone (`graph` lets through one summand at a time). The reference's terms say
how each has to be weighted, Σ_c w_tc T_tc; the observed gradient is solved for all weights v_tc together. A term whose
gradient is the same on every cell is a constant, and counts by the sum of its weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging.case import Case, padded
from samestep.experiments.audit.judging.explaining import reweighting
from samestep.experiments.audit.judging.explaining.constants import regulariser
from samestep.experiments.audit.judging.explaining.reweighting import CONDITION, Reweighting
from samestep.experiments.audit.running.recorder import NAMED
from samestep.experiments.audit.running.variations import Term
from samestep.experiments.audit.running.vectors import Array, Vectors
from samestep.experiments.audit.telling.report import Finding, Weights
from samestep.experiments.audit.telling.wording import finding, listing, number

ALIKE = 1e-9
"""Relative difference of gradients that do not depend on the samples."""


@dataclass(frozen=True)
class Block:
    """One term: its columns (one for a constant), the reference's weights of them, and where they are in the solution.

    `right` is None where the term on the whole batch is no sum of the term on the cells.
    """

    name: str
    columns: Array
    right: Array | None
    constant: bool
    first: int


def explain_terms(case: Case) -> Finding | None:
    """A finding if exactly the terms explain the gradient and some of them are weighted wrongly."""
    if case.variations is None or case.gradient is None or len(case.reference.terms) < 2 or case.blurred:
        return None
    blocks = list(_blocks(case))
    if len(blocks) < 2:
        return None
    observed = _flat(case.gradient, case.gradient)
    columns = np.concatenate([block.columns for block in blocks], axis=1)
    if len(observed) <= 2 * columns.shape[1]:
        return None
    lengths = np.linalg.norm(columns, axis=0)
    solved, _, rank, _ = np.linalg.lstsq(columns / lengths, observed, rcond=CONDITION)
    weights = solved / lengths
    fits = max(1e-7, reweighting.fitting(case.near))
    if np.linalg.norm(observed - columns @ weights) > fits * np.linalg.norm(observed) or rank < columns.shape[1]:
        return None
    wrong = [block for block in blocks if not _is_right(block, _of(block, weights), fits)]
    findings = [
        _finding(case, block, _of(block, weights), [b.name for b in blocks if b not in wrong]) for block in wrong
    ]
    return findings[0] if findings else None


def _of(block: Block, weights: Array) -> Array:
    return weights[block.first : block.first + block.columns.shape[1]]


def _is_right(block: Block, weights: Array, fits: float) -> bool:
    if block.right is None:
        return False
    return bool(np.max(np.abs(weights - block.right)) <= max(1e-6, 100 * fits) * np.max(np.abs(block.right)))


def _terms(case: Case) -> list[tuple[str, Term]]:
    """Names for the report, and for a run."""
    names = case.reference.terms
    if names[0].startswith(NAMED):
        return [(name.removeprefix(NAMED), name) for name in names]
    return [(f"{name.partition(' ')[2]}, {i + 1}", name) for i, name in enumerate(names)]


def _blocks(case: Case) -> Iterator[Block]:
    """Every term that has a gradient."""
    assert case.variations is not None
    assert case.gradient is not None
    cells = [cell for row in padded(case.cells) for cell in row if cell]
    first = 0
    for name, term in _terms(case):
        whole = case.variations.gradient(None, term)
        parts = [case.variations.gradient(cell, term) for cell in cells]
        if whole is None or any(part is None for part in parts):
            return
        columns = np.stack([_flat(part, case.gradient) for part in parts if part is not None], axis=1)
        target = _flat(whole, case.gradient)
        if not np.any(columns) and not np.any(target):
            continue
        if not np.all(np.any(columns, axis=0)):
            return
        mean = columns.mean(axis=1, keepdims=True)
        constant = bool(np.linalg.norm(columns - mean) <= ALIKE * np.linalg.norm(columns))
        block = Block(
            name, mean if constant else columns, _right(case, mean if constant else columns, target), constant, first
        )
        first += block.columns.shape[1]
        yield block


def _flat(vectors: Vectors, like: Vectors) -> Array:
    """One long vector of these tensors; what is missing is zero."""
    return np.concatenate([vectors[name].ravel() if name in vectors else np.zeros(like.size(name)) for name in like])


def _right(case: Case, columns: Array, target: Array) -> Array | None:
    fits = max(1e-7, reweighting.fitting(case.near))
    counts = np.array([case.count(cell) for row in padded(case.cells) for cell in row if cell])
    if len(counts) == columns.shape[1] and case.weight:
        usual = counts / case.weight
        if np.linalg.norm(target - columns @ usual) <= fits * np.linalg.norm(target):
            return usual
    lengths = np.linalg.norm(columns, axis=0)
    solved, _, rank, _ = np.linalg.lstsq(columns / lengths, target, rcond=CONDITION)
    weights: Array = solved / lengths
    missed = np.linalg.norm(target - columns @ weights)
    return weights if rank == columns.shape[1] and missed <= fits * np.linalg.norm(target) else None


def _finding(case: Case, block: Block, weights: Array, right: list[str]) -> Finding:
    others: Text = (
        {"en": f"Right: {', '.join(right)}.", "zh": f"正确的：{'、'.join(right)}。"}
        if right
        else {"en": "No other term is right either.", "zh": "其余各项也都不对。"}
    )
    this: Text = {"en": f"This is the term “{block.name}” of the loss.", "zh": f"这是损失中的“{block.name}”项。"}
    evidence = (this, others)
    if block.constant:
        return regulariser(
            case, float(weights[0]) / float(block.right[0]) if block.right is not None else None, [block.name], evidence
        )
    if block.right is None:
        return finding(case, "parts_alone", part=PART_OF_ALL, evidence=evidence, term=block.name)
    ratio = weights / block.right
    if np.max(np.abs(ratio - ratio[0])) <= 1e-6 * abs(ratio[0]):
        named = case.named(float(ratio[0]))
        return finding(
            case,
            "scale",
            names=named.names,
            evidence=evidence,
            factor=f"{named.name} = {number(named.value)}" if named.names else number(named.value),
            usual=TERM_USUAL,
            term=block.name,
        )
    return _reweighted(case, block, weights, evidence)


PART_OF_ALL: Text = {"en": "microbatch of each rank", "zh": "rank 的每个微批"}
TERM_USUAL: Text = {"en": "this term is divided otherwise than the others", "zh": "这一项的除法与其余各项不同"}


def _reweighted(case: Case, block: Block, weights: Array, evidence: tuple[Text, ...]) -> Finding:
    assert block.right is not None
    used = [[bool(cell) for cell in row] for row in padded(case.cells)]
    observed, right, counts = (_spread(used, each) for each in (weights, block.right, _samples(case)))
    rule: Reweighting = reweighting.named(observed, right, counts, len(used), 1e-6)
    shown = Weights(_rows(observed, len(used)), _rows(right, len(used)))
    known = ("replica_equal", "microbatch_equal", "sample_share", "reduced_repeatedly")
    if rule.pattern in known:
        return finding(case, rule.pattern, weights=shown, evidence=evidence, term=block.name)
    if rule.pattern == "dropped_microbatch":
        cells = [cell for row in padded(case.cells) for cell in row]
        samples = listing(sorted(sample for cell in rule.cells for sample in cells[cell]))
        which: Text = {
            "en": f"sample {samples} in the term “{block.name}”",
            "zh": f"“{block.name}”项中的样本 {samples}",
        }
        return finding(case, rule.pattern, weights=shown, evidence=evidence, term=block.name, which=which)
    text: Text = {
        "en": "One term of the loss is weighted otherwise than on one process.",
        "zh": "损失中有一项的权重与单进程不同。",
    }
    return finding(case, "unknown", weights=shown, evidence=evidence, what=text, term=block.name)


def _samples(case: Case) -> Array:
    return np.array([float(len(cell)) for row in padded(case.cells) for cell in row if cell])


def _spread(used: list[list[bool]], values: Array) -> Array:
    """Values of the cells that have samples, with zeros for those that have none."""
    spread = np.zeros(len(used) * len(used[0]))
    spread[np.array(used).ravel()] = values
    return spread


def _rows(weights: Array, ranks: int) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(weight) for weight in row) for row in weights.reshape(ranks, -1))
