"""`ctx`: all that a reader's step is told about its place in the run.

`ctx.rank`, `ctx.world_size`, `ctx.device`; `ctx.microbatches(data)`, this rank's share; `ctx.global_count()`, the
valid tokens (or samples) of the whole batch; `ctx.note(name, value)`, a value to compare, such as the norm of a
hand-written clip. In the reference run the world is one process and the share is one microbatch: the whole batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

Data = dict[str, torch.Tensor]
Note = Callable[[str, float], None]


class ContextError(ValueError):
    """The reader asked `ctx` for something it cannot give."""


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

    def microbatches(self, data: Mapping[str, torch.Tensor]) -> list[Data]:
        """This rank's rows of every tensor, one dictionary a microbatch; on an empty rank each has zero rows."""
        for name, tensor in data.items():
            if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0 or len(tensor) != self.samples:
                raise ContextError(
                    f"ctx.microbatches(data): data[{name!r}] must be a tensor of {self.samples} rows, one a sample"
                )
        return [
            {name: tensor[torch.tensor(share, dtype=torch.long, device=tensor.device)] for name, tensor in data.items()}
            for share in self.shares
        ]

    def global_count(self) -> float:
        """The weight of the whole batch: the sum of weights(data), by default the number of samples."""
        return int(self.weight) if self.weight == int(self.weight) else self.weight

    def note(self, name: str, value: torch.Tensor | float) -> None:
        """Have a value compared: `ctx.note("norm", n)` just before a hand-written clip scales the gradients.

        A tensor of several numbers, such as the norms of the parameters, counts by its Euclidean norm.
        """
        if isinstance(value, torch.Tensor):
            full = getattr(value, "full_tensor", None)
            whole = (full() if full else value).detach().double()
            value = whole.item() if whole.numel() == 1 else whole.norm().item()
        self._note(name, float(value))
