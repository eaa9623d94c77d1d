"""Keep tensors of one update on disk, in float64.

A plain tensor goes to disk when it is met. A shard is cloned, and gathered after the step, when all ranks agree that
there is something to gather: nothing that a rank does on its own may make the others wait.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import cast

import torch
from torch.distributed.tensor import DTensor

from samestep.experiments.audit.running.vectors import Array, Writer

Items = Iterable[tuple[str, torch.Tensor]]


def plain_name(name: str) -> str:
    """The parameter's name without what wrappers put in."""
    return name.removeprefix("module.").replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor, gathered where it is sharded: every rank has to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def numbers(tensor: torch.Tensor) -> Array:
    """The values in float64, gathered; of complex ones both parts, along one more axis."""
    whole = full(tensor.detach()).detach()
    whole = torch.view_as_real(whole.resolve_conj()) if whole.is_complex() else whole
    return cast(Array, (whole.to_dense() if whole.is_sparse else whole).to("cpu", torch.float64).numpy())


def greatest(tensor: torch.Tensor) -> float:
    """The greatest magnitude of what this rank holds."""
    mine = local(tensor).detach()
    values = mine.coalesce().values() if mine.is_sparse else mine
    return float(values.abs().max()) if values.numel() else 0.0


def like(tensor: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
    """This rank's numbers as a shard of what `tensor` is a shard of."""
    if not isinstance(tensor, DTensor):
        return mine
    return DTensor.from_local(
        mine, tensor.device_mesh, tensor.placements, shape=tensor.shape, stride=tensor.stride(), run_check=False
    )


class Keeper:
    """The files of one update. `waiting`: kinds of which shards are to be gathered."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.waiting: dict[str, dict[str, torch.Tensor]] = {}
        self._written: set[str] = set()
        self._open: dict[str, tuple[Writer, set[str]]] = {}

    def has(self, kind: str) -> bool:
        """Whether there is something of this kind."""
        return kind in self._written or kind in self.waiting or kind in self._open

    def keep(self, kind: str, items: Items) -> None:
        """Keep all of a kind, in place of what there was."""
        found = dict(items)
        self.forget(kind)
        if any(isinstance(tensor, DTensor) for tensor in found.values()):
            self.waiting[kind] = {name: tensor.detach().clone() for name, tensor in found.items()}
            return
        self._written.add(kind)
        with Writer(self.place / f"{kind}.f64") as writer:
            for name, tensor in found.items():
                writer.add(name, numbers(tensor))

    def add(self, kind: str, found: Mapping[str, torch.Tensor], only: Collection[str]) -> None:
        """Keep some more of a kind: of these names, those that there are none of yet."""
        if any(isinstance(tensor, DTensor) for tensor in found.values()):
            known = self.waiting.setdefault(kind, {})
            known |= {name: found[name].detach().clone() for name in only if name in found and name not in known}
            return
        if kind not in self._open:
            self._open[kind] = (Writer(self.place / f"{kind}.f64"), set())
        writer, written = self._open[kind]
        for name in only:
            if name in found and name not in written:
                writer.add(name, numbers(found[name]))
                written.add(name)

    def forget(self, kind: str) -> None:
        """There is nothing of this kind any more."""
        self.waiting.pop(kind, None)
        self._written.discard(kind)
        for ending in (".f64", ".json"):
            (self.place / f"{kind}{ending}").unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing will be added. Without a gradient of its own, the one that was stepped with is the gradient."""
        for kind, (writer, _) in self._open.items():
            writer.close()
            self._written.add(kind)
        self._open.clear()
        if self.has("gradient") or not self.has("clipped_gradient"):
            return
        if "clipped_gradient" in self.waiting:
            self.waiting["gradient"] = self.waiting["clipped_gradient"]
            return
        self._written.add("gradient")
        for ending in (".f64", ".json"):
            there = self.place / f"gradient{ending}"
            there.unlink(missing_ok=True)
            there.hardlink_to(self.place / f"clipped_gradient{ending}")

    def gather(self, kind: str) -> None:
        """Write shards of a kind whole. Every rank has to ask."""
        found = self.waiting.pop(kind)
        self._written.add(kind)
        with Writer(self.place / f"{kind}.f64") as writer:
            for name, tensor in found.items():
                writer.add(name, numbers(tensor))
