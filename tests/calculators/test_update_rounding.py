"""Rounded updates, sums and scales against torch's own casts, and against a walk step by step."""

import math
import random
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings, strategies as st

from samestep.app.calculators.update_rounding.weights import moved
from samestep.app.mathematics.float_formats import FLOAT8, FORMATS, FloatFormat
from tests.kit import Asked, Body, Program

asked = Asked("update_rounding")
answer, view = asked.answer, asked.view
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
FP8 = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}


# --- the weight


def walked(weight: float, update: Fraction, steps: int, form: FloatFormat) -> tuple[float, int | None]:
    """Step by step: where the weight ends, and after how many steps it stood still."""
    for step in range(steps):
        after = form.nearest(Fraction(weight) + update)
        if after == weight:
            return weight, step
        weight = after
        if not math.isfinite(weight):
            return weight, None
    return weight, None


@given(
    st.sampled_from(["bfloat16", "float16", "float32"]),
    st.floats(-300, 300),
    st.one_of(st.fractions(-3, 3, max_denominator=5000), st.sampled_from([Fraction(1, 256), Fraction(-1, 512)])),
    st.integers(1, 400),
)
@settings(max_examples=300, deadline=None)
def test_the_jump_through_a_stretch_ends_where_a_walk_does(
    name: str, start: float, update: Fraction, steps: int
) -> None:
    form = FORMATS[name]  # type: ignore[index]
    held = form.nearest(Fraction(start))
    found = moved(Fraction(held), update, steps, form)
    assert (found.after, found.stopped) == walked(held, update, steps, form)


@pytest.mark.parametrize("update", ["1/3", "-1/7", "65504/100000", "1/16777216"])
def test_a_walk_through_subnormal_numbers_and_to_the_end_of_float16_is_the_same(update: str) -> None:
    form, size = FORMATS["float16"], Fraction(update)
    for start, step in ((0.0, size / 2**22), (-(2.0**-14), size / 2**20), (60_000.0, abs(size) * 200)):
        found = moved(Fraction(start), step, 3_000, form)
        assert (found.after, found.stopped) == walked(start, step, 3_000, form)


@pytest.mark.parametrize("name", DTYPES)
def test_rounding_every_step_is_what_torch_does_in_that_dtype(name: str) -> None:
    source = random.Random(name)
    for _ in range(30):
        weight, update, steps = source.randint(-64, 64) / 8, source.randint(-200, 200) / 1024, source.randint(1, 200)
        held = torch.tensor(weight, dtype=DTYPES[name])
        master = held.float()
        for _ in range(steps):
            held, master = (held.double() + update).to(held.dtype), (master.double() + update).float()
        schemes = answer(weight=weight, update=update, steps=steps, dtype=name)["weight"]["schemes"]
        assert schemes["in_dtype"]["after"] == held.item()
        assert schemes["float32_master"]["master"] == master.item()
        assert schemes["float32_master"]["after"] == master.to(DTYPES[name]).item()


def test_a_bf16_parameter_under_torchs_sgd_stands_still_where_a_float32_one_moves() -> None:
    """The independent method is an optimizer; 0.001 is not exact in float32, hence the tolerance."""
    kept = {}
    for dtype in (torch.bfloat16, torch.float32):
        parameter = torch.nn.Parameter(torch.ones((), dtype=dtype))
        optimizer = torch.optim.SGD([parameter], lr=0.001)
        for _ in range(100):
            parameter.grad = torch.ones((), dtype=dtype)
            optimizer.step()
        kept[dtype] = parameter.item()
    schemes = answer()["weight"]["schemes"]
    assert kept[torch.bfloat16] == schemes["in_dtype"]["after"] == 1
    assert schemes["in_dtype"]["matches_reference"] is False
    assert schemes["float32_master"]["matches_reference"] is True
    assert kept[torch.float32] == pytest.approx(schemes["float32_master"]["master"], rel=1e-5)


def test_stochastic_rounding_has_the_exact_value_as_its_expectation() -> None:
    for weight, update in (("1", "-0.001"), ("-3", "0.0101"), ("100", "1/3")):
        scheme = answer(weight=weight, update=update, steps=1)["weight"]["schemes"]["stochastic"]
        low, high = Fraction(scheme["first_lower_exact"]), Fraction(scheme["first_upper_exact"])
        up = Fraction(scheme["first_upper_probability_exact"])
        mean = up * high + (1 - up) * low
        assert mean == Fraction(weight) + Fraction(update) == Fraction(scheme["expected_exact"])
        variance = up * (high - mean) ** 2 + (1 - up) * (low - mean) ** 2
        assert variance == Fraction(scheme["first_variance_exact"])
        lower = torch.tensor(float(low), dtype=torch.bfloat16)
        assert torch.nextafter(lower, torch.tensor(math.inf, dtype=torch.bfloat16)).item() == float(high)


def test_an_update_onto_a_number_of_the_format_is_certain() -> None:
    scheme = answer(weight=1, update="-0.5", steps=1)["weight"]["schemes"]["stochastic"]
    assert (scheme["first_lower"], scheme["first_upper"], scheme["first_variance"]) == (0.5, 0.5, 0)


def test_a_weight_that_leaves_float16_is_infinite_and_says_so() -> None:
    schemes = answer(weight=60_000, update=1000, steps=10, dtype="float16")["weight"]["schemes"]
    assert (schemes["in_dtype"]["after"], schemes["in_dtype"]["reason"]) == ("inf", "non_finite")
    assert (schemes["float32_master"]["master"], schemes["float32_master"]["after"]) == (70_000, "inf")


def test_all_ways_begin_at_the_number_that_the_format_holds() -> None:
    weight = answer(weight="0.1", update="0", steps=3)["weight"]
    assert weight["start"] == torch.tensor(0.1, dtype=torch.bfloat16).item() == weight["exact"]
    assert weight["schemes"]["in_dtype"]["reason"] == "zero_reference"


def test_a_million_steps_are_counted_to_the_last() -> None:
    scheme = answer(weight=0, update="1/1024", steps=10**6, dtype="float32")["weight"]["schemes"]["in_dtype"]
    assert (scheme["after"], scheme["stopped_after_steps"]) == (10**6 / 1024, None)
    stopped = answer(weight=0, update=1, steps=10**6, dtype="bfloat16")["weight"]["schemes"]["in_dtype"]
    assert (stopped["after"], stopped["stopped_after_steps"]) == (256, 256)


# --- the sum


@given(st.lists(st.integers(-4000, 4000).map(lambda n: n / 8), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_a_sum_rounded_each_time_is_torchs_in_that_dtype(gradients: list[float]) -> None:
    for name, dtype in DTYPES.items():
        narrow = torch.zeros((), dtype=dtype)
        for gradient in gradients:
            narrow = (narrow.double() + gradient).to(dtype)
        got = answer(gradients=gradients, dtype=name)["accumulation"]
        assert got["in_dtype"] == narrow.item()
        assert Fraction(got["exact_exact"]) == sum(map(Fraction, gradients))


def test_what_float32_has_kept_may_be_lost_when_it_is_stored() -> None:
    got = answer(gradients=[256, 0.5, 0.5])["accumulation"]
    assert (got["in_dtype"], got["in_float32"], got["in_float32_stored"], got["lost"]) == (256, 257, 256, 1)


# --- the scales


@given(
    st.sampled_from(list(FP8)),
    st.integers(1, 4).flatmap(
        lambda width: st.lists(
            st.lists(st.integers(1, 400).map(lambda n: n / 16), min_size=width, max_size=width), min_size=1, max_size=4
        )
    ),
    st.integers(-2, 3),
)
@settings(max_examples=80, deadline=None)
def test_scales_keep_what_torchs_cast_keeps(name: str, amax: list[list[float]], margin: int) -> None:
    given_amax = torch.tensor(amax, dtype=torch.float64)
    largest = torch.finfo(FP8[name]).max
    tops = {
        "max_over_all": given_amax.max().expand(len(amax)),
        "last_microbatch": given_amax[:, -1].max().expand(len(amax)),
        "own_maximum": given_amax.amax(1),
        "own_last_microbatch": given_amax[:, -1],
    }
    got = answer(amax=amax, fp8=name, margin=margin)["fp8"]
    assert got["largest"] == largest
    for scheme, top in tops.items():
        scale = largest / top / 2.0**margin
        stored = (given_amax * scale[:, None]).clamp(max=largest).to(FP8[name]).double() / scale[:, None]
        assert got["schemes"][scheme]["scales"] == pytest.approx(scale.tolist(), rel=1e-12)
        kept = torch.tensor(got["schemes"][scheme]["largest_kept"], dtype=torch.float64)
        off = (kept - stored).abs() > 1e-12 * stored
        ties = (given_amax * scale[:, None]) / torch.finfo(FP8[name]).eps  # a quotient that float64 rounds onto a tie
        assert not off.any() or ties[off].frac().abs().isclose(torch.tensor(0.5, dtype=torch.float64)).all()


def test_torchs_own_cast_saturates_one_of_the_formats_and_not_the_other() -> None:
    beyond = torch.tensor([1e9], dtype=torch.float64)
    assert beyond.to(torch.float8_e4m3fn).double().item() == FLOAT8["float8_e4m3fn"].largest == 448
    assert beyond.to(torch.float8_e5m2).double().item() == math.inf
    assert FLOAT8["float8_e5m2"].largest == 57344


def test_the_maximum_over_all_saturates_nothing_and_the_last_microbatch_does() -> None:
    schemes = answer(amax=[[12, 3], [5, 2]])["fp8"]["schemes"]
    assert (schemes["max_over_all"]["saturated"], schemes["max_over_all"]["matches_reference"]) == (0, True)
    assert (schemes["last_microbatch"]["saturated"], schemes["last_microbatch"]["scale_spread"]) == (2, 1)
    assert schemes["own_maximum"]["scale_spread_exact"] == "12/5"


def test_a_rank_that_has_seen_only_zeros_has_no_scale_of_its_own() -> None:
    schemes = answer(amax=[[3, "1.5"], [0, 0]])["fp8"]["schemes"]
    assert (schemes["own_maximum"]["defined"], schemes["own_maximum"]["reason"]) == (False, "zero_count")
    assert schemes["max_over_all"]["largest_kept"] == [[3, 1.5], [0, 0]]


def test_many_cells_are_kept_as_few_are() -> None:
    source = random.Random(0)
    rows = [[source.randint(1, 400) / 16 for _ in range(50)] for _ in range(100)]
    many = answer(amax=rows)["fp8"]["schemes"]["max_over_all"]
    few = answer(amax=[[25, *rows[0]]])["fp8"]["schemes"]["max_over_all"]
    assert many["largest_kept_exact"] is None
    assert max(map(max, rows)) == 25
    assert many["largest_kept"][0] == pytest.approx(few["largest_kept"][0][1:], rel=1e-12)


def test_a_blank_block_is_absent() -> None:
    got = view(weight="", gradients="", amax="")
    assert (got["weight"], got["accumulation"], got["fp8"], got["current"]) == (None, None, None, None)


REFUSED_BODIES = [
    ({"weight": "x"}, "weight"),
    ({"weight": "1e39"}, "weight"),
    ({"weight": 70_000, "dtype": "float16"}, "weight"),
    ({"update": "inf"}, "update"),
    ({"update": ""}, "update"),
    ({"update": "1e308"}, "update"),
    ({"steps": 0}, "steps"),
    ({"steps": 10**6 + 1}, "steps"),
    ({"dtype": "float64"}, "dtype"),
    ({"gradients": [1, "nan"]}, "gradients"),
    ({"gradients": ["1e308", "1e308"]}, "gradients"),
    ({"gradients": [1] * 10_001}, "gradients"),
    ({"amax": [[1, -2]]}, "amax.0.1"),
    ({"amax": [[1], [2, 3]]}, "amax.1"),
    ({"amax": []}, "amax"),
    ({"amax": [["5e-324"]]}, "amax"),
    ({"amax": [["inf"]]}, "amax.0.0"),
    ({"fp8": "float8"}, "fp8"),
    ({"margin": "1/2"}, "margin"),
]


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    ranks, steps = source.randint(1, 3), source.randint(1, 3)
    return {
        "weight": source.choice([1, -2.5, None]),
        "update": source.choice(["-0.001", "0.25", "1/3"]),
        "steps": source.randint(1, 60),
        "dtype": source.choice(list(DTYPES)),
        "gradients": source.choice([[256, 0.5, 0.5], [source.randint(-40, 40) / 4 for _ in range(6)], None]),
        "amax": source.choice([[[2 ** source.randint(-3, 4) for _ in range(steps)] for _ in range(ranks)], [[12, 5]]]),
        "fp8": source.choice(list(FP8)),
        "margin": source.randint(-1, 2),
    }


PROGRAM = Program(
    prints=["weight.schemes.in_dtype.after", "accumulation.in_dtype", "fp8.schemes.last_microbatch.largest_kept"],
    planted=("[[12, 3, 5, 2]]", "[[13, 3, 5, 2]]"),
    bodies=any_body,
)
