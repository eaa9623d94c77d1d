"""Rounding against torch and numpy, bit for bit; sums against tensors of the very format; the worked cases."""

import json
import math
import random
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from starlette.testclient import TestClient
from torch.distributed.algorithms._comm_hooks.default_hooks import DefaultState

from samestep.app.calculators.reduction_precision.sums import added, divided
from samestep.app.mathematics.float_formats import FLOAT8, FORMATS, Float8Name, FormatName
from tests.kit import Answer, Asked, Body, Program, cases

asked = Asked("reduction_precision")
answer, view, refusal = asked.answer, asked.view, asked.refusal


TORCH = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
NARROW = ("float16", "bfloat16", "float32")
EIGHT = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}

each_format = pytest.mark.parametrize("name", TORCH)
each_narrow_format = pytest.mark.parametrize("name", NARROW)
each_float8 = pytest.mark.parametrize("name", EIGHT)


def mean(got: Answer, scheme: str, order: str = "rounded_once") -> Any:
    return got["placements"][scheme]["reductions"][order]["mean"]


def same_bits(one: float, other: float) -> bool:
    return struct.pack("d", one) == struct.pack("d", other)


# --- formats


@each_format
def test_a_formats_range_is_torchs(name: FormatName) -> None:
    form, info = FORMATS[name], torch.finfo(TORCH[name])
    assert (form.largest, form.smallest_normal) == (info.max, info.smallest_normal)
    assert form.spacing_at_one == info.eps
    assert form.smallest == info.smallest_normal * info.eps


def float32_values() -> torch.Tensor:
    """Every exponent with random digits; all neighbours of bfloat16's ties; subnormal, largest and special values."""
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, 20_000, dtype=np.uint32)
    ties = (random.integers(0, 2**16, 4_000, dtype=np.uint32) << 16) + 0x8000
    edges = [0, 1, 0x8000, 0x7FFFFF, 0x800000, 0x7F7F8000, 0x7F7F7FFF, 0x7F7FFFFF, 0x7F800000]
    special = np.array(edges, dtype=np.uint32)
    found = np.concatenate([bits, ties, ties + 1, ties - 1, special, special + 2**31]).view(np.float32)
    return torch.from_numpy(found[~np.isnan(found)])


@each_narrow_format
def test_rounding_a_float32_is_torchs_cast_bit_for_bit(name: FormatName) -> None:
    values = float32_values()
    expected = values.to(TORCH[name]).double().tolist()
    for value, right in zip(values.double().tolist(), expected, strict=True):
        assert same_bits(FORMATS[name].rounded(value), right), value


@pytest.mark.parametrize(("name", "dtype"), [("float16", np.float16), ("float32", np.float32)])
def test_rounding_a_float64_is_numpys_cast_bit_for_bit(name: FormatName, dtype: type[np.floating[Any]]) -> None:
    random = np.random.default_rng(1)
    form = FORMATS[name]
    values = np.ldexp(random.uniform(-1, 1, 4_000), random.integers(-160, 130, 4_000))
    ties = np.ldexp(2 * random.integers(2 ** (form.digits - 1), 2**form.digits, 500) + 1.0, -form.digits)
    values = np.concatenate([values, ties, np.nextafter(ties, 0), np.nextafter(ties, 9)])
    with np.errstate(all="ignore"):
        expected = values.astype(dtype).astype(np.float64)
    for value, right in zip(values.tolist(), expected.tolist(), strict=True):
        assert same_bits(form.rounded(value), right), value


@each_narrow_format
@settings(deadline=None, max_examples=100)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_a_float64_is_rounding_its_exact_value(name: FormatName, value: float) -> None:
    assert FORMATS[name].rounded(value) == FORMATS[name].nearest(Fraction(value))


@settings(deadline=None, max_examples=100)
@given(st.fractions())
def test_an_exact_value_in_float64_is_pythons(value: Fraction) -> None:
    assert FORMATS["float64"].nearest(value) == float(value)


def test_a_cast_by_way_of_float32_would_round_twice() -> None:
    """What torch does with a float64 on its way to bfloat16; the nearest one is the next above."""
    value = 1 + 2.0**-8 + 2.0**-40
    assert torch.tensor(value, dtype=torch.float64).to(torch.bfloat16).item() == 1.0
    assert FORMATS["bfloat16"].rounded(value) == 1 + 2.0**-7


# --- sums in a format


def values_in(name: str, count: int, seed: int) -> list[float]:
    """Values of a format, of magnitudes that do not overflow in a sum."""
    generator = torch.Generator().manual_seed(seed)
    held = torch.randn(count, generator=generator) * 2 ** torch.randint(-6, 6, (count,), generator=generator)
    return held.to(TORCH[name]).double().tolist()


@each_format
@pytest.mark.parametrize("count", [1, 2, 7, 64, 301])
def test_one_by_one_is_a_loop_over_tensors_of_the_format(name: FormatName, count: int) -> None:
    values = values_in(name, count, seed=count)
    total = torch.zeros((), dtype=TORCH[name])
    for value in torch.tensor(values, dtype=TORCH[name]):
        total = total + value
    assert added(values, "sequential", FORMATS[name]) == total.item()


@each_format
@pytest.mark.parametrize("count", [1, 2, 7, 64, 301])
def test_in_pairs_is_a_tree_of_tensors_of_the_format(name: FormatName, count: int) -> None:
    values = values_in(name, count, seed=count)
    level = torch.tensor(values, dtype=TORCH[name])
    while len(level) > 1:
        even = len(level) // 2 * 2
        level = torch.cat([level[0:even:2] + level[1:even:2], level[even:]])
    assert added(values, "tree", FORMATS[name]) == level.item()


@each_narrow_format
def test_rounded_once_is_a_float64_sum_cast_at_the_end(name: FormatName) -> None:
    values = values_in(name, 100, seed=3)
    exact = torch.tensor(values, dtype=torch.float64).sum()
    assert exact.item() == math.fsum(values)
    assert added(values, "rounded_once", FORMATS[name]) == exact.float().to(TORCH[name]).item()


@each_format
@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 1024])
def test_a_quotient_is_the_tensors(name: FormatName, divisor: int) -> None:
    values = values_in(name, 100, seed=4)
    expected = torch.tensor(values, dtype=TORCH[name]) / torch.tensor(divisor, dtype=TORCH[name])
    assert divided(values, Fraction(divisor), FORMATS[name]).values == expected.double().tolist()


@each_narrow_format
def test_a_norm_is_that_of_tensors_of_the_format(name: FormatName) -> None:
    values = values_in(name, 50, seed=5)
    got = answer(values=values, dtype=name)["norm"]
    total = torch.zeros((), dtype=TORCH[name])
    for value in torch.tensor(values, dtype=TORCH[name]):
        total = total + value * value
    assert got["in_dtype"] == total.sqrt().item()
    assert got["exact"] == pytest.approx(torch.linalg.vector_norm(torch.tensor(values).double()).item(), rel=1e-14)


# --- the mean


def test_the_sum_in_float16_overflows_where_a_part_is_not_divided_before() -> None:
    """P-01."""
    given, expected = cases()["P-01"]["inputs"], cases()["P-01"]["expected"]
    got = answer(values=given["fp16_grad_on_every_rank"], ranks=given["P"], predivide=given["predivide"])
    assert got["sum_then_divide"] == expected["sum_then_divide"] == "inf"
    assert got["divide_then_sum"] == expected["divide_then_sum"]
    assert got["predivided"] == expected["predivide_32"]
    assert got["exact_mean"] == expected["exact_mean"]
    assert answer(values=128, ranks=1024, dtype="bfloat16")["sum_then_divide"] == 128


def test_a_norm_of_5000_overflows_where_its_square_does() -> None:
    """P-02."""
    given, expected = cases()["P-02"]["inputs"], cases()["P-02"]["expected"]
    got = answer(values=given["grad"], dtype=given["dtype"])["norm"]
    assert got["largest_square"] == got["in_dtype"] == expected["square_fp16"] == "inf"
    assert got["in_float32"] == got["divided_first"] == expected["norm_fp32"]
    assert answer(values=[250], dtype="float16")["norm"]["in_dtype"] == 250


def test_summands_below_the_format_vanish() -> None:
    got = answer(values=2.0**-16, ranks=1024)
    assert (got["sum_then_divide"], got["divide_then_sum"], got["predivided"]) == (2.0**-16, 0.0, 2.0**-16)
    first = got["placements"]["divide_then_sum"]
    assert first["summands_vanished"] == 1024
    assert first["reductions"]["rounded_once"] == {
        "sum": 0.0,
        "mean": 0.0,
        "overflow": False,
        "underflow": True,
        "relative_error": 1.0,
        "outcome": "vanished",
        "reason": None,
    }


def test_a_subnormal_summand_loses_digits_and_says_so() -> None:
    got = answer(values=1.5 * 2.0**-20, ranks=16)["placements"]["divide_then_sum"]
    assert got["summands_vanished"] == 0
    assert got["reductions"]["rounded_once"]["underflow"]
    exact = answer(values=1.5 * 2.0**-20, ranks=8)["placements"]["divide_then_sum"]
    assert exact["summand_largest"] == 3 * 2.0**-24
    assert not exact["reductions"]["rounded_once"]["underflow"]


@pytest.mark.parametrize(("dtype", "ranks", "stop"), [("bfloat16", 1024, 256), ("float16", 4096, 2048)])
def test_equal_summands_one_by_one_stop_at_a_power_of_two(dtype: str, ranks: int, stop: int) -> None:
    total = torch.zeros((), dtype=TORCH[dtype])
    for _ in range(ranks):
        total = total + torch.ones((), dtype=TORCH[dtype])
    assert total.item() == stop
    got = answer(values=1, ranks=ranks, dtype=dtype)["placements"]
    for scheme in got.values():
        assert scheme["reductions"]["sequential"]["mean"] == stop / ranks
        assert scheme["reductions"]["sequential"]["outcome"] == "off"
        assert scheme["reductions"]["tree"]["mean"] == scheme["reductions"]["rounded_once"]["mean"] == 1
    assert got["sum_then_divide"]["reductions"]["sequential"]["sum"] == stop


@each_narrow_format
@pytest.mark.parametrize("scheme", ["sum_then_divide", "divide_then_sum", "predivided"])
def test_a_scheme_is_the_same_operations_on_tensors(name: FormatName, scheme: str) -> None:
    ranks = 48
    values = values_in(name, ranks, seed=9)
    got = answer(values=values, dtype=name)
    before = {"sum_then_divide": 1.0, "divide_then_sum": float(ranks), "predivided": float(got["predivide"])}[scheme]
    total = torch.zeros((), dtype=TORCH[name])
    for summand in torch.tensor(values, dtype=TORCH[name]) / before:
        total = total + summand
    assert mean(got, scheme, "sequential") == (total / (ranks / before)).item()
    assert got["exact_mean"] == pytest.approx(math.fsum(values) / ranks, rel=1e-15)


def test_the_error_is_that_of_the_reduction_not_of_the_entry() -> None:
    got = answer(values="0.1", ranks=4, dtype="bfloat16")
    assert got["given_mean"] == 0.1
    assert got["exact_mean"] == torch.tensor(0.1).to(torch.bfloat16).item()
    assert got["placements"]["sum_then_divide"]["reductions"]["tree"]["relative_error"] == 0
    assert got["entry"] == {"largest": got["exact_mean"], "changed": 4, "vanished": 0, "overflow": False}


def test_relative_errors_are_exact_fractions_rounded_once() -> None:
    values = [1.0, 2.0, 4.0]
    got = answer(values=values)["placements"]["sum_then_divide"]["reductions"]["rounded_once"]
    right = Fraction(7, 3)
    assert got["mean"] == float(np.float16(7 / 3))
    assert got["relative_error"] == float(abs(Fraction(got["mean"]) - right) / right)
    assert got["outcome"] == "right"


@pytest.mark.parametrize("ranks", [1, 2, 3, 6, 8, 12, 100, 512, 1024, 4096])
def test_a_blank_factor_is_the_one_that_torch_takes(ranks: int) -> None:
    assert int(answer(values=1, ranks=ranks)["predivide"]) == DefaultState._get_gradient_predivide_factor(ranks)


def test_values_beyond_the_format_are_infinite_before_anything_is_added() -> None:
    got = answer(values=[70000, 1], dtype="float16")
    assert got["entry"]["overflow"]
    assert (got["exact_mean"], got["exact_mean_exact"], mean(got, "divide_then_sum")) == ("inf", None, "inf")
    assert not answer(values=[65519, 1], dtype="float16")["entry"]["overflow"]
    opposed = answer(values=[70000, -70000], dtype="float16")
    assert mean(opposed, "sum_then_divide") == "nan"
    assert answer(values=[70000, -70000], dtype="float32")["sum_then_divide"] == 0


def test_float64_overflows_too() -> None:
    got = answer(values="1e308", ranks=4, dtype="float64")
    assert (got["sum_then_divide"], got["divide_then_sum"]) == ("inf", 1e308)
    assert got["placements"]["sum_then_divide"]["sum_unrounded"] == "inf"


def test_a_mean_of_nothing_but_zeros_is_right_and_has_no_relative_error() -> None:
    got = answer(values=[1, -1])["placements"]["sum_then_divide"]["reductions"]["tree"]
    assert (got["outcome"], got["relative_error"], got["reason"]) == ("right", None, "zero_reference")


# --- eight bits, and scales


@each_float8
def test_rounding_to_eight_bits_is_torchs_cast_beyond_the_largest_number_too(name: Float8Name) -> None:
    form, info = FLOAT8[name], torch.finfo(EIGHT[name])
    assert (form.largest, form.smallest_normal, form.spacing_at_one) == (info.max, info.smallest_normal, info.eps)
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(4_000, generator=generator) * 2.0 ** torch.randint(-22, 22, (4_000,), generator=generator)
    edges = [448.0, 463.9, 464.0, 465.0, 480.0, 57344.0, 61439.0, 61440.0, 1e9, 2.0**-10, 2.0**-17, 0.0]
    given = torch.cat([values, torch.tensor(edges), -torch.tensor(edges)])
    expected = given.to(EIGHT[name]).double().tolist()
    for value, right in zip(given.double().tolist(), expected, strict=True):
        assert same_bits(form.rounded(value), right), value
        assert form.nearest(Fraction(value)) == right


@each_float8
@pytest.mark.parametrize("scaling", ["none", "amax", "amax_times_ranks"])
def test_a_scaled_mean_is_torchs_casts_between_a_product_and_a_quotient(name: str, scaling: str) -> None:
    source = random.Random(name + scaling)
    for _ in range(20):
        values = [source.randint(1, 4000) / 8 * source.choice([1, -1]) for _ in range(source.randint(1, 9))]
        largest = torch.finfo(EIGHT[name]).max
        scale = {"none": 1, "amax": largest / max(map(abs, values))}.get(scaling)
        scale = largest / max(map(abs, values)) / len(values) if scale is None else scale
        running = torch.zeros((), dtype=torch.float32)
        held = (torch.tensor(values, dtype=torch.float64) * scale).to(EIGHT[name])
        beyond = False
        for value in held.float():
            beyond |= (running + value).abs().item() > largest * (1 + torch.finfo(EIGHT[name]).eps / 4)
            running = (running + value).to(EIGHT[name]).float()
        got = answer(values=values, dtype=name, scaling=scaling)
        reduced = got["placements"]["sum_then_divide"]["reductions"]["sequential"]
        assert got["scale"] == pytest.approx(scale, rel=1e-14)
        if running.isfinite():
            assert reduced["sum"] == pytest.approx(running.item() / scale, rel=1e-12)
        assert reduced["overflow"] is beyond
        if scaling == "amax_times_ranks":
            assert not reduced["overflow"]


def test_a_sum_that_saturates_is_finite_and_says_overflow_and_an_infinite_one_says_it_too() -> None:
    saturated = answer(values=100, ranks=8, dtype="float8_e4m3fn")["placements"]["sum_then_divide"]
    assert {(one["sum"], one["overflow"]) for one in saturated["reductions"].values()} == {(448, True)}
    infinite = answer(values=20_000, ranks=8, dtype="float8_e5m2")["placements"]["sum_then_divide"]
    assert {(one["sum"], one["overflow"]) for one in infinite["reductions"].values()} == {("inf", True)}
    beyond = answer(values=[500, 1], dtype="float8_e4m3fn")["entry"]
    assert (beyond["largest"], beyond["overflow"]) == (448, True)


def test_a_scale_helps_the_range_of_float16_as_well_and_changes_no_mean_where_nothing_was_lost() -> None:
    scaled = answer(values=128, ranks=1024, dtype="float16", scaling="amax_times_ranks")
    assert (scaled["sum_then_divide"], scaled["scale_exact"]) == (128, "2047/4096")
    assert answer(values=[1, 2, 4], dtype="float32", scaling="amax")["exact_mean"] == pytest.approx(7 / 3, rel=1e-7)


def test_zeros_have_no_magnitude_to_scale_by() -> None:
    assert refusal(values=[0, 0], scaling="amax").field == "values"
    assert answer(values=[0, 0])["scale_exact"] == "1"


def test_a_scaled_value_of_float64_keeps_its_axis_inside_float64() -> None:
    got = view(values="1", ranks="4", dtype="float64", scaling="amax")
    assert got["reach"]["smallest"] > 0
    assert got["reach"]["largest"] == 1


# --- doors and refusals


def test_the_panel_and_the_body_agree() -> None:
    fields = {"values": "0.1;0.2;1/3", "ranks": "", "dtype": "bfloat16", "predivide": "1.5", "accumulation": "tree"}
    got = json.loads(asked.panel(**fields).model_dump_json())
    posted = answer(values=["0.1", "0.2", "1/3"], dtype="bfloat16", predivide="1.5", accumulation="tree")
    assert {name: got[name] for name in posted} == posted
    assert got["predivided"] == mean(got, "predivided", "tree")
    assert [row["count"] for row in got["rows"]] == [1, 1, 1]


def test_one_row_for_each_distinct_value() -> None:
    got = asked.panel(values="1,2,1,1", ranks="")
    assert [(row.given, row.count) for row in got.rows] == [(1, 3), (2, 1)]
    assert [len(table.rows) for table in got.tables()] == [9, 1, 2]


REFUSED_FIELDS = {
    "values": [
        ("", "blank"),
        ("1,inf", "finite"),
        ({"values": ",".join("1" * 4097), "ranks": ""}, "4,096"),
        ({"values": "0", "scaling": "amax_times_ranks"}, "all 0"),
    ],
    "ranks": [({"values": "1,2,3", "ranks": "2"}, "must be 3"), ("0", "1 or more"), ("4097", "at most 4,096")],
    "predivide": [("0", "greater than 0")],
    "dtype": [("float8", "must be")],
    "scaling": [("delayed", "must be")],
}


VERDICTS = [
    ({}, "the mean should be 128: sum first overflows, divide first is right, predivided by 32 is right"),
    ({"values": "1/65536"}, "sum first is right, divide first becomes 0"),
    ({"values": "1", "dtype": "bfloat16", "accumulation": "sequential"}, "sum first gives 0.25"),
    ({"dtype": "float32"}, "All three orders arrive at 128"),
    ({"values": "1e6"}, "itself beyond float16"),
    ({"values": "500", "ranks": "2", "dtype": "float8_e4m3fn"}, "saturated at 448"),
    ({"values": "100", "ranks": "8", "dtype": "float8_e4m3fn"}, "sum first gives 56"),
]


def test_a_result_of_many_values_stays_small(client: TestClient) -> None:
    values = ",".join(str(i) for i in range(500))
    page = client.get("/en/calculators/reduction_precision/result", params={"values": values, "ranks": ""})
    assert page.status_code == 200
    assert len(page.text) < 40_000


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    ranks = source.randint(1, 9)
    values = [source.choice([60000, 1, "1e-7", "0.1", -3, "1/3"]) for _ in range(ranks)]
    dtype = source.choice(["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"])
    return {
        "values": values,
        "dtype": dtype,
        "scaling": "none" if dtype == "float64" else source.choice(["none", "amax", "amax_times_ranks"]),
        "predivide": source.choice([None, 3, "2.5"]),
        "accumulation": source.choice(["rounded_once", "sequential", "tree"]),
    }


PROGRAM = Program(
    prints=["sum_then_divide", "divide_then_sum", "predivided", "exact_mean"],
    planted=("[128]", "[129]"),
    bodies=any_body,
)
