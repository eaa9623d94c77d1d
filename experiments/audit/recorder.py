"""Record one run of the reader's step on this rank into a folder; see `experiments.audit.trace` for what is kept."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from samestep.experiments.audit import taps
from samestep.experiments.audit.rows import Rows, tensors_in
from samestep.experiments.audit.trace import Limit, Trace
from samestep.experiments.audit.vectors import Array, Writer

Snapshot = dict[str, torch.Tensor]


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor, gathered where it is sharded: every rank has to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def numbers(tensor: torch.Tensor) -> Array:
    """The values in float64, gathered."""
    whole = full(tensor.detach()).detach()
    return cast(Array, (whole.to_dense() if whole.is_sparse else whole).to("cpu", torch.float64).numpy())


def plain_name(name: str) -> str:
    """The parameter's name without what wrappers put in."""
    return name.removeprefix("module.").replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")


class Recorder:
    """Listens to the taps while the step runs; `finish` writes what had to wait for a gather.

    A plain tensor goes to disk when it is met. A shard is cloned, and gathered after the step, when all ranks agree
    that there is something to gather: nothing that a rank does on its own may make the others wait.
    """

    def __init__(self, trace: Trace, model: nn.Module, optimizer: torch.optim.Optimizer, rows: Rows) -> None:
        self.trace = trace
        self.model = model
        self.rows = rows
        self._optimizers: list[torch.optim.Optimizer] = [optimizer]
        self._shards: dict[str, Snapshot] = {}
        self._got: dict[str, list[int] | None] = {}
        self._gradient_kept = False
        self._window_open = False
        self._scale = 1.0
        trace.folder.mkdir(parents=True, exist_ok=True)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Read late: a wrapper may have replaced the model's parameters, the file the optimizer's."""
        named = {plain_name(name): parameter for name, parameter in self.model.named_parameters()}
        known = {id(parameter) for parameter in named.values()}
        for i, optimizer in enumerate(self._optimizers):
            for j, group in enumerate(optimizer.param_groups):
                for k, parameter in enumerate(group["params"]):
                    if id(parameter) not in known and self._used(optimizer):
                        named[f"optimizer{i}.group{j}.{k}"] = parameter
                        known.add(id(parameter))
        return named

    def _used(self, optimizer: torch.optim.Optimizer) -> bool:
        """Not the one that build() made, if the step made another with the replaced parameters."""
        return len(self._optimizers) == 1 or optimizer is not self._optimizers[0]

    # What the taps report

    def forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outermost: bool) -> None:
        """Keep the samples of an outermost forward, and what makes the result depend on more than they."""
        synchronises = taps.synchronises(module)
        if synchronises is not None:
            self.trace.forwards["ddp" if synchronises else "ddp without synchronisation"] += 1
            self.event("forward" if synchronises else "forward in no_sync")
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or not module.track_running_stats):
            kind = "synchronised_batch_norm" if isinstance(module, nn.SyncBatchNorm) else "batch_norm"
            self._limit(kind, type(module).__name__)
        if not outermost or not torch.is_grad_enabled():
            return
        if synchronises is None:
            self.trace.forwards["plain"] += 1
            self.event("forward")
        for tensor in (*tensors_in(args), *tensors_in(kwargs)):
            if (match := self.rows.matched(tensor)) is None:
                continue
            name, got = match
            self.trace.consumed.setdefault(name, Counter()).update(got)
            samples, before = self.rows.samples(name, got), self._got.get(name, [])
            self._got[name] = None if samples is None or before is None else before + samples

    def backward_begins(self) -> None:
        if not self._window_open:
            gradients = (p.grad for p in self.named_parameters().values() if p.grad is not None)
            self.trace.leftover = max((_greatest(gradient) for gradient in gradients), default=0.0)
            self._window_open = True

    def backward_ended(self, root: Any) -> None:
        self.event("backward")
        self._gradient_kept = False
        self.trace.norms.clear()
        if isinstance(root, torch.Tensor) and root.numel() == 1:
            self.trace.losses.append(float(full(root.detach())) / self._scale)
        known = [samples for samples in self._got.values() if samples is not None]
        self.trace.calls.append(max(known, key=len) if known else None)
        self._got = {}

    def before_clip(self) -> None:
        self.event("clip")
        self._keep_gradient()

    def norm(self, value: Any) -> None:
        self.trace.norms.append(float(full(torch.as_tensor(value).detach())))

    def note(self, name: str, value: float) -> None:
        """ctx.note of the reader's."""
        self.event(f"note {name}")
        if name == "norm":
            self._keep_gradient()
            self.trace.norms.append(value)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if not any(optimizer is each for each in self._optimizers):
            self._optimizers.append(optimizer)
        self.event("step")
        self._keep("clipped_gradient")
        named = self.named_parameters()
        self.trace.none_gradients = [name for name, parameter in named.items() if parameter.grad is None]
        self.trace.hyperparameters = [
            {key: str(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._window_open = False

    def event(self, name: str) -> None:
        """Remember the order of things."""
        if name == "autocast":
            self._limit("autocast", "torch.autocast")
            return
        self.trace.events.append(name)

    def scaled(self, scale: float) -> None:
        self._scale = self.trace.loss_scale = scale

    def dropped_out(self, where: str) -> None:
        self._limit("dropout", where)

    def _limit(self, kind: str, where: str) -> None:
        if (limit := Limit(kind, where)) not in self.trace.limits:
            self.trace.limits.append(limit)

    # What is kept

    def _keep_gradient(self) -> None:
        """The gradient before the first clip after a backward: a second clip may be of other parameters."""
        if not self._gradient_kept:
            self._keep("gradient")
            self._gradient_kept = True

    def _keep(self, kind: str) -> None:
        gradients = {name: p.grad for name, p in self.named_parameters().items() if p.grad is not None}
        if any(isinstance(gradient, DTensor) for gradient in gradients.values()):
            self._shards[kind] = {name: gradient.detach().clone() for name, gradient in gradients.items()}
        else:
            self._write(kind, gradients.items())

    def _write(self, kind: str, tensors: Any) -> None:
        with Writer(self.trace.folder / f"{kind}.f64") as writer:
            for name, tensor in tensors:
                writer.add(name, numbers(tensor))

    def keep_initial(self) -> None:
        """Parameters before the step."""
        self._write("initial", self.named_parameters().items())

    def finish(self, agree: Callable[[set[str]], set[str]], collectives: int, *, whole: bool) -> None:
        """Write gathered gradients, and if `whole` parameters, optimizer state and buffers. Every rank calls this.

        `agree`: of the names of this rank, those that every rank has.
        """
        self.trace.collectives = collectives
        if "step" not in self.trace.events:
            self._keep_gradient()
        elif not self._gradient_kept:
            self._reuse_clipped_gradient()
        for kind in sorted(agree(set(self._shards))):
            self._write(kind, self._shards.pop(kind).items())
        if not whole:
            return
        named = self.named_parameters()
        self.trace.names = list(named)
        self._write("parameters", named.items())
        self._write("optimizer_state", self._state(named))
        self._write("buffers", [(plain_name(name), buffer) for name, buffer in self.model.named_buffers()])

    def _reuse_clipped_gradient(self) -> None:
        if "clipped_gradient" in self._shards:
            self._shards["gradient"] = self._shards["clipped_gradient"]
            return
        for ending in (".f64", ".json"):
            there = self.trace.folder / f"gradient{ending}"
            there.unlink(missing_ok=True)
            there.hardlink_to(self.trace.folder / f"clipped_gradient{ending}")

    def _state(self, named: dict[str, nn.Parameter]) -> Iterator[tuple[str, torch.Tensor]]:
        names = {id(parameter): name for name, parameter in named.items()}
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    for key, value in optimizer.state.get(parameter, {}).items():
                        if isinstance(value, (torch.Tensor, float, int)) and id(parameter) in names:
                            yield f"{names[id(parameter)]}.{key}", torch.as_tensor(value)


def _greatest(tensor: torch.Tensor) -> float:
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
    values = local.coalesce().values() if local.is_sparse else local
    return float(values.abs().max()) if values.numel() else 0.0
