"""`ctx`: all that a reader's step is told about its place in the run.

`ctx.rank`, `ctx.world_size`, `ctx.device`; `ctx.microbatches(data)`, this rank's share; `ctx.global_count()`, the
valid tokens (or samples) of the whole batch; `ctx.note(name, value)`, a value to compare, such as the norm of a
hand-written clip; `ctx.term(name, value)`, a part of the loss that is to be judged by itself. In the reference run the
world is one process and the share is one microbatch: the whole batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

Data = dict[str, torch.Tensor]
Note = Callable[[str, torch.Tensor | float], None]
Term = Callable[[str, torch.Tensor], torch.Tensor]
Dealt = Callable[[Data, Sequence[int]], None]


class ContextError(ValueError):
    """The reader asked `ctx` for something it cannot give."""


def _as_it_is(name: str, value: torch.Tensor) -> torch.Tensor:
    return value


def _unseen(data: Data, samples: Sequence[int]) -> None:
    """Nobody wants to know what is dealt out."""


@dataclass(frozen=True)
class Context:
    """What the step sees. `shares[microbatch]` are this rank's samples, `weight` is the whole batch's count."""

    rank: int
    world_size: int
    device: torch.device
    shares: Sequence[Sequence[int]]
    samples: int
    weight: float
    _note: Note = field(repr=False)
    _term: Term = field(repr=False, default=_as_it_is)
    _dealt: Dealt = field(repr=False, default=_unseen)

    def microbatches(self, data: Mapping[str, torch.Tensor]) -> list[Data]:
        """This rank's rows of every tensor, one dictionary a microbatch; on an empty rank each has zero rows."""
        for name, tensor in data.items():
            if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0 or len(tensor) != self.samples:
                raise ContextError(
                    f"ctx.microbatches(data): data[{name!r}] must be a tensor of {self.samples} rows, one a sample"
                )
        dealt = [
            {name: tensor[torch.tensor(share, dtype=torch.long, device=tensor.device)] for name, tensor in data.items()}
            for share in self.shares
        ]
        for microbatch, share in zip(dealt, self.shares, strict=True):
            self._dealt(microbatch, share)
        return dealt

    def global_count(self) -> float:
        """The weight of the whole batch: the sum of weights(data), by default the number of samples."""
        return int(self.weight) if self.weight == int(self.weight) else self.weight

    def note(self, name: str, value: torch.Tensor | float) -> None:
        """Have a value compared with the one on one process, whatever its name and shape.

        `ctx.note("norm", n)`, just before a hand-written clip scales the gradients, is the norm that is compared. Of
        several numbers, such as the norms of the parameters, it is their Euclidean norm.
        """
        if name != "norm":
            self._note(name, value)
            return
        if isinstance(value, torch.Tensor):
            full = getattr(value, "full_tensor", None)
            whole = (full() if full else value).detach().double()
            value = whole.item() if whole.numel() == 1 else whole.norm().item()
        self._note(name, float(value))

    def term(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """The same value: a summand of the loss, by a name under which it gets weights of its own.

        `loss = ctx.term("policy", a) + ctx.term("kl", b)`. Without it the summands of the loss are told apart by its
        graph, and named after the operation that they end in.
        """
        return self._term(name, value)
