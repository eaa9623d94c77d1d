"""Rows of the sigmoid loss over a table of similarities: every pair by itself, the label's own or not.

    logit_ij = s·⟨x_i, y_j⟩ + b        y_ij = 1 at the label, else −1
    ℓ_i = Σ_j softplus(−y_ij·logit_ij)        G_ij = ∂ℓ_i/∂logit_ij = σ(logit_ij) − 1[j = label_i]

(Zhai et al. 2023, arXiv 2303.15343, without their learned parameters.) σ − 1 at the label is −σ(−logit), so that it has
all its digits where the pair is told already.
"""

from dataclasses import dataclass

import numpy as np

from samestep.app.calculators.info_nce.softmax import Indices
from samestep.app.contract.arrays import Floats


@dataclass(frozen=True)
class SigmoidBlock:
    """Some rows of the table. G = signed / total[:, None], with a total of 1."""

    scaled: Floats
    """s·⟨x_i, y_j⟩, the logits without the bias, [rows, columns]."""
    signed: Floats
    """G_ij, [rows, columns]."""
    losses: Floats
    total: Floats

    @classmethod
    def of(cls, similarities: Floats, labels: Indices, scale: float, bias: float) -> "SigmoidBlock":
        """From ⟨x_i, y_j⟩, which is overwritten."""
        own = np.arange(len(labels)), labels
        scaled = similarities
        scaled *= scale
        wrong = scaled + bias  # −y·logit: the farther above 0, the larger the loss
        wrong[own] *= -1.0
        small = np.exp(-np.abs(wrong))
        losses = (np.maximum(wrong, 0.0) + np.log1p(small)).sum(axis=1)
        signed = np.where(wrong >= 0, 1.0, small) / (1.0 + small)
        signed[own] *= -1.0
        return cls(scaled, signed, losses, np.ones(len(labels)))

    def loss(self) -> Floats:
        """ℓ_i, [rows]."""
        return self.losses

    def probabilities(self, labels: Indices) -> Floats:
        """σ(logit_ij), [rows, columns]."""
        told = self.signed.copy()
        told[np.arange(len(labels)), labels] += 1.0
        return told

    def derivative(self) -> Floats:
        """G_ij, [rows, columns]."""
        return self.signed

    def scale_gradient(self) -> Floats:
        """∂ℓ_i/∂log s = Σ_j G_ij·s·⟨x_i, y_j⟩, [rows]."""
        return np.asarray(np.einsum("ij,ij->i", self.signed, self.scaled))

    def bias_gradient(self) -> Floats:
        """∂ℓ_i/∂b = Σ_j G_ij, [rows]."""
        return np.asarray(self.signed.sum(axis=1))
