"""Training loops as people write them, for two ranks: each is run unwatched and watched by `scenarios.py`.

Every loop makes the updates of `COUNTS`: so many labels in each (rank, microstep), consecutive from the left. A loop
returns the parameters that it ends with.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

COUNTS = [[[14, 2, 10], [4, 6, 22]], [[16, 4, 14], [10, 16, 4]]]
"""[update][rank][microstep]"""
VOCABULARY, WIDTH, LENGTH = 40, 16, 12
Loop = Callable[..., list[Tensor]]
LOOPS: dict[str, Loop] = {}


def loop(made: Loop) -> Loop:
    """Register it under its own name."""
    LOOPS[made.__name__] = made
    return made


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(functional.gelu(self.inner(self.norm(x))))


class Model(nn.Module):
    """Logits [batch, time, vocabulary]; with `labels` its own mean loss."""

    def __init__(self, tied: bool = False, recompute: bool | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.recompute = recompute
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x) if self.recompute is None else checkpoint(block, x, use_reentrant=self.recompute)
        logits: Tensor = self.head(x)
        return logits if labels is None else mean(logits, labels)


def mean(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.view(-1, VOCABULARY).float(), labels.view(-1), ignore_index=-100)


def total(logits: Tensor, labels: Tensor) -> Tensor:
    flat = logits.view(-1, VOCABULARY)
    return functional.cross_entropy(flat, labels.view(-1), ignore_index=-100, reduction="sum")


def windows(rank: int, counts: Any = COUNTS) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """For every update this rank's microbatches: two sequences, a longer and a shorter one."""
    generator = torch.Generator().manual_seed(100 + rank)
    for window in counts:
        batches = []
        for count in window[rank]:
            tokens = torch.randint(VOCABULARY, (2, LENGTH + 1), generator=generator)
            longer = min(LENGTH, 2 * count // 3)
            lengths = torch.tensor([[longer], [count - longer]])
            batches.append((tokens[:, :-1], tokens[:, 1:].masked_fill(torch.arange(LENGTH) >= lengths, -100)))
        yield batches


def seeded(made: Callable[[], nn.Module] = Model) -> nn.Module:
    torch.manual_seed(0)
    return made()


def parameters(model: nn.Module) -> list[Tensor]:
    return [getattr(p, "_local_tensor", p).detach().clone() for p in model.parameters()]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def waits(model: nn.Module, last: bool) -> AbstractContextManager[None]:
    return nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync()


def train(
    model: nn.Module,
    rank: int,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    counts: Any = COUNTS,
    max_norm: float | None = 1.0,
    autocast: bool = False,
) -> list[Tensor]:
    """Accumulate, clip, step, zero; `loss` of logits and labels, None for the model's own mean."""
    optimizer = optimizer or adam(model)
    for batches in windows(rank, counts):
        for k, (tokens, labels) in enumerate(batches):
            with waits(model, k == len(batches) - 1):
                with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                    value = model(tokens, labels) if loss is None else loss(model(tokens), labels)
                (value / len(batches)).backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)


# ---- right and wrong over DDP -----------------------------------------------------------------------------------


@loop
def ddp_mean(rank: int) -> list[Tensor]:
    """The mean of each microbatch, divided by K: a mean of means."""
    return train(DistributedDataParallel(seeded()), rank)


@loop
def ddp_global(rank: int) -> list[Tensor]:
    """P·S/N: right."""
    return _summed(rank, lambda n: 2 / n)


@loop
def ddp_one_over_n(rank: int) -> list[Tensor]:
    """S/N, which DDP divides by P on top."""
    return _summed(rank, lambda n: 1 / n)


@loop
def ddp_constant(rank: int) -> list[Tensor]:
    """S divided by the places of a microbatch, labelled or not."""
    return _summed(rank, lambda n: 2 / (2 * 2 * LENGTH * 3))


def _summed(rank: int, factor: Callable[[float], float]) -> list[Tensor]:
    model = DistributedDataParallel(seeded())
    optimizer = adam(model)
    for batches in windows(rank):
        n = torch.tensor(float(sum((labels != -100).sum() for _, labels in batches)))
        dist.all_reduce(n)
        for k, (tokens, labels) in enumerate(batches):
            with waits(model, k == len(batches) - 1):
                (total(model(tokens), labels) * factor(float(n))).backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)


@loop
def ddp_rank_mean(rank: int) -> list[Tensor]:
    """Each rank divides by its own count."""
    model = DistributedDataParallel(seeded())
    optimizer = adam(model)
    for batches in windows(rank):
        n = sum((labels != -100).sum() for _, labels in batches)
        for k, (tokens, labels) in enumerate(batches):
            with waits(model, k == len(batches) - 1):
                (total(model(tokens), labels) / n).backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)


@loop
def ddp_sequence_mean(rank: int) -> list[Tensor]:
    """A mean within each sequence, then over sequences."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        valid = labels != -100
        taken = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0] * valid
        return -(taken.sum(-1) / valid.sum(-1).clamp(min=1)).mean()

    return train(DistributedDataParallel(seeded()), rank, loss)


@loop
def ddp_same_data(rank: int) -> list[Tensor]:
    """Every rank reads the data of rank 0."""
    return train(DistributedDataParallel(seeded()), 0)


@loop
def ddp_syncs_always(rank: int) -> list[Tensor]:
    """Without no_sync: the averaged gradient so far is averaged again, which changes nothing."""
    model = DistributedDataParallel(seeded())
    model.no_sync = nullcontext  # type: ignore[method-assign]
    return train(model, rank)


@loop
def ddp_bucket_view(rank: int) -> list[Tensor]:
    return train(DistributedDataParallel(seeded(), gradient_as_bucket_view=True, bucket_cap_mb=1), rank)


@loop
def ddp_fp16_hook(rank: int) -> list[Tensor]:
    model = DistributedDataParallel(seeded())
    model.register_comm_hook(None, fp16_compress_hook)
    return train(model, rank)


@loop
def ddp_bf16(rank: int) -> list[Tensor]:
    return train(DistributedDataParallel(seeded().bfloat16()), rank)


@loop
def ddp_float64(rank: int) -> list[Tensor]:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))

    return train(DistributedDataParallel(seeded().double()), rank, loss)


@loop
def ddp_autocast(rank: int) -> list[Tensor]:
    return train(DistributedDataParallel(seeded()), rank, autocast=True)


@loop
def ddp_tied(rank: int) -> list[Tensor]:
    return train(DistributedDataParallel(seeded(partial(Model, tied=True))), rank)


@loop
def ddp_recomputed(rank: int) -> list[Tensor]:
    return train(DistributedDataParallel(seeded(partial(Model, recompute=False))), rank)


@loop
def ddp_recomputed_reentrant(rank: int) -> list[Tensor]:
    model = DistributedDataParallel(seeded(partial(Model, recompute=True)))
    return train(model, rank, lambda logits, labels: mean(logits, labels))


@loop
def ddp_loss_recomputed(rank: int) -> list[Tensor]:
    """The loss itself is inside a checkpoint."""
    return train(DistributedDataParallel(seeded()), rank, lambda a, b: checkpoint(mean, a, b, use_reentrant=False))


@loop
def ddp_other_terms(rank: int) -> list[Tensor]:
    """Two more terms beside the cross entropy."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return mean(logits, labels) + 0.01 * logits.logsumexp(-1).square().mean() + 0.1 * logits.square().mean()

    return train(DistributedDataParallel(seeded()), rank, loss)


@loop
def ddp_stacked(rank: int) -> list[Tensor]:
    """One backward of the mean of a window's losses."""
    model = DistributedDataParallel(seeded())
    optimizer = adam(model)
    for batches in windows(rank):
        losses = []
        for tokens, labels in batches:
            losses.append(model(tokens, labels))
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)


@loop
def ddp_syncs_too_early(rank: int) -> list[Tensor]:
    """The last microstep of a window is the one without a reduction."""
    model = DistributedDataParallel(seeded())
    optimizer = adam(model)
    for batches in windows(rank):
        for k, (tokens, labels) in enumerate(batches):
            with waits(model, k < len(batches) - 1):
                model(tokens, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)


@loop
def ddp_two_rhythms(rank: int) -> list[Tensor]:
    """One optimizer steps after every microbatch, another one after two."""
    model = DistributedDataParallel(seeded())
    often = torch.optim.SGD(model.module.embedding.parameters(), lr=0.1)
    seldom = torch.optim.SGD([p for p in model.parameters() if p is not model.module.embedding.weight], lr=0.1)
    for batches in windows(rank, [[[14, 2], [4, 6]]]):
        for tokens, labels in batches:
            model(tokens, labels).backward()
            often.step()
            often.zero_grad()
        seldom.step()
        seldom.zero_grad()
    return parameters(model)


@loop
def ddp_zero_redundancy(rank: int) -> list[Tensor]:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of something that it does when imported

    model = DistributedDataParallel(seeded())
    return train(model, rank, optimizer=ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3))


@loop
def ddp_tail(rank: int) -> list[Tensor]:
    """The second window lacks a microstep, and its losses are divided by 3 all the same."""
    return train(
        DistributedDataParallel(seeded()), rank, lambda a, b: mean(a, b) * (1 if _full(b) else 2 / 3),
        counts=[COUNTS[0], [[15, 5], [11, 17]]],
    )  # fmt: skip


def _full(labels: Tensor) -> bool:
    return int((labels != -100).sum()) % 2 == 0


@loop
def ddp_two_optimizers(rank: int) -> list[Tensor]:
    model = DistributedDataParallel(seeded())
    inside = [p for name, p in model.named_parameters() if "blocks" in name]
    outside = [p for name, p in model.named_parameters() if "blocks" not in name]
    optimizers = [torch.optim.SGD(inside, lr=0.1), torch.optim.AdamW(outside, lr=1e-3)]
    for batches in windows(rank):
        for k, (tokens, labels) in enumerate(batches):
            with waits(model, k == len(batches) - 1):
                (model(tokens, labels) / len(batches)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return parameters(model)


@loop
def ddp_forgets_zero(rank: int) -> list[Tensor]:
    model = DistributedDataParallel(seeded())
    optimizer = adam(model)
    for batches in windows(rank):
        for k, (tokens, labels) in enumerate(batches):
            with waits(model, k == len(batches) - 1):
                (model(tokens, labels) / len(batches)).backward()
        optimizer.step()
    return parameters(model)


@loop
def ddp_zeroes_inside(rank: int) -> list[Tensor]:
    """zero_grad before the last microstep: what came before is lost."""
    model = DistributedDataParallel(seeded())
    optimizer = adam(model)
    for batches in windows(rank):
        for k, (tokens, labels) in enumerate(batches):
            if k == len(batches) - 1:
                optimizer.zero_grad()
            model(tokens, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)


@loop
def ddp_bypassed(rank: int) -> list[Tensor]:
    """The wrapped module is called instead of its wrapper: nothing is reduced."""
    model = seeded()
    DistributedDataParallel(model)
    return train(model, rank)


@loop
def ddp_empty_rank(rank: int) -> list[Tensor]:
    """Rank 1 has no label in its first microstep, and divides by a count of at least 1."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return total(logits, labels) / (labels != -100).sum().clamp(min=1)

    return train(DistributedDataParallel(seeded()), rank, loss, counts=[[[6, 4], [0, 8]]], max_norm=None)


@loop
def ddp_mean_of_nothing(rank: int) -> list[Tensor]:
    """Rank 1 has no label in its first microstep, and takes their mean by hand: 0/0. (The mean that cross_entropy takes
    of no label is nan as well, but has a gradient of zero.)
    """

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        valid = labels != -100
        taken = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        return -(taken * valid).sum() / valid.sum()

    return train(DistributedDataParallel(seeded()), rank, loss, counts=[[[6, 4], [0, 8]]], max_norm=None)


@loop
def ddp_scaler(rank: int) -> list[Tensor]:
    """A loss scaler, unscaled before the clip."""
    return _scaled(rank, torch.amp.GradScaler("cpu", init_scale=1024.0), unscale=True)


@loop
def ddp_scaler_clips_scaled(rank: int) -> list[Tensor]:
    """P·S/N under a loss scaler, clipped before it is unscaled."""
    return _scaled(rank, torch.amp.GradScaler("cpu", init_scale=1024.0), unscale=False)


@loop
def ddp_scaler_skips(rank: int) -> list[Tensor]:
    """The gradient of the first window overflows: that step is skipped, the second one made."""
    return _scaled(rank, torch.amp.GradScaler("cpu", init_scale=1024.0), unscale=True, first=1e38)


def _scaled(rank: int, scaler: torch.amp.GradScaler, unscale: bool, first: float = 1.0) -> list[Tensor]:
    model = DistributedDataParallel(seeded())
    optimizer = adam(model)
    for i, batches in enumerate(windows(rank)):
        n = torch.tensor(float(sum((labels != -100).sum() for _, labels in batches)))
        dist.all_reduce(n)
        for k, (tokens, labels) in enumerate(batches):
            with waits(model, k == len(batches) - 1):
                loss = total(model(tokens), labels) * 2 / n * (1.0 if i else first)
                scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return parameters(model)


# ---- without a wrapper, and with FSDP2 --------------------------------------------------------------------------


@loop
def hand_reduced(rank: int) -> list[Tensor]:
    """all_reduce by hand; rank 1 has one microstep less."""
    return _by_hand(rank, lambda name: True)


@loop
def hand_forgets_head(rank: int) -> list[Tensor]:
    """The head's gradient is not reduced."""
    return _by_hand(rank, lambda name: name != "head.weight")


def _by_hand(rank: int, reduces: Callable[[str], bool]) -> list[Tensor]:
    model = seeded()
    optimizer = adam(model)
    for batches in windows(rank, [[[14, 2, 10], [4, 6]]]):
        for tokens, labels in batches:
            (model(tokens, labels) / len(batches)).backward()
        for name, parameter in model.named_parameters():
            if reduces(name):
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)


@loop
def hand_reduces_always(rank: int) -> list[Tensor]:
    """The sum so far is summed over the ranks after every microstep."""
    model = seeded()
    optimizer = adam(model)
    for batches in windows(rank):
        for tokens, labels in batches:
            (total(model(tokens), labels) / 58).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)


@loop
def hand_reduces_in_step(rank: int) -> list[Tensor]:
    """The optimizer averages gradients itself, before it steps."""

    class Reducing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2
            super().step(closure)

    model = seeded()
    return train(model, rank, optimizer=Reducing(model.parameters(), lr=0.1), max_norm=None)


@loop
def fsdp2_mean(rank: int) -> list[Tensor]:
    return _sharded(rank)


@loop
def fsdp2_resharded(rank: int) -> list[Tensor]:
    return _sharded(rank, reshard_after_forward=True)


@loop
def fsdp2_bf16(rank: int) -> list[Tensor]:
    """Computed in bfloat16, reduced in float32."""
    return _sharded(rank, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def _sharded(rank: int, **options: Any) -> list[Tensor]:
    model: Any = seeded()
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    optimizer = adam(model)
    for batches in windows(rank):
        for k, (tokens, labels) in enumerate(batches):
            model.set_requires_gradient_sync(k == len(batches) - 1)
            (model(tokens, labels) / len(batches)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)


# ---- losses that are not seen, or not of tokens ------------------------------------------------------------------


@loop
def loss_unseen(rank: int) -> list[Tensor]:
    """A mean square by hand: no loss of tokens."""
    return train(DistributedDataParallel(seeded()), rank, lambda a, b: (a - 1).square().mean())


@loop
def loss_marked(rank: int) -> list[Tensor]:
    """The same per token, marked; divided by the rank's own count."""
    from samestep import watch

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        valid = labels != -100
        each = watch.tokens((logits - 1).square().mean(-1), valid)
        return (each * valid).sum() / valid.sum()

    return train(DistributedDataParallel(seeded()), rank, loss)


@loop
def loss_contrastive(rank: int) -> list[Tensor]:
    """Rows of a batch against each other."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        left, right = logits[:, 0], logits[:, 1]
        return functional.cross_entropy(left @ right.T, torch.arange(len(left)))

    return train(DistributedDataParallel(seeded()), rank, loss)


@loop
def loss_signed(rank: int) -> list[Tensor]:
    """Advantages of both signs."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        taken = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        return -(taken * (labels != -100) * torch.tensor([[1.0], [-0.5]])).sum() / 10

    return train(DistributedDataParallel(seeded()), rank, loss)


# ---- not supported ----------------------------------------------------------------------------------------------


@loop
def refused_in_backward(rank: int) -> list[Tensor]:
    """The optimizer steps within the backward."""
    model = seeded()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for batches in windows(rank):
        for tokens, labels in batches:
            model(tokens, labels).backward()
    return parameters(model)


@loop
def refused_lbfgs(rank: int) -> list[Tensor]:
    model = seeded()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    for batches in windows(rank, [[[14], [4]]]):
        tokens, labels = batches[0]

        def closure(tokens: Tensor = tokens, labels: Tensor = labels) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(tokens, labels)
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return parameters(model)


@loop
def refused_tensor_parallel(rank: int) -> list[Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model: Any = seeded()
    plan = {"inner": ColwiseParallel(), "outer": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, init_device_mesh("cpu", (2,)), plan)
    return train(model, 0, max_norm=None)


@loop
def refused_fsdp1(rank: int) -> list[Tensor]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(seeded(), use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for batches in windows(rank):
        for tokens, labels in batches:
            model(tokens, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)


@loop
def refused_pipeline(rank: int) -> list[Tensor]:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    whole: Any = seeded()
    halves = (nn.Sequential(whole.embedding, whole.blocks[0]), nn.Sequential(whole.blocks[1], whole.head))
    stage = PipelineStage(halves[rank], rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=mean)
    optimizer = adam(halves[rank])
    for batches in windows(0):
        tokens, labels = batches[0]
        schedule.step(*(() if rank else (tokens,)), target=labels if rank else None)
        optimizer.step()
        optimizer.zero_grad()
    return parameters(halves[rank])


@loop
def refused_context_parallel(rank: int) -> list[Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    mesh = init_device_mesh("cpu", (2,))
    model = DistributedDataParallel(seeded())
    optimizer = adam(model)
    for batches in windows(0):
        tokens, labels = (each.clone() for each in batches[0])
        with context_parallel(mesh, buffers=[tokens, labels], buffer_seq_dims=[1, 1]):
            (total(model(tokens), labels) * 2 / 14).backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)
