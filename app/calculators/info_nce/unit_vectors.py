"""Lengths and directions of vectors, one a row, also where their squares are beyond float64."""

import numpy as np

from samestep.app.contract.arrays import Floats


def lengths_of(vectors: Floats) -> Floats:
    """‖v‖ of each row."""
    largest = np.abs(vectors).max(axis=1, initial=0.0)
    scaled = vectors / np.where(largest > 0.0, largest, 1.0)[:, None]
    lengths: Floats = largest * np.sqrt(np.square(scaled).sum(axis=1))
    return lengths


def units_of(vectors: Floats) -> Floats:
    """v/‖v‖ of each row; no row is 0."""
    scaled = vectors / np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
    directions: Floats = scaled / np.sqrt(np.square(scaled).sum(axis=1, keepdims=True))
    return directions


def through_unit(gradient: Floats, unit: Floats, length: Floats) -> Floats:
    """∂/∂v from ∂/∂u where u = v/‖v‖: what lies along u changes nothing. The last axis is that of the vectors."""
    across: Floats = gradient - unit * np.sum(gradient * unit, axis=-1, keepdims=True)
    return across / length
