"""Record one run of the reader's step on this rank, update by update; `trace` says what is kept, `keeping` how."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samestep.experiments.audit.failure import ReaderError
from samestep.experiments.audit.judging import outside
from samestep.experiments.audit.running import graph, taps
from samestep.experiments.audit.running.contributions import Contributions, few
from samestep.experiments.audit.running.keeping import Keeper, full, greatest, like, local, plain_name
from samestep.experiments.audit.running.reader import Built
from samestep.experiments.audit.running.rows import Rows, tensors_in
from samestep.experiments.audit.running.samples import Samples
from samestep.experiments.audit.running.sites import Sites
from samestep.experiments.audit.running.trace import MET, PART, Clip, Limit, Run, Trace
from samestep.experiments.audit.running.waiting import Works
from samestep.experiments.taps.collectives import issued

NAMED = "term "
"""Before the name of a term that ctx.term gave."""
UNSUPPORTED = {"FullyShardedDataParallel": "FSDP1 is not supported, FSDP2 is: use fully_shard(model)"}
"""Wrappers whose parameters cannot be seen whole, by the name of their class."""


class UnsupportedError(ReaderError):
    """The step uses something that the audit cannot look into."""


class Recorder:
    """Listens to the taps while the step runs; `finish` writes what had to wait for a gather.

    term   of the loss's summands, the only one whose gradient is let through (None: all)
    """

    def __init__(
        self, folder: Path, rank: int, built: Built, rows: Rows, sites: Sites, *, term: str | None = None
    ) -> None:
        self.run = Run(rank)
        self.built = built
        self._issued = 0
        self.stepped: list[torch.optim.Optimizer] = []
        self._folder, self._samples, self._sites, self._term = folder, Samples(rows), sites, term
        self._optimizers: list[torch.optim.Optimizer] = list(built.optimizers)
        self._averages: dict[str, nn.Module] = {}
        self._works = Works()
        self._contributions: Contributions | None = None
        self._keepers: list[Keeper] = []
        self._scale = 1.0
        self._keeps_initial = False
        self.begin(0)

    # Updates

    @property
    def trace(self) -> Trace:
        """The current update."""
        return self.run.updates[-1]

    @property
    def _keeper(self) -> Keeper:
        return self._keepers[-1]

    def begin(self, call: int) -> None:
        """Another update."""
        number = len(self.run.updates)
        place = self._folder if number == 0 else self._folder / f"update{number}"
        place.mkdir(parents=True, exist_ok=True)
        self.run.updates.append(Trace(self.run.rank, place, call=call))
        self._keepers.append(Keeper(place))
        self._window_open = False
        self._computed: dict[str, torch.Tensor] = {}
        self._noted: dict[str, torch.Tensor] = {}
        self._versions: dict[str, int] = {}
        self._stepped: dict[str, torch.Tensor] = {}

    def _another_update(self) -> None:
        """A forward or backward after a step belongs to the next update."""
        if self.trace.steps:
            self._end_of_update()
            self.begin(self.trace.call)
            if self._keeps_initial:
                self.keep_initial()

    def _end_of_update(self) -> None:
        self.count()
        self._keeper.close()
        self._keep_stepped()
        self._keeper.keep("parameters", self.named_parameters().items())
        self._keeper.keep("notes", self._noted.items())

    def count(self) -> None:
        """Begin to count collectives; what was counted so far is the current update's."""
        now = issued()
        self.trace.collectives, self._issued = now - self._issued, now

    def catch_contributions(self) -> None:
        """Keep what every backward adds."""
        self._contributions = Contributions(self.named_parameters())

    def stop(self) -> None:
        """Take off what listens beside the taps."""
        if self._contributions:
            self._contributions.stop()

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Read late: a wrapper may have replaced the model's parameters, the file the optimizer's."""
        named = {plain_name(name): parameter for name, parameter in self.built.model.named_parameters()}
        known = {id(parameter) for parameter in named.values()}
        for i, optimizer in enumerate(self._optimizers):
            for j, group in enumerate(optimizer.param_groups):
                for k, parameter in enumerate(group["params"]):
                    if id(parameter) not in known and self._used(optimizer):
                        named[f"optimizer{i}.group{j}.{k}"] = parameter
                        known.add(id(parameter))
        return named

    def _used(self, optimizer: torch.optim.Optimizer) -> bool:
        """Not one that build() made, if the step made another with the replaced parameters."""
        return len(self._optimizers) == len(self.built.optimizers) or optimizer not in self.built.optimizers

    # What the taps report

    def forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outermost: bool) -> None:
        """Keep the samples of an outermost forward, and what makes the result depend on more than they."""
        if reason := UNSUPPORTED.get(type(module).__name__):
            raise UnsupportedError(reason)
        synchronises = taps.synchronises(module)
        if outermost and torch.is_grad_enabled():
            self._another_update()
        if synchronises is not None:
            self.trace.forwards["ddp" if synchronises else "ddp without synchronisation"] += 1
            self.event("forward" if synchronises else "forward in no_sync")
            self._wrapped(module)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or not module.track_running_stats):
            kind = "synchronised_batch_norm" if isinstance(module, nn.SyncBatchNorm) else "batch_norm"
            self._limit(kind, type(module).__name__)
        if not outermost or not torch.is_grad_enabled():
            return
        if synchronises is None:
            self.trace.forwards["plain"] += 1
            self.event("forward")
        self._samples.feed([*tensors_in(args), *tensors_in(kwargs)], self.trace)

    def _wrapped(self, module: nn.Module) -> None:
        inside = {id(parameter) for parameter in module.parameters()}
        names = [name for name, parameter in self.named_parameters().items() if id(parameter) in inside]
        self.trace.wrapped = list(dict.fromkeys([*self.trace.wrapped, *names]))

    def backward_begins(self) -> None:
        self._another_update()
        versions = {name: parameter._version for name, parameter in self.named_parameters().items()}
        changed = [name for name, now in versions.items() if self._versions.get(name, now) != now]
        move = self._contributions.moved(self.named_parameters(), changed) if self._contributions else None
        if self._window_open and changed:
            self.trace.moved_inside = True
            self.trace.moves += [move] if move else []
            self._keep_met()
        self._versions = versions
        if not self._window_open:
            gradients = {name: p.grad for name, p in self.named_parameters().items() if p.grad is not None}
            self.trace.leftovers = {name: size for name, each in gradients.items() if (size := greatest(each))}
            self._window_open = True

    def silenced(self, tensors: Any) -> AbstractContextManager[None]:
        """Let only one summand's gradient through, if only one is wanted."""
        root = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
        if not isinstance(root, torch.Tensor) or root.grad_fn is None or root.numel() != 1:
            return nullcontext()
        self.trace.pairwise |= graph.matrices(root)
        self.trace.targets.append(graph.targets(root))
        number = self.trace.events.count("backward")
        found = graph.summands(root) or [root.grad_fn]
        if not self._named_terms():
            names = [graph.name(node) for node in found]
            self.trace.terms += [f"{number}.{i} {name}" for i, name in enumerate(names)]
        if self._term is None or self._named_terms():
            return nullcontext()
        return graph.silenced([node for i, node in enumerate(found) if not self._term.startswith(f"{number}.{i} ")])

    def _named_terms(self) -> bool:
        return any(name.startswith(NAMED) for name in self.trace.terms)

    def term(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """ctx.term of the reader's."""
        named = [each for each in self.trace.terms if each.startswith(NAMED)]
        self.trace.terms = list(dict.fromkeys([*named, f"{NAMED}{name}"]))
        return graph.silent(value) if self._term is not None and self._term != f"{NAMED}{name}" else value

    def backward_ended(self, root: Any) -> None:
        self.event("backward")
        self._keeper.forget("gradient")
        self._keeper.forget("computed")
        self.trace.norms.clear()
        self.trace.earlier_clips += self.trace.clips
        self.trace.clips = []
        if isinstance(root, torch.Tensor) and root.numel() == 1:
            self.trace.losses.append(float(full(root.detach())) / self._scale)
        self.trace.calls.append(self._samples.of_backward())
        self._computed = {
            name: local(parameter.grad).clone()
            for name, parameter in self.named_parameters().items()
            if parameter.grad is not None and not parameter.grad.is_sparse
        }
        if self._contributions and (caught := list(self._contributions.take(self.named_parameters()))):
            self.trace.types |= self._contributions.types
            self._keeper.keep(PART.format(self.trace.parts), caught)
            self.trace.parts += 1

    def before_clip(self, kind: str, limit: float | None) -> None:
        self.event("clip")
        self.trace.clips.append(Clip(kind, limit))
        self._keep_gradient()

    def norm(self, value: Any) -> None:
        norm = float(full(torch.as_tensor(value).detach()))
        self.trace.norms.append(norm)
        if self.trace.clips:
            self.trace.clips[-1] = Clip(self.trace.clips[-1].kind, self.trace.clips[-1].limit, norm)

    def note(self, name: str, value: torch.Tensor | float) -> None:
        """ctx.note of the reader's."""
        self.event(f"note {name}")
        if name == "norm":
            self._keep_gradient()
            self.trace.norms.append(float(value))
            return
        self.trace.repeated[name] = self.trace.repeated.get(name, 0) + 1
        self._noted[name] = torch.as_tensor(value).detach().clone()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if not any(optimizer is each for each in self._optimizers):
            self._optimizers.append(optimizer)
        self.event("step")
        if not any(optimizer is each for each in self.stepped):
            self.stepped.append(optimizer)
        named = self.named_parameters()
        mine = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        owned = [name for name, parameter in named.items() if id(parameter) in mine]
        self.trace.owned = list(dict.fromkeys([*self.trace.owned, *owned]))
        self._keep_computed(named)
        self._keeper.add("clipped_gradient", self._gradients(), owned or list(named))
        self.trace.none_gradients = [name for name in self.trace.owned if named[name].grad is None]
        self.trace.hyperparameters = [
            {key: str(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        self.trace.unwaited |= dict(self._works.on(named))

    def after_step(self) -> None:
        """Remember what an optimizer has made of the parameters: something may change them afterwards."""
        named = self.named_parameters()
        if few(named.values()):
            self._stepped = {name: local(parameter.detach()).clone() for name, parameter in named.items()}

    def event(self, name: str) -> None:
        """Remember the order of things."""
        if name == "autocast":
            self._limit("autocast", "torch.autocast")
            return
        self.trace.events.append(name)
        if site := self._sites.here():
            self.trace.sites[name] = site
        if name.startswith("comm hook "):
            self.trace.hooks.append(name.removeprefix("comm hook "))

    def scaled(self, scale: float) -> None:
        self._scale = self.trace.loss_scale = scale

    def dropped_out(self, where: str) -> None:
        self._limit("dropout", where)

    def averaged(self, copy: nn.Module) -> None:
        if not any(copy is each for each in (*self._averages.values(), *self.built.others)):
            self._averages[f"average{len(self._averages)}"] = copy

    def detached(self, collective: str) -> None:
        self.trace.detached[collective] = self._sites.here() or ""

    def handed(self, tensors: list[torch.Tensor]) -> None:
        """A collective was given these."""
        self.trace.types |= {
            str(tensor.dtype).removeprefix("torch.") for tensor in tensors if tensor.is_floating_point()
        }

    def started(self, work: Any, collective: str, tensors: list[torch.Tensor]) -> None:
        self._works.started(work, collective, tensors)

    def waited(self, work: Any) -> None:
        self._works.waited(work)

    def dealt(self, data: dict[str, torch.Tensor], samples: Any) -> None:
        """ctx.microbatches has dealt these out."""
        self._samples.rows.deal(data, samples)

    def _limit(self, kind: str, where: str) -> None:
        if (limit := Limit(kind, where)) not in self.trace.limits:
            self.trace.limits.append(limit)

    # What is kept

    def _gradients(self) -> dict[str, torch.Tensor]:
        return {name: p.grad for name, p in self.named_parameters().items() if p.grad is not None}

    def _keep_gradient(self) -> None:
        """The gradient before the first clip after a backward: a second clip may be of other parameters."""
        if not self._keeper.has("gradient"):
            self._keep_computed(self.named_parameters())
            self._keeper.keep("gradient", self._gradients().items())

    def _keep_computed(self, named: dict[str, nn.Parameter]) -> None:
        """The gradient as the last backward left it, if something has changed it since."""
        computed, self._computed = self._computed, {}
        changed = any(
            (gradient := named[name].grad) is None or not torch.equal(local(gradient), before)
            for name, before in computed.items()
            if name in named
        )
        if changed:
            self._keeper.keep("computed", ((name, like(named[name], each)) for name, each in computed.items()))

    def _keep_met(self) -> None:
        """Parameters as the backward that begins now has met them."""
        named, number = self.named_parameters(), self.trace.events.count("backward")
        if few(named.values()):
            self._keeper.keep(MET.format(number), named.items())
            self.trace.met.append(number)

    def _keep_stepped(self) -> None:
        """Parameters as the last step left them, if something has changed them since."""
        named = self.named_parameters()
        after = {name: each for name, each in self._stepped.items() if name in named}
        if any(not torch.equal(local(named[name].detach()), each) for name, each in after.items()):
            self._keeper.keep("stepped", ((name, like(named[name], each)) for name, each in after.items()))

    def keep_initial(self) -> None:
        """Parameters and what lies beside them before this update, and before every later one of the same call."""
        self._keeps_initial = True
        self._keeper.keep("initial", self.named_parameters().items())
        found, _ = outside.copies(self.built.held() | self._averages, self.built.model)
        self._keeper.keep("beside", (self._buffers() | found).items())

    def forget_call(self) -> None:
        """Forget the updates of the current call."""
        call = self.trace.call
        while self.trace.call == call:
            self.run.updates.pop()
            self._keepers.pop()

    def finish(self, agree: Callable[[set[str]], set[str]], *, whole: bool) -> None:
        """The call of step() is over: write what waited, and if `whole` what rules the next update. All ranks do.

        `agree`: of the names of this rank, those that every rank has.
        """
        self._drop_empty_end()
        self._works.clear()
        if not self.trace.steps:
            self._keep_gradient()
        self._keeper.close()
        if whole:
            self._keep_end()
        waiting = {f"{i}:{kind}" for i, keeper in enumerate(self._keepers) for kind in keeper.waiting}
        for each in sorted(agree(waiting)):
            number, _, kind = each.partition(":")
            self._keepers[int(number)].gather(kind)

    def _drop_empty_end(self) -> None:
        """What came after the last step without a backward, such as an evaluation, is no update."""
        if len(self.run.updates) > 1 and not {"backward", "step"} & set(self.trace.events):
            before = self.run.updates[-2]
            if before.call == self.trace.call:
                before.events += self.trace.events
                self.run.updates.pop()
                self._keepers.pop()

    def _keep_end(self) -> None:
        named = self.named_parameters()
        self.trace.names = list(named)
        types = {parameter.dtype for parameter in named.values() if parameter.is_floating_point()}
        self.trace.stored = str(max(types, key=lambda each: torch.finfo(each).eps, default="")).removeprefix("torch.")
        self.trace.complex = [name for name, parameter in named.items() if parameter.is_complex()]
        self._keep_stepped()
        self._keeper.keep("parameters", named.items())
        self._keeper.keep("optimizer_state", outside.state(self._optimizers, named))
        self._keeper.keep("buffers", self._buffers().items())
        held = self.built.held() | self._averages
        found, others = outside.copies(held, self.built.model)
        self._keeper.keep("outside", found.items())
        self.trace.not_compared = others
        used = [each for each in self._optimizers if self._used(each)]
        self.trace.settings = outside.settings(used, self.built.others)
        self.trace.left_behind = {name: size for name, each in self._gradients().items() if (size := greatest(each))}
        self._keeper.keep("notes", self._noted.items())

    def _buffers(self) -> dict[str, torch.Tensor]:
        buffers = {plain_name(name): buffer for name, buffer in self.built.model.named_buffers()}
        return {name: buffer for name, buffer in buffers.items() if buffer.is_floating_point()}
