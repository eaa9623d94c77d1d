"""What open_clip's ranks do, beside what they should do, worked out in one process (on demand: 10 seconds)."""

import pytest
import torch
from torch.nn import functional

from samestep.experiments.conformance.adapter import Contrastive
from samestep.experiments.conformance.frameworks import FRAMEWORKS
from samestep.experiments.conformance.frameworks.contrastive_pairs import (
    LOG_SCALE,
    Pairs,
    Towers,
    compared,
    mean,
    symmetric,
)
from samestep.experiments.conformance.pairs import Report, measure
from samestep.experiments.conformance.scenarios import SCENARIOS

PAIRS = Pairs(SCENARIOS["pairs"])


@pytest.fixture(scope="module")
def report() -> Report:
    return measure(FRAMEWORKS["open_clip"], ["pairs", "pairs_unequal"], lambda what, done: None)


def local_loss(constant: str) -> Contrastive:
    """Each rank's rows beside all pairs, over the full batch. `constant`: which gathered embeddings have no gradient,
    "all", the "remote" ones or "none".
    """
    towers = Towers({"temperature": LOG_SCALE})
    losses = []
    for rank, mine in enumerate(PAIRS.of_rank):
        both = [towers(PAIRS.queries[part], PAIRS.documents[part]) for part in PAIRS.of_rank]
        gathered = [
            torch.cat(
                [
                    each[side].detach() if constant == "all" or (constant == "remote" and r != rank) else each[side]
                    for r, each in enumerate(both)
                ]
            )
            for side in (0, 1)
        ]
        scale = towers.groups["temperature"].exp()
        for own, others in ((both[rank][0], gathered[1]), (both[rank][1], gathered[0])):
            losses.append(functional.cross_entropy(scale * own @ others.T, torch.tensor(mine)))
    queries, documents, scalars = towers(PAIRS.queries, PAIRS.documents)
    whole = symmetric(queries, documents, scalars["temperature"].exp())
    names, parameters = zip(*towers.groups.items(), strict=True)
    update, wanted = (
        dict(zip(names, torch.autograd.grad(objective, parameters, retain_graph=True), strict=True))
        for objective in (mean(losses), whole)
    )
    return compared(update, wanted)


@pytest.mark.parametrize(
    ("setting", "constant"), [("clip_local_loss", "all"), ("clip_local_loss_gather_with_grad", "none")]
)
def test_local_loss_takes_gathered_embeddings_for_constants_even_its_own(
    report: Report, setting: str, constant: str
) -> None:
    for measured in report.measured[setting, "pairs"]:
        assert measured is not None
        for name, proportion in local_loss(constant).groups.items():
            assert measured["groups"][name]["factor"] == pytest.approx(proportion.factor, abs=1e-12)
            assert measured["groups"][name]["residual"] == pytest.approx(proportion.residual, abs=1e-12)
        own_copies_kept = local_loss("remote").groups["query"].factor
        assert abs(measured["groups"]["query"]["factor"] - own_copies_kept) > 0.05


def test_unequal_ranks_are_aborted_by_gloo_and_do_not_just_fail(report: Report) -> None:
    reason = report.failed["clip_local_loss_gather_with_grad", "pairs_unequal"]
    assert "SIGABRT" in reason
