"""Rows: every path beside the reference. Controls: could a row have passed for the wrong reason?"""

from typing import cast

import torch
from torch import Tensor

from samestep.app.evidence.bags import DIFFERS, Control, Json, Row, Text
from samestep.experiments.info_nce.fixtures import Fixture
from samestep.experiments.info_nce.paths import Path
from samestep.experiments.info_nce.update import Measured
from samestep.experiments.measured import difference, difference_over, plain
from samestep.experiments.results import control, row


def compare(case: str, name: str, path: Path, ranks: list[Measured], wanted: Measured) -> Row:
    """A path's row: every rank's gradients against the reference, the replicas against each other."""
    size = len(ranks)
    nothing = torch.zeros_like(ranks[0].query)
    loss = torch.stack([rank.loss for rank in ranks]).mean()
    queries = torch.cat([rank.query for rank in ranks]) / size
    documents = torch.cat([nothing if rank.document is None else rank.document for rank in ranks]) / size
    zeros = {key: torch.zeros_like(gradient) for key, gradient in wanted.after.items()}
    after = [zeros | rank.after for rank in ranks]  # a parameter without gradient moves as one with gradient 0
    differences = {
        "loss": difference(loss, wanted.loss),
        "queries": difference(queries, wanted.query),
        "documents": difference(documents, cast(Tensor, wanted.document)),
        "wq": difference_over({str(r): each["wq"] for r, each in enumerate(after)}, _each(size, wanted.after["wq"])),
        "wd": difference_over({str(r): each["wd"] for r, each in enumerate(after)}, _each(size, wanted.after["wd"])),
        "weights": max(difference_over(rank.updated, wanted.updated) or 0.0 for rank in ranks),
    }
    agree = all(
        torch.equal(rank.updated[key], updated) for rank in ranks for key, updated in ranks[0].updated.items()
    )  # fmt: skip
    noticed = ranks[0].next_forward
    return row(
        case,
        name,
        path.title,
        path.expectation,
        differences,
        expected=path.otherwise,
        also=(agree, not noticed, ranks[0].collectives) == (path.reduced, path.reduced, path.collectives),
        values={
            "loss": plain(loss),
            "wq_gradient": plain(after[0]["wq"]) if agree else None,
            "wd_gradient": plain(after[0]["wd"]) if agree else None,
            "wq": plain(ranks[0].updated["wq"]) if agree else None,
            "wd": plain(ranks[0].updated["wd"]) if agree else None,
            "query_gradients": plain(queries),
            "document_gradients": plain(documents),
            "replicas_agree": agree,
            "collectives": ranks[0].collectives,
            "next_forward": noticed or None,
            "ranks": [of_rank(rank) for rank in ranks],
        },
    )


def of_rank(rank: Measured) -> dict[str, Json]:
    """Parameter gradients of one rank before and after DDP; null where there was none."""
    values: dict[str, Json] = {"loss": plain(rank.loss)}
    for when, gradients in (("before", rank.before), ("after", rank.after)):
        for name in ("wq", "wd"):
            values[f"{name}_{when}"] = plain(gradients[name]) if name in gradients else None
    return values


def _each(size: int, tensor: Tensor) -> dict[str, Tensor]:
    return {str(rank): tensor for rank in range(size)}


def controls(rows: list[Row], known: dict[str, Fixture]) -> list[Control]:
    """The reference moves every weight; on the asymmetric fixtures a cut gradient is no multiple of the right one."""
    gradients = {(each["case"], each["path"]): each["values"]["wd_gradient"] for each in rows}
    found = []
    for case in known:
        right = torch.tensor(cast(list[float], gradients[case, "gather_with_grad"]))
        ratios = torch.tensor(cast(list[float], gradients[case, "remote_detached"])) / right
        moves: Text = {
            "zh": f"{case}：参考梯度的每一维都不为零",
            "en": f"{case}: no element of the reference gradient is 0",
        }
        smallest = float(right.abs().min())
        found.append(control(f"{case}_moves", moves, smallest > DIFFERS, smallest=smallest))
        if case != "page":
            direction: Text = {
                "zh": f"{case}：切断后的 w_d 梯度不是正确梯度的倍数",
                "en": f"{case}: the cut gradient of w_d is no multiple of the right one",
            }
            spread = float(ratios.max() - ratios.min())
            found.append(control(f"{case}_direction", direction, spread > DIFFERS, ratios=plain(ratios)))
    return found
