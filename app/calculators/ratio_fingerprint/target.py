"""What a prediction is held against before it becomes a hypothesis: many of them at once."""

from dataclasses import dataclass

import numpy as np

from samestep.app.contract.arrays import Floats

NEAR, KEPT = 0.05, 16
"""So near, and so many, predictions of one kind are handed on."""


@dataclass(frozen=True)
class Target:
    """The observed entries, or, where only that is known of a whole gradient, their norm."""

    gradient: Floats | None
    norm: float | None

    def distances(self, predicted: Floats) -> Floats:
        """Of every row to what was seen, relative to the larger of the two; infinite beyond float64."""
        lengths = np.linalg.norm(predicted, axis=1)
        if self.gradient is not None:
            off, size = np.linalg.norm(predicted - self.gradient, axis=1), float(np.linalg.norm(self.gradient))
        else:
            size = self.norm or 0.0
            off = np.abs(lengths - size)
        larger = np.maximum(lengths, size)
        found = np.divide(off, larger, out=np.zeros_like(off), where=larger > 0)
        return np.where(np.isfinite(found), found, np.inf)

    def nearest(self, predicted: Floats) -> list[int]:
        """The rows that come near, the nearest first."""
        distances = self.distances(predicted)
        order = np.argsort(distances, kind="stable")[:KEPT]
        return [index for index in order.tolist() if distances[index] <= NEAR]
