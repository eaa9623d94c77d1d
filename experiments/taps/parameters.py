"""The parameters that optimizers step, each under a number, with a hook on its gradient before any reduction."""

import gc
import re
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from samestep.experiments.taps.patches import Patches
from samestep.experiments.taps.placement import local

Seen = Callable[[int, Tensor], None]
_FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_param"
_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


class Parameters:
    """Numbers (tags) in the order in which parameters were given to optimizers: the same on every rank.

    `seen(tag, gradient)` is called by the hooks, within a backward, with the gradient of that backward alone.
    """

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._tags: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._parameters: list[weakref.ref[Tensor]] = []
        self._hooked: set[int] = set()
        self._owners: list[weakref.ref[Any]] = []
        self._handles: list[Any] = []
        self.only: int | None = None

    def __len__(self) -> int:
        return len(self._parameters)

    def tag(self, parameter: Tensor) -> int:
        """The number of a parameter, a new one if it has none. An address may be used again: the object counts."""
        known = self._tags.get(id(parameter))
        if known is not None and known[0]() is parameter:
            return known[1]
        reference = weakref.ref(parameter)
        self._tags[id(parameter)] = reference, len(self._parameters)
        self._parameters.append(reference)
        return len(self._parameters) - 1

    def known(self, parameters: Iterable[Tensor]) -> list[int]:
        """Numbers of those that have one."""
        found = ((self._tags.get(id(parameter)), parameter) for parameter in parameters)
        return [entry[1] for entry, parameter in found if entry is not None and entry[0]() is parameter]

    def living(self) -> Iterator[tuple[int, Tensor]]:
        """Every parameter that is still there, with its number."""
        for tag, reference in enumerate(self._parameters):
            if (parameter := reference()) is not None:
                yield tag, parameter

    def wanted(self) -> set[int]:
        """Numbers of those that are sketched: all, or the `only` largest."""
        if self.only is None:
            return set(range(len(self)))
        sizes = sorted(((parameter.numel(), -tag) for tag, parameter in self.living()), reverse=True)
        return {-tag for _, tag in sizes[: self.only]}

    def hook(self) -> None:
        """Hook every parameter that has none yet; those that cannot get a gradient may be able to later."""
        wanted = self.wanted()
        for tag, parameter in self.living():
            if (
                tag in self._hooked
                or tag not in wanted
                or not parameter.requires_grad
                or hasattr(parameter, "placements")
            ):
                continue
            self._hooked.add(tag)
            register: Any = parameter.register_hook
            self._handles.append(register(self._hook(tag)))

    def install(self, patches: Patches, alive: Iterable[Any], sharded_twice: Callable[[], None]) -> None:
        """Hear of what FSDP2 shards; `alive`: what was made before. `sharded_twice`: by somebody else already."""

        def made(original: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> None:
            original(owner, *args, **kwargs)
            self.own(owner)

        def gathered(original: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> None:
            original(owner, *args, **kwargs)
            if getattr(owner, "is_dtensor", False):
                sharded_twice()
            self.hook_unsharded(owner)

        def imported(module: Any) -> None:
            patches.wrap(module.FSDPParam, "__init__", made)
            patches.wrap(module.FSDPParam, "init_unsharded_param", gathered)
            for owner in (each for each in alive if issubclass(type(each), module.FSDPParam)):
                self.own(owner)
                if hasattr(owner, "_unsharded_param"):
                    self.hook_unsharded(owner)

        patches.when_imported(_FSDP2, imported)

    def own(self, owner: Any) -> None:
        """A parameter that FSDP2 shards; `owner` is its FSDPParam."""
        if not any(reference() is owner for reference in self._owners):
            self._owners.append(weakref.ref(owner))

    def hook_unsharded(self, owner: Any) -> None:
        """The whole parameter that FSDP2 gathers has the gradient of one backward."""
        whole = owner._unsharded_param
        if not whole.requires_grad or getattr(whole, "_samestep_hooked", False):
            return
        whole._samestep_hooked = True
        reference = weakref.ref(owner)

        def hook(gradient: Tensor) -> None:
            if (owner := reference()) is None:
                return
            tag = self.tag(owner.sharded_param)
            if self.only is None or tag in self.wanted():
                self._seen(tag, local(gradient))

        handle = whole.register_hook(hook)
        self._handles.append(handle)

    def unowned_shards(self) -> bool:
        """Whether there are DTensors that FSDP2 did not make: somebody else cuts and reduces them in another way."""
        sharded = [id(parameter) for _, parameter in self.living() if hasattr(parameter, "placements")]
        if not sharded:
            return False
        owned = {id(owner.sharded_param) for reference in self._owners if (owner := reference()) is not None}
        return not owned.issuperset(sharded)

    def _hook(self, tag: int) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            self._seen(tag, local(gradient))

        return hook

    def names(self) -> dict[int, str]:
        """The longest name that any module gives each parameter, without what wrappers put in."""
        found: dict[int, str] = {}
        for thing in gc.get_objects():
            if not issubclass(type(thing), nn.Module):
                continue
            try:
                named = list(thing.named_parameters())
            except Exception:  # a module of the reader's that cannot be listed: others may know the name
                continue
            for name, parameter in named:
                for tag in self.known([parameter]):
                    if len(name) > len(found.get(tag, "")):
                        found[tag] = name
        return {tag: _plain(name) for tag, name in found.items()}

    def unhook(self) -> None:
        """Take every hook off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooked.clear()


def _plain(name: str) -> str:
    plain = _WRAPPERS.sub("", name)
    return plain.removeprefix("module.")
