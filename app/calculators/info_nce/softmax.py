"""Rows of softmax cross-entropy over a table of similarities.

Row i has the vector x_i, column j the vector y_j, and

    logit_ij = s·⟨x_i, y_j⟩    (s = 1/τ)        p_i = softmax over j of logit_i
    ℓ_i = −log p_i[label_i]                     G_ij = ∂ℓ_i/∂logit_ij = p_ij − 1[j = label_i]

Two choices keep relative accuracy where a plain softmax loses it. Differences from the row's largest similarity are
taken before the scale is applied, so that logits of 8e6 do not round each other away; and p − 1 at the label is summed
as −Σ of the other probabilities, so that a loss of 1e-13 has a gradient with all its digits.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from samestep.app.contract.arrays import Floats

Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class SoftmaxBlock:
    """Some rows of the table. G = signed / total[:, None]."""

    differences: Floats
    """logit − the row's largest, [rows, columns]."""
    signed: Floats
    """exp(differences), and at the label −`others`, [rows, columns]."""
    label_difference: Floats
    label_weight: Floats
    """exp(label_difference), [rows]."""
    others: Floats
    """Σ exp(differences) over all columns but the label, [rows]."""
    total: Floats

    @classmethod
    def of(cls, similarities: Floats, labels: Indices, scale: float) -> "SoftmaxBlock":
        """From ⟨x_i, y_j⟩, which is overwritten."""
        rows = np.arange(len(labels))
        differences = similarities
        differences -= differences.max(axis=1, keepdims=True)
        differences *= scale
        signed = np.exp(differences)
        label_weight = signed[rows, labels]
        signed[rows, labels] = 0.0
        others = signed.sum(axis=1)
        signed[rows, labels] = -others
        return cls(differences, signed, differences[rows, labels], label_weight, others, others + label_weight)

    def loss(self) -> Floats:
        """ℓ_i, with all its digits both when the label has nearly everything and when it has next to nothing."""
        usual = self.label_difference > -600.0
        return np.where(
            usual,
            np.log1p(self.others / np.where(usual, self.label_weight, 1.0)),
            np.log(self.total) - self.label_difference,
        )

    def probabilities(self, labels: Indices) -> Floats:
        """p_ij, [rows, columns]."""
        weights = self.signed.copy()
        weights[np.arange(len(labels)), labels] = self.label_weight
        return weights / self.total[:, None]

    def derivative(self) -> Floats:
        """G_ij, [rows, columns]."""
        return self.signed / self.total[:, None]

    def scale_gradient(self) -> Floats:
        """∂ℓ_i/∂log s, [rows]; a row's G add up to 0, so that differences do for logits."""
        return np.asarray(np.einsum("ij,ij->i", self.signed, self.differences) / self.total)

    def bias_gradient(self) -> Floats:
        """∂ℓ_i/∂b, [rows]: 0, for what is added to all logits of a row cancels."""
        return np.zeros(len(self.total))
