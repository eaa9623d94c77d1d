"""Updates of matrices and of their shards against torch's own optimizers and decompositions."""

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.kit import Asked, Body, Program

asked = Asked("matrix_update")
answer, view, view_refusal = asked.answer, asked.view, asked.view_refusal
Tensor = torch.Tensor


def matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def update(name: str, **body: Any) -> Tensor:
    return torch.tensor(answer(body)["schemes"][name]["update"], dtype=torch.float64)


def inverse_root(symmetric: Tensor, power: float) -> Tensor:
    values, vectors = torch.linalg.eigh(symmetric)
    return (vectors * values**power) @ vectors.T


@pytest.mark.parametrize(("rows", "columns"), [(5, 3), (3, 5), (4, 4), (1, 6)])
def test_the_polar_factor_is_the_gradient_over_the_root_of_its_gram_matrix(rows: int, columns: int) -> None:
    g = matrix(rows, columns)
    expected = g @ inverse_root(g.T @ g, -0.5) if rows >= columns else inverse_root(g @ g.T, -0.5) @ g
    torch.testing.assert_close(update("whole", gradient=g.tolist()), expected, rtol=1e-9, atol=1e-9)


def test_shampoo_is_the_fourth_roots_of_both_damped_gram_matrices() -> None:
    g, damping = matrix(4, 3), 0.25
    left = inverse_root(g @ g.T + damping * torch.eye(4, dtype=g.dtype), -0.25)
    right = inverse_root(g.T @ g + damping * torch.eye(3, dtype=g.dtype), -0.25)
    found = update("whole", gradient=g.tolist(), method="shampoo", damping=damping)
    torch.testing.assert_close(found, left @ g @ right, rtol=1e-9, atol=1e-9)


def adafactor_of_torch(g: Tensor) -> Tensor:
    """The direction of torch's first step: its learning rate and relative step taken out again."""
    parameter = torch.nn.Parameter(torch.zeros_like(g))
    parameter.grad = g.clone()
    torch.optim.Adafactor([parameter], lr=1.0, weight_decay=0.0).step()
    return -parameter.detach() / 1e-3


@pytest.mark.parametrize(("rows", "columns"), [(4, 2), (7, 5), (6, 1)])
def test_adafactor_is_the_first_step_of_torchs_optimizer_on_the_whole_and_on_each_shard(
    rows: int, columns: int
) -> None:
    g = matrix(rows, columns, 3)
    body: Body = {"gradient": g.tolist(), "method": "adafactor", "shards": 3}
    torch.testing.assert_close(update("whole", **body), adafactor_of_torch(g), rtol=1e-9, atol=1e-9)
    shards = torch.cat([adafactor_of_torch(part) for part in g.chunk(3)])
    torch.testing.assert_close(update("per_shard", **body), shards, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
@pytest.mark.parametrize(("rows", "columns"), [(8, 3), (3, 8)])
def test_newton_schulz_points_where_torchs_muon_goes(rows: int, columns: int, scale: str) -> None:
    """Torch iterates in bfloat16, so directions agree, and lengths to a few per cent."""
    g = matrix(rows, columns, 5).float()
    parameter = torch.nn.Parameter(torch.zeros_like(g))
    parameter.grad = g.clone()
    torch.optim.Muon([parameter], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False, adjust_lr_fn=scale).step()
    moved = -parameter.detach().double()
    found = update("whole", gradient=g.tolist(), method="newton_schulz", scale=scale)
    cosine = (moved * found).sum() / moved.norm() / found.norm()
    assert cosine > 0.999
    assert (moved.norm() / found.norm()).item() == pytest.approx(1, rel=0.03)


@given(
    st.integers(1, 7), st.integers(1, 7), st.integers(1, 9), st.sampled_from(["rows", "columns"]), st.integers(0, 99)
)
@settings(max_examples=60, deadline=None)
def test_shards_are_cut_as_torch_cuts_them(rows: int, columns: int, shards: int, axis: str, seed: int) -> None:
    g, dim = matrix(rows, columns, seed), 0 if axis == "rows" else 1
    got = answer(gradient=g.tolist(), shards=shards, axis=axis)
    parts = g.chunk(shards, dim)
    assert got["shard_sizes"] == [part.shape[dim] for part in parts]
    decomposed = [torch.linalg.svd(part, full_matrices=False) for part in parts]
    expected = torch.cat([u @ v for u, _, v in decomposed], dim)
    found = torch.tensor(got["schemes"]["per_shard"]["update"], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


@given(st.integers(2, 8), st.integers(1, 5), st.integers(2, 4), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_reduced_statistics_make_adafactor_whole_and_a_local_clip_does_not(
    rows: int, columns: int, shards: int, seed: int
) -> None:
    g = matrix(rows, columns, seed)
    schemes = answer(gradient=g.tolist(), method="adafactor", shards=shards)["schemes"]
    assert schemes["statistics_reduced"]["matches_reference"] is True
    if columns > 1:
        assert schemes["statistics_reduced_clip_local"]["norm"] > 0
        assert set(schemes) == {"whole", "per_shard", "statistics_reduced", "statistics_reduced_clip_local"}


@pytest.mark.parametrize("method", ["polar", "newton_schulz", "shampoo", "adafactor"])
def test_one_shard_is_the_whole_and_two_are_not(method: str) -> None:
    g = matrix(6, 3, 1).tolist()
    one, two = (answer(gradient=g, method=method, shards=n)["schemes"]["per_shard"] for n in (1, 2))
    assert one["matches_reference"] is True
    assert two["matches_reference"] is False


def test_shards_are_right_by_themselves_where_one_alone_has_a_gradient_or_they_are_orthogonal_to_each_other() -> None:
    alone = answer(gradient=[[3, 1], [1, 2], [0, 0], [0, 0]])["schemes"]["per_shard"]
    assert alone["matches_reference"] is True
    rows = answer(gradient=[[3, 1, 0, 0], [1, 2, 0, 0], [0, 0, 2, -1], [0, 0, 0.5, 1]])["schemes"]["per_shard"]
    assert rows["matches_reference"] is True
    columns = answer(gradient=[[3, 0], [0, 2], [4, 0]], axis="columns")["schemes"]["per_shard"]
    assert columns["matches_reference"] is True
    assert (
        answer(gradient=[[3, 1], [1, 2], [4, 0]], axis="columns")["schemes"]["per_shard"]["matches_reference"] is False
    )


def test_a_scale_by_shape_differs_between_a_shard_and_the_whole() -> None:
    schemes = answer(gradient=matrix(8, 2).tolist(), shards=4, scale="original")["schemes"]
    assert schemes["per_shard"]["norm"] == pytest.approx(2 * schemes["per_shard_shape_scaled"]["norm"], rel=1e-9)


def test_a_zero_gradient_has_a_zero_update_and_no_cosine() -> None:
    for method in ("polar", "newton_schulz", "shampoo", "adafactor"):
        for scheme in answer(gradient=[[0, 0], [0, 0]], method=method)["schemes"].values():
            assert scheme["update"] == [[0, 0], [0, 0]]
            assert (scheme["reason"], scheme["cosine"], scheme["relative_difference"]) == ("zero_reference", None, None)


def test_a_deficient_rank_is_left_out_of_the_polar_factor() -> None:
    got = answer(gradient=[[1, 2], [2, 4], [3, 6]])["schemes"]["whole"]
    assert got["norm"] == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("size", ["1e-200", "1e200"])
@pytest.mark.parametrize("method", ["polar", "adafactor"])
def test_what_does_not_depend_on_the_gradients_size_does_not_at_the_ends_of_float64(size: str, method: str) -> None:
    plain = update("per_shard", gradient=[[3, 1], [1, 2], [2, -1]], method=method)
    scaled = [[3 * float(size), float(size)], [float(size), 2 * float(size)], [2 * float(size), -float(size)]]
    torch.testing.assert_close(update("per_shard", gradient=scaled, method=method), plain, rtol=1e-9, atol=1e-12)


def test_a_matrix_of_the_largest_size_is_answered() -> None:
    got = answer(gradient=matrix(256, 256).tolist(), shards=8, method="newton_schulz")
    assert got["schemes"]["whole"]["matches_reference"] is True
    assert 0.3 < got["schemes"]["per_shard"]["relative_difference"] < 3


REFUSED_BODIES = [
    ({"gradient": []}, "gradient"),
    ({"gradient": [[]]}, "gradient.0"),
    ({"gradient": [[1, 2], [3]]}, "gradient.1"),
    ({"gradient": [["nan"]]}, "gradient.0.0"),
    ({"gradient": [[1] * 257]}, "gradient"),
    ({"gradient": [["1.7e308"] * 4]}, "gradient"),
    ({"gradient": [["1e-200", 0], [0, "1e200"]], "method": "adafactor"}, "gradient"),
    ({"shards": 0}, "shards"),
    ({"axis": "both"}, "axis"),
    ({"axis": "columns", "method": "adafactor"}, "axis"),
    ({"method": "lion"}, "method"),
    ({"scale": "rms"}, "scale"),
    ({"ns_steps": 100}, "ns_steps"),
    ({"damping": -1}, "damping"),
    ({"coefficients": [1, 2]}, "coefficients"),
    ({"coefficients": [9, 9, 9], "method": "newton_schulz", "ns_steps": 90}, "coefficients"),
]


def test_a_way_that_the_method_does_not_have_is_refused() -> None:
    assert view_refusal(method="polar", scheme="statistics_reduced").field == "scheme"
    assert view(method="adafactor", scheme="statistics_reduced")["current"]["matches_reference"] is True


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    method = source.choice(["polar", "newton_schulz", "shampoo", "adafactor"])
    rows, columns = source.randint(1, 5), source.randint(1, 4)
    return {
        "gradient": [[source.randint(1, 40) / 8 * source.choice([-1, 1]) for _ in range(columns)] for _ in range(rows)],
        "shards": source.randint(1, 4),
        "axis": "rows" if method == "adafactor" else source.choice(["rows", "columns"]),
        "method": method,
        "scale": source.choice(["none", "original", "match_rms_adamw"]),
        "ns_steps": source.randint(1, 5),
        "damping": source.choice([0.01, 1]),
    }


PROGRAM = Program(
    prints=["schemes.whole.update", "schemes.per_shard.relative_difference", "shard_sizes"],
    planted=("[[3, 1], [1, 2], [2, -1], [0, 1]]", "[[3, 1], [1, 2], [2, -1], [0, 2]]"),
    bodies=any_body,
)
