"""One update by one path on one rank, and the reference: one process that holds all pairs."""

from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from samestep.experiments.info_nce.fixtures import Encoders, Fixture
from samestep.experiments.info_nce.paths import Group, Path, own_only
from samestep.experiments.ranks.world import collectives

LEARNING_RATE = 0.1


class Measured(NamedTuple):
    """One rank's side: the loss it backpropagated and gradients before and after DDP (None: there was none)."""

    loss: Tensor
    query: Tensor
    document: Tensor | None
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    updated: dict[str, Tensor]
    collectives: int
    next_forward: str


def measure(group: Group, fixture: Fixture, path: Path) -> Measured:
    """One update by one path on this rank."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    a, b = torch.tensor(fixture.a[rank : rank + 1]), torch.tensor(fixture.b[rank : rank + 1])
    encoders = Encoders(a.shape[1]).to(a.device)
    replica = DistributedDataParallel(encoders, process_group=group)
    before: dict[str, Tensor] = {}
    for name, parameter in encoders.named_parameters():  # a tensor hook sees the local gradient, before DDP averages
        record = partial(_record, before, name)
        parameter.register_hook(record)  # type: ignore[no-untyped-call]
    count = collectives(group)
    query, document = replica(a, b)
    query.retain_grad()
    document.retain_grad()
    candidates = path.gather(document, group)
    queries = path.gather(query, group) if path.whole else query
    own_column = 0 if path.gather is own_only else rank
    labels = torch.arange(size) if path.whole else torch.tensor([own_column])
    loss = path.factor(size) * cross_entropy(queries @ candidates.T / fixture.temperature, labels)
    torch.autograd.backward(loss)
    count = collectives(group) - count
    after = {name: p.grad.clone() for name, p in encoders.named_parameters() if p.grad is not None}
    torch.optim.SGD(encoders.parameters(), LEARNING_RATE).step()
    updated = {name: parameter.detach().clone() for name, parameter in encoders.named_parameters()}
    return Measured(
        loss.detach(), query.grad, document.grad, before, after, updated, count, _again(replica, a, b)
    )  # fmt: skip


def _record(gradients: dict[str, Tensor], name: str, gradient: Tensor) -> None:
    gradients[name] = gradient.clone()


def _again(replica: nn.Module, a: Tensor, b: Tensor) -> str:
    """DDP notices a parameter that no rank used only when the next step begins: what it says then."""
    try:
        replica(a, b)
    except RuntimeError as error:
        return str(error).partition(".")[0]
    return ""


def reference(fixture: Fixture) -> Measured:
    """One process, all pairs: the mean loss over all queries."""
    a, b = torch.tensor(fixture.a), torch.tensor(fixture.b)
    encoders = Encoders(a.shape[1]).to(a.device)
    query, document = encoders(a, b)
    query.retain_grad()
    document.retain_grad()
    loss = cross_entropy(query @ document.T / fixture.temperature, torch.arange(len(a)))
    torch.autograd.backward(loss)
    gradients = {name: p.grad.clone() for name, p in encoders.named_parameters() if p.grad is not None}
    updated = {name: p.detach() - LEARNING_RATE * gradients[name] for name, p in encoders.named_parameters()}
    return Measured(loss.detach(), query.grad, document.grad, gradients, gradients, updated, 0, "")
