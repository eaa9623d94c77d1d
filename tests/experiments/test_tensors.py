"""Digests of tensor sets: the raw one sees every bit, the canonical one only what is larger than rounding."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from samestep.experiments.tensors import canonical_sha256, describe, largest_difference, load, raw_sha256, save


def test_the_raw_digest_is_that_of_the_bytes_in_the_order_of_the_names() -> None:
    a, b = np.array([1.0, 2.0]), np.array([[3.0]])
    wanted = hashlib.sha256(a.astype("<f8").tobytes() + b.astype("<f8").tobytes()).hexdigest()
    assert raw_sha256({"b": b, "a": a}) == wanted


def test_noise_changes_the_raw_digest_only() -> None:
    clean = {"w": np.array([0.5, -0.25, 1.0])}
    noisy = {"w": clean["w"] + np.array([1e-16, 1e-16, 3e-16])}
    assert raw_sha256(clean) != raw_sha256(noisy)
    assert canonical_sha256(clean) == canonical_sha256(noisy)
    moved = {"w": clean["w"] + 1e-5}
    assert canonical_sha256(clean) != canonical_sha256(moved)


def test_minus_zero_names_and_shapes_in_the_canonical_digest() -> None:
    assert canonical_sha256({"w": np.array([0.0])}) == canonical_sha256({"w": np.array([-0.0])})
    assert canonical_sha256({"w": np.zeros(2)}) != canonical_sha256({"v": np.zeros(2)})
    assert canonical_sha256({"w": np.zeros((2, 1))}) != canonical_sha256({"w": np.zeros(2)})


def test_values_that_are_not_finite_have_no_canonical_digest() -> None:
    with pytest.raises(ValueError, match="not finite"):
        canonical_sha256({"w": np.array([np.nan])})


def test_files_depend_on_the_arrays_alone(tmp_path: Path) -> None:
    arrays = {"b": np.ones((2, 3)), "a": np.arange(4)}
    for name in ("one", "two"):
        assert save(tmp_path / name, dict(sorted(arrays.items(), reverse=name == "two"))) == describe(arrays)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert largest_difference(load(tmp_path / "one"), arrays) == 0.0


def test_the_reader_agrees_with_the_library(tmp_path: Path) -> None:
    arrays = {"b": np.ones((2, 3)), "a": np.arange(4), "scalar": np.array(2.5), "bytes": np.arange(3, dtype=np.uint8)}
    described = save(tmp_path / "file", arrays)
    assert describe(load(tmp_path / "file")) == described  # shapes too, and a number stays a number
    mine, theirs = load(tmp_path / "file"), load_file(tmp_path / "file")
    assert mine.keys() == theirs.keys()
    for name, array in theirs.items():
        assert mine[name].dtype == array.dtype
        assert np.array_equal(mine[name], array)
        assert mine[name].flags.writeable


def test_different_sets_are_not_compared() -> None:
    with pytest.raises(ValueError, match="different tensors"):
        largest_difference({"a": np.zeros(1)}, {"a": np.zeros(2)})
    assert largest_difference({"a": np.array([1.0])}, {"a": np.array([1.5])}) == 0.5
