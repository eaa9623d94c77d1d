"""What one process finds: every path in every case, clipping, and the ways to go on without any label."""

from typing import NamedTuple

import torch
import torch.distributed as dist

from samestep.app.evidence.bags import Json, Text
from samestep.experiments.measured import arrays, difference, difference_over, plain
from samestep.experiments.ranks.world import World
from samestep.experiments.tensors import canonical_sha256, raw_sha256
from samestep.experiments.tiny.tiny_transformer import TinyTransformer
from samestep.experiments.train_tiny import optimizer_state
from samestep.experiments.transformer_update.paths import CASES, PATHS, Named, Path, compute, reference, window_sum
from samestep.experiments.transformer_update.start import OPTIMIZERS, Start

MAX_NORM = 1.0
FOUR_TIMES = "four_times_then_clipped"

TITLES: dict[str, Text] = {
    FOUR_TIMES: {"zh": "梯度是正确值的 4 倍，随后裁剪", "en": "a gradient four times the right one, then clipped"},
    "coordinated_skip": {"zh": "归约 N，发现为 0，一起跳步", "en": "N is reduced, found to be 0, all skip"},
    "none_gradients_step": {"zh": "梯度为 None，仍调用 step", "en": "gradients are None, step is called"},
    "zero_loss_step": {"zh": "零损失反传后仍调用 step", "en": "a zero loss is backpropagated, step is called"},
}
SKIPS = ("coordinated_skip", "none_gradients_step", "zero_loss_step")


class Updated(NamedTuple):
    """Weights after (or before) an update, and AdamW's moments and steps (none for SGD)."""

    weights: Named
    state: Named

    def part(self, key: str) -> Named:
        return {name: tensor for name, tensor in self.state.items() if name.startswith(f"{key}.")}


def update(start: Start, optimizer: str, gradient: Named | None) -> Updated:
    """One step from the start; a gradient of None leaves every parameter without one."""
    model, stepper = start.ready(optimizer)
    for name, parameter in model.named_parameters():
        parameter.grad = None if gradient is None else gradient[name].clone()
    stepper.step()
    return snapshot(model, stepper)


def snapshot(model: TinyTransformer, stepper: torch.optim.Optimizer) -> Updated:
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    return Updated(weights, {name: tensor.clone() for name, tensor in optimizer_state(model, stepper).items()})


class Finding(NamedTuple):
    """One row as this process sees it: differences from the reference, digests, collectives, loss."""

    differences: dict[str, float | None]
    digests: dict[str, str]
    collectives: int = 0
    loss: Json = None


Findings = dict[tuple[str, str, str], Finding]
"""By case, path and optimizer (empty where none took part)."""


def digests(**sets: Named) -> dict[str, str]:
    """`NAME_raw_sha256` and, where all values are finite, `NAME_canonical_sha256`; nothing for an empty set."""
    found = {}
    for name, tensors in sets.items():
        if tensors:
            found[f"{name}_raw_sha256"] = raw_sha256(arrays(tensors))
            if all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
                found[f"{name}_canonical_sha256"] = canonical_sha256(arrays(tensors))
    return found


def differences(got: Updated, wanted: Updated) -> dict[str, float | None]:
    found = {"weights": difference_over(got.weights, wanted.weights)}
    if wanted.state:
        found |= {key: difference_over(got.part(key), wanted.part(key)) for key in ("exp_avg", "exp_avg_sq", "step")}
    return found


def measure(world: World, start: Start, group: dist.ProcessGroup) -> Findings:
    """Every path in every case, then clipping and the ways to go on without any label."""
    found: Findings = {}
    for case_name, case in CASES.items():
        world.step(f"transformer_update: {case.title['en']}")
        wanted = reference(start.model(), start.windows, case)
        updates = {optimizer: update(start, optimizer, wanted.gradient) for optimizer in OPTIMIZERS}
        for name, path in PATHS.items():
            if case_name not in path.behaviour:
                continue
            got = compute(start.model(), start.windows, case, path, group)
            apart = {"loss": difference(got.loss, wanted.loss)}
            if not case.total:  # no update to compare: there is no objective
                found[case_name, name, ""] = Finding(apart, {}, got.collectives, plain(got.loss))
                continue
            apart["gradient"] = difference_over(got.gradient, wanted.gradient)
            for optimizer in OPTIMIZERS:
                after = update(start, optimizer, got.gradient)
                found[case_name, name, optimizer] = Finding(
                    apart | differences(after, updates[optimizer]),
                    digests(gradient=got.gradient, weights=after.weights, state=after.state),
                    got.collectives,
                    plain(got.loss),
                )
    world.step("transformer_update: clipping and skipping")
    return found | clipped(start) | skipped(start, group)


def clipped(start: Start) -> Findings:
    """A gradient four times too large, then clipped: what clipping hides."""
    right = reference(start.model(), start.windows, CASES["unequal"]).gradient
    wrong = {name: 4 * gradient for name, gradient in right.items()}
    one, other = clip(right), clip(wrong)
    found: Findings = {}
    for optimizer in OPTIMIZERS:
        got, wanted = update(start, optimizer, other), update(start, optimizer, one)
        apart = {"gradient": difference_over(wrong, right), "clipped_gradient": difference_over(other, one)}
        sets = digests(gradient=wrong, weights=got.weights, state=got.state)
        found["unequal", FOUR_TIMES, optimizer] = Finding(apart | differences(got, wanted), sets)
    return found


def clip(gradient: Named) -> Named:
    """Multiply by min(1, MAX_NORM / norm)."""
    factor = min(1.0, MAX_NORM / norm_of(gradient))
    return {name: factor * tensor for name, tensor in gradient.items()}


def norm_of(gradient: Named) -> float:
    return float(torch.cat([tensor.flatten() for tensor in gradient.values()]).norm())


def skipped(start: Start, group: dist.ProcessGroup) -> Findings:
    """N = 0: the whole state before, and after three ways to go on."""
    found: Findings = {}
    for optimizer in OPTIMIZERS:
        before = snapshot(*start.ready(optimizer))
        count = torch.tensor(CASES["none"].total)
        dist.all_reduce(count, group=group)
        after = {
            "coordinated_skip": before if count == 0 else update(start, optimizer, None),
            "none_gradients_step": update(start, optimizer, None),
            "zero_loss_step": update(start, optimizer, zero_gradient(start, group)),
        }
        for name, got in after.items():
            sets = digests(weights=got.weights, state=got.state)
            found["none", name, optimizer] = Finding(differences(got, before), sets)
    return found


def zero_gradient(start: Start, group: dist.ProcessGroup) -> Named:
    """DDP with the losses' plain sum, which is 0: every gradient is exactly zero, and none is None."""
    path = Path(TITLES["zero_loss_step"], window_sum, {}, ddp=True)
    gradient = compute(start.model(), start.windows, CASES["none"], path, group).gradient
    if any(bool(tensor.any()) for tensor in gradient.values()):
        raise RuntimeError("a loss over no labels gave a gradient that is not zero")
    return gradient
