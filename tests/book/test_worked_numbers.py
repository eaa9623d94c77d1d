"""The worked cases without a body of their own: what the chapters tell of them, computed again."""

from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from tests.kit import cases

CASES = cases()


def gradient_norm(client: TestClient, values: list[float], max_norm: float) -> Any:
    ranks = [[{"id": "w", "grad": values, "owner": True}]]
    return client.post("/api/clip_ownership", json={"ranks": ranks, "max_norm": max_norm})


def test_clipping_repairs_no_gradient_that_is_not_finite(client: TestClient) -> None:
    """O-06: the plain recipe turns inf into NaN and the rest into 0; the right decision is to skip."""
    case = CASES["O-06"]
    plain = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    plain.grad = torch.tensor([float(g) for g in case["inputs"]["grad"]], dtype=torch.float64)
    torch.nn.utils.clip_grad_norm_([plain], case["inputs"]["max_norm"])
    assert plain.grad[[0, 2]].tolist() == [0.0, 0.0]
    assert torch.isnan(plain.grad[1])
    ranks = [[{"id": "w", "grad": case["inputs"]["grad"], "owner": True}]]
    answer = client.post("/api/clip_ownership", json={"ranks": ranks, "max_norm": 1}).json()
    assert answer["global_norm"] == case["expected"]["norm"]
    assert answer["decision"] == case["expected"]["correct_decision"]


def test_a_norm_that_overflows_float32_is_finite_in_float64(client: TestClient) -> None:
    case = CASES["O-06"]
    second, expected = case["inputs"]["second"], case["expected"]["second"]
    in_float32 = torch.full((second["count"],), second["value"], dtype=torch.float32)
    assert torch.isinf(torch.linalg.vector_norm(in_float32))
    answer = gradient_norm(client, [second["value"]] * second["count"], second["max_norm"]).json()
    assert answer["global_norm"] == pytest.approx(expected["norm_float64"], rel=1e-12)
    assert answer["coefficient"] == pytest.approx(expected["coefficient_float64"], rel=1e-12)


def test_a_negative_threshold_is_refused(client: TestClient) -> None:
    given = CASES["O-06"]["inputs"]["negative_threshold"]
    answer = gradient_norm(client, given["grad"], given["max_norm"])
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "max_norm"]


def test_a_sum_in_float16_overflows_where_dividing_first_does_not() -> None:
    """P-01: 1,024 ranks with 128 each."""
    given, expected = CASES["P-01"]["inputs"], CASES["P-01"]["expected"]
    value, ranks, factor = np.float16(given["fp16_grad_on_every_rank"]), given["P"], given["predivide"]
    exact_sum = float(value) * ranks
    with np.errstate(over="ignore"):
        assert np.isinf(np.float16(exact_sum)) == (expected["sum_then_divide"] == "inf")
    assert float(np.float16(value / np.float16(ranks))) * ranks == expected["divide_then_sum"]
    partly = np.float16(float(np.float16(value / np.float16(factor))) * ranks)
    assert float(partly / np.float16(ranks / factor)) == expected["predivide_32"]


def test_a_square_in_float16_overflows_where_its_norm_would_not() -> None:
    """P-02."""
    (value,) = CASES["P-02"]["inputs"]["grad"]
    with np.errstate(over="ignore"):
        assert np.isinf(np.float16(value) * np.float16(value))
    assert np.linalg.norm(np.array([value], dtype=np.float32)) == CASES["P-02"]["expected"]["norm_fp32"]


@pytest.mark.parametrize("way", ["one_batch", "per_part_statistics"])
def test_batch_statistics_of_parts_are_not_those_of_the_batch(way: str) -> None:
    """B-01: two microsteps of 2 under batch norm are another function than one batch of 4."""
    given, expected = CASES["B-01"]["inputs"], CASES["B-01"]["expected"]
    parts = [torch.tensor(part, dtype=torch.float64, requires_grad=True) for part in given["parts"]]
    groups = [torch.cat(parts)] if way == "one_batch" else parts
    normalised = torch.cat([(x - x.mean()) / torch.sqrt(x.var(correction=0) + given["eps"]) for x in groups])
    places = torch.arange(len(normalised)) / len(normalised)
    loss = ((normalised - places) ** 2).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    assert parts[0].grad is not None
    assert loss.item() == pytest.approx(expected[way]["loss"], rel=1e-9)
    assert parts[0].grad[0].item() == pytest.approx(expected[way]["grad_x0"], rel=1e-9, abs=1e-11)
