"""The fingerprint against faults planted in a simulated training step, and what it says where numbers cannot tell."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.kit import Answer, Asked, Body, Program, changed, quarters

asked = Asked("ratio_fingerprint")
answer, view = asked.answer, asked.view

Vector = list[float]


def norms(observed: float, ranks: int = 2, microsteps: int = 3, **more: Any) -> Body:
    """Only the norms are known; the right one is 1."""
    body = {"P": ranks, "K": microsteps, "reference": {"gradient_norm": 1}, "observed": {"gradient_norm": observed}}
    return answer(body | more)


def first(got: Body) -> tuple[str, str | None]:
    return got["causes"][0]["code"], got["causes"][0]["factor"]


# --- a training step, cell by cell, with faults in it


@dataclass(frozen=True)
class Step:
    """P ranks of K microsteps: counts, numbers of sequences, mean gradients and losses of every cell."""

    counts: list[list[int]]
    samples: list[list[int]]
    gradients: list[list[Vector]]
    losses: list[list[float]]

    @property
    def ranks(self) -> int:
        return len(self.counts)

    @property
    def microsteps(self) -> int:
        return len(self.counts[0])

    @property
    def total(self) -> int:
        return sum(map(sum, self.counts))

    def powers(self, p: float, k: float, n: float) -> float:
        return float(self.ranks**p * self.microsteps**k * self.total**n)


@dataclass(frozen=True)
class Fault:
    """A fault, or several at once: their codes, the powers of P, K and N in their factor, the cell they are about."""

    codes: frozenset[str]
    powers: tuple[float, float, float] = (0, 0, 0)
    sign: int = 1
    weighting: str = ""
    place: tuple[int, ...] = ()
    norm_powers: tuple[float, float, float] = (0, 0, 0)

    @property
    def gradient_key(self) -> tuple[Any, ...]:
        return self.powers, self.sign, self.weighting, self.place, self.norm_powers


SCALES = [
    *[(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (1, 1, 0)],
    *[(-1, -1, 0), (0, 0, 1), (0, 0, -1), (-1, 0, 1), (2, 0, 0), (-2, 0, 0)],
]
SINGLE_SCALES = [Fault(frozenset({"scale"}), powers=powers) for powers in SCALES]
SIGN = Fault(frozenset({"sign_flip"}), sign=-1)
NORMS = [
    Fault(frozenset({"local_norm"}), norm_powers=(-0.5, 0, 0)),
    Fault(frozenset({"copies_counted"}), norm_powers=(0.5, 0, 0)),
]
RIGHT = Fault(frozenset())


def weighting_faults(step: Step) -> list[Fault]:
    names = ["replica_equal", "sample_weighted", *(["microbatch_equal"] if step.microsteps > 1 else [])]
    faults = [Fault(frozenset({name}), weighting=name) for name in names]
    for r in range(step.ranks):
        faults.append(Fault(frozenset({"not_reduced"}), weighting="not_reduced", place=(r,)))
        for k in range(step.microsteps):
            if step.counts[r][k]:
                for name in ("dropped_microbatch", "duplicated_samples"):
                    faults.append(Fault(frozenset({name}), weighting=name, place=(r, k)))
    return faults


def single_faults(step: Step) -> list[Fault]:
    scales = [f for f in SINGLE_SCALES if (step.microsteps > 1 or not f.powers[1])]
    return [*scales, SIGN, *NORMS, *weighting_faults(step)]


def together(one: Fault, other: Fault) -> Fault | None:
    """Both at once; None for two of a kind (other than factors), or factors that cancel."""
    if (one.weighting and other.weighting) or one.sign == other.sign == -1:
        return None
    if any(one.norm_powers) and any(other.norm_powers):
        return None
    powers = tuple(a + b for a, b in zip(one.powers, other.powers, strict=True))
    if any(one.powers) and any(other.powers) and (not any(powers) or powers in SCALES):
        return None
    if (-2, 0, 0) in (one.powers, other.powers) and any(one.powers) and any(other.powers):  # two mistakes already
        return None
    return Fault(
        one.codes | other.codes,
        powers,  # type: ignore[arg-type]
        one.sign * other.sign,
        one.weighting or other.weighting,
        one.place or other.place,
        one.norm_powers if any(one.norm_powers) else other.norm_powers,
    )


def local_factor(step: Step, fault: Fault, r: int, k: int) -> float:
    """What rank r multiplies the mean gradient of its microstep k by, before an average over ranks."""
    n, rank_total = step.counts[r][k], sum(step.counts[r])
    right = step.ranks * n / step.total
    match fault.weighting:
        case "replica_equal":
            return n / rank_total if rank_total else 0.0
        case "microbatch_equal":
            return 1 / step.microsteps
        case "sample_weighted":
            return step.ranks * step.samples[r][k] / sum(map(sum, step.samples))
        case "dropped_microbatch":
            return 0.0 if fault.place == (r, k) else right
        case "duplicated_samples":
            return 2 * right if fault.place == (r, k) else right
        case "not_reduced":
            return n / rank_total if fault.place == (r,) and rank_total else 0.0
    return right


def accumulated(step: Step, fault: Fault) -> tuple[Vector, float]:
    """Gradient and loss of a step: a loop over ranks, a loop over microsteps, the average over ranks."""
    size = len(step.gradients[0][0])
    reduced, loss = [0.0] * size, 0.0
    for r in range(step.ranks):
        held, rank_loss = [0.0] * size, 0.0
        for k in range(step.microsteps):
            factor = local_factor(step, fault, r, k)
            held = [a + factor * g for a, g in zip(held, step.gradients[r][k], strict=True)]
            rank_loss += factor * step.losses[r][k]
        ranks = 1 if fault.weighting == "not_reduced" else step.ranks
        reduced = [total + own / ranks for total, own in zip(reduced, held, strict=True)]
        loss += rank_loss / ranks
    return reduced, loss


def close(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, list):
        size = math.sqrt(max(sum(x * x for x in one), sum(x * x for x in other)))
        return math.dist(one, other) <= tolerance * size
    return abs(one - other) <= tolerance * max(abs(one), abs(other))


@dataclass(frozen=True)
class Trial:
    """A planted fault and what of the run is shown; `logged` is the factor on the loss that the run logs."""

    step: Step
    fault: Fault
    shown: str
    logged: float

    @cached_property
    def _weighted(self) -> dict[tuple[str, tuple[int, ...]], tuple[Vector, float]]:
        return {}

    def run(self, fault: Fault) -> tuple[Vector, float, float]:
        """Gradient, norm and loss of the step with a fault in it."""
        key = fault.weighting, fault.place
        if key not in self._weighted:
            self._weighted[key] = accumulated(self.step, fault)
        reduced, loss = self._weighted[key]
        scale = self.step.powers(*fault.powers) * fault.sign
        gradient = [scale * g for g in reduced]
        return gradient, math.hypot(*gradient) * self.step.powers(*fault.norm_powers), loss

    def body(self) -> Body:
        gradient, norm, loss = self.run(RIGHT)
        seen_gradient, seen_norm, seen_loss = self.run(self.fault)
        body: Body = {"P": self.step.ranks, "K": self.step.microsteps}
        reference: Body = {"gradient_norm": norm}
        observed: Body = {"gradient_norm": seen_norm}
        if self.shown != "norms":
            body["counts"] = self.step.counts
        if self.shown == "everything":
            cells = [
                [{"gradient": g, "loss": loss} for g, loss in zip(*row, strict=True)]
                for row in zip(self.step.gradients, self.step.losses, strict=True)
            ]
            body["samples"] = self.step.samples
            reference |= {"gradient": gradient, "loss": loss, "per_cell": cells}
            observed |= {"gradient": seen_gradient, "loss": seen_loss * self.logged}
        return body | {"reference": reference, "observed": observed}

    def seen(self, fault: Fault) -> list[Any]:
        gradient, norm, _ = self.run(fault)
        return [gradient, norm] if self.shown == "everything" else [norm]

    def possible(self) -> Iterator[Fault]:
        """The faults that the shown numbers say anything about."""
        faults = single_faults(self.step)
        if self.shown != "everything":
            faults = [f for f in faults if not f.weighting and (self.shown == "norms_and_counts" or not f.powers[2])]
            faults = [f for f in faults if f.sign == 1]
        yield RIGHT
        yield from faults
        simple = [f for f in faults if not f.weighting]
        for one, other in [*combinations(simple, 2), *product([f for f in faults if f.weighting], simple)]:
            both = together(one, other)
            if both is not None and not (both.weighting == "not_reduced" and both.powers[0]):
                yield both

    def rivals(self) -> list[Fault]:
        """Other faults that would show the same numbers."""
        seen = self.seen(self.fault)
        found = []
        for fault in self.possible():
            alike = all(close(a, b, 1e-6) for a, b in zip(self.seen(fault), seen, strict=True))
            if alike and fault.gradient_key != self.fault.gradient_key:
                found.append(fault)
        return found

    def predictable(self) -> bool:
        return any(fault.gradient_key == self.fault.gradient_key for fault in self.possible())

    def named_by(self, cause: Body) -> bool:
        """Whether a cause of an answer is the planted fault, by its codes, its place and the value of its factor."""
        place = cause["place"] if self.fault.place else []
        if set(cause["codes"]) != self.fault.codes or place != list(self.fault.place):
            return False
        names = {"P": self.step.ranks, "K": self.step.microsteps, "N": self.step.total, "sqrt": math.sqrt}
        written = eval(cause["factor"].replace("^", "**"), {}, names) if cause["factor"] else 1.0
        powers = (a + b for a, b in zip(self.fault.powers, self.fault.norm_powers, strict=True))
        return close(written, self.step.powers(*powers) * self.fault.sign, 1e-9)


def planted(chance: random.Random) -> Trial:
    """One or two faults at random, in a window of random shape and counts, of which random numbers are shown."""
    ranks, microsteps = chance.randint(2, 5), chance.randint(1, 4)
    even = chance.random() < 0.15
    shape = [[None] * microsteps for _ in range(ranks)]
    counts = [[7 if even else chance.choice([0, *range(1, 60)]) for _ in row] for row in shape]
    for row in counts:
        row[0] = row[0] or 1
    step = Step(
        counts,
        [[chance.randint(1, 9) for _ in row] for row in shape],
        [[[chance.gauss(0.5, 1) for _ in range(3)] for _ in row] for row in shape],
        [[chance.uniform(0.5, 4) for _ in row] for row in shape],
    )
    shown = chance.choice(["norms", "norms_and_counts", "everything", "everything"])
    faults = [f for f in single_faults(step) if shown == "everything" or f.sign == 1]  # a norm has no sign
    fault = chance.choice([f for f in faults if not f.weighting] if chance.random() < 0.5 else faults)
    if chance.random() < 0.5:
        pairs = [both for other in faults if other is not fault and (both := together(fault, other)) is not None]
        fault = chance.choice(pairs)
    logged = chance.choice([1.0, step.powers(*fault.powers)])
    return Trial(step, fault, shown, logged)


def test_planted_faults_are_named_where_they_can_be_and_doubted_where_they_cannot() -> None:
    chance = random.Random(20_260_704)
    named = identifiable = doubted = confusable = admitted = unpredicted = 0
    for _ in range(400):
        trial = planted(chance)
        got = answer(trial.body())
        if not trial.predictable():  # what is shown says nothing about this fault
            unpredicted += 1
            admitted += got["cannot_tell"]
        elif trial.rivals():
            confusable += 1
            doubted += got["cannot_tell"]
        else:
            identifiable += 1
            named += bool(got["causes"]) and trial.named_by(got["causes"][0])
    assert identifiable >= 160
    assert named >= 0.95 * identifiable
    assert confusable >= 40
    assert doubted == confusable
    assert admitted >= 0.95 * unpredicted


def test_single_factors_are_named_through_noise_of_a_bfloat16_run() -> None:
    chance = random.Random(11)
    named = 0
    for _ in range(300):
        powers = chance.choice(SCALES[:6])
        ranks, microsteps = chance.choice([(2, 3), (3, 4), (4, 3), (2, 7), (8, 3)])
        observed = ranks ** powers[0] * microsteps ** powers[1] * (1 + chance.gauss(0, 0.003))
        got = norms(float(f"{observed:.3g}"), ranks, microsteps)
        written = eval(got["causes"][0]["factor"] or "0", {}, {"P": ranks, "K": microsteps})
        named += written == ranks ** powers[0] * microsteps ** powers[1]
    assert named >= 285


# --- the ratios of the usual mistakes


@pytest.mark.parametrize(
    ("observed", "factor", "step"),
    [
        (2, "P", "reduction_sums"),
        (0.5, "1/P", "reduction_averages"),
        (3, "K", "accumulation_sums"),
        ("1/3", "1/K", "divided_twice"),
        (6, "P*K", "both_sum"),
        ("1/6", "1/(P*K)", "both_divide"),
        (4, "P^2", "scaled_by_ranks_twice"),
        ("2/3", "P/K", "two_factors"),
    ],
)
def test_each_factor_has_its_own_ratio_at_coprime_p_and_k(observed: Any, factor: str, step: str) -> None:
    got = norms(observed)
    assert first(got) == ("scale", factor)
    assert got["cannot_tell"] is False
    assert got["ask"] is None
    assert got["causes"][0]["next"] == step
    assert got["agreed_factor"] == factor


@pytest.mark.parametrize(("observed", "factor"), [(19, "N"), ("1/19", "1/N"), (9.5, "N/P")])
def test_factors_of_the_count_need_the_counts(observed: Any, factor: str) -> None:
    assert first(norms(observed, counts=[[2, 3, 5], [1, 7, 1]])) == ("scale", factor)
    blind = norms(observed)
    assert blind["causes"][0]["code"] in ("unknown", "local_norm")  # below 1 also some shard's norm
    assert blind["cannot_tell"] is True


def test_equal_p_and_k_are_said_to_be_indistinguishable_and_a_coprime_pair_is_named() -> None:
    got = norms(3, ranks=3, microsteps=3)
    assert got["cannot_tell"] is True
    assert {cause["factor"] for cause in got["causes"] if cause["tied"]} == {"P", "K", "P^2/K"}
    assert got["agreed_factor"] is None
    assert (got["ask"]["P"], got["ask"]["K"]) == (2, 3)
    parted = [norms(factor, got["ask"]["P"], got["ask"]["K"]) for factor in (got["ask"]["P"], got["ask"]["K"])]
    assert [first(one) for one in parted] == [("scale", "P"), ("scale", "K")]


def test_equal_counts_leave_the_weighting_open_and_the_factor_not() -> None:
    got = norms(3, counts=[[4, 4, 4], [4, 4, 4]])
    assert got["cannot_tell"] is True
    assert got["agreed_factor"] == "K"
    assert got["ask"]["counts"] == "unequal"
    assert {cause["code"] for cause in got["causes"] if cause["tied"]} == {"scale", "replica_equal", "microbatch_equal"}
    assert norms(3, counts=[[4, 4, 5], [4, 4, 4]])["cannot_tell"] is False


def test_an_equal_loss_proves_nothing() -> None:
    got = answer({"P": 2, "K": 3, "reference": {"loss": 2.07}, "observed": {"loss": 2.07}})
    assert (got["same"], got["cannot_tell"], got["ask"]["number"]) == (True, True, "gradient")


def test_equal_gradients_are_the_same_update_unless_counts_hide_a_fault() -> None:
    body = {"P": 2, "K": 1, "reference": {"gradient": [1, 2]}, "observed": {"gradient": [1, 2]}}
    assert (answer(body)["same"], answer(body)["cannot_tell"]) == (True, False)
    even = answer(body | {"counts": [[5], [5]]})
    assert (even["same"], even["cannot_tell"], first(even)) == (True, True, ("replica_equal", None))
    assert answer(body | {"counts": [[5], [6]]})["cannot_tell"] is False


def test_a_loss_that_is_logged_with_a_factor_is_not_taken_for_a_wrong_gradient() -> None:
    body = {"P": 2, "K": 3, "reference": {"loss": 2, "gradient": [1, 3]}, "observed": {"loss": 6, "gradient": [1, 3]}}
    cause = answer(body)["causes"][0]
    assert (cause["code"], cause["factor"], cause["on"], cause["next"]) == ("scale", "K", "loss", "logged_loss")
    both = answer(body | {"observed": {"loss": 6, "gradient": [2, 6]}})["causes"][0]
    assert (both["factor"], both["on"]) == ("P", "gradient")


def test_a_turned_sign_shows_in_entries_and_not_in_a_norm() -> None:
    body = {"P": 2, "K": 3, "reference": {"gradient": [1, -2]}, "observed": {"gradient": [-2, 4]}}
    got = answer(body)
    assert (got["ratio"], got["residual"]) == (-2, 0)
    assert got["causes"][0]["codes"] == ["sign_flip", "scale"]
    assert got["causes"][0]["factor"] == "-P"
    hidden = norms(1)
    assert (hidden["same"], hidden["cannot_tell"], hidden["ask"]["number"]) == (True, True, "gradient")


def test_the_ledgers_flipped_gradient_is_replicas_weighted_equally() -> None:
    parts = [{"gradient": -2, "loss": 2}, {"gradient": 1, "loss": 0.5}]
    body = {"P": 2, "K": 1, "counts": [[2], [8]], "reference": {"per_rank": parts}, "observed": {"gradient": -0.5}}
    got = answer(body | {"reference": {"per_rank": parts, "loss": 0.8}, "observed": {"gradient": -0.5, "loss": 1.25}})
    assert got["ratio"] == pytest.approx(-1.25, rel=1e-12)
    assert first(got) == ("replica_equal", None)
    assert got["consistent"] is True
    assert got["causes"][0]["predicted"] == pytest.approx(-1.25, rel=1e-12)
    assert got["causes"][0]["predicted_loss"] == 1.25
    assert answer(body)["ratio"] == got["ratio"]


def test_a_reference_that_the_ranks_do_not_add_up_to_is_said() -> None:
    parts = [{"gradient": -2}, {"gradient": 1}]
    body = {"P": 2, "K": 1, "counts": [[2], [8]], "observed": {"gradient": 1}}
    assert answer(body | {"reference": {"gradient": 0.4, "per_rank": parts}})["consistent"] is True
    assert answer(body | {"reference": {"gradient": 0.5, "per_rank": parts}})["consistent"] is False
    assert answer(body | {"reference": {"gradient": 0.5}})["consistent"] is None


# --- norms


def test_a_norm_of_equal_shards_and_of_copies_are_told_from_scales_by_the_gradient() -> None:
    seen = {"gradient": [3, 4], "gradient_norm": 5}
    body = {"P": 4, "K": 3, "reference": seen}
    local = answer(body | {"observed": {"gradient": [3, 4], "gradient_norm": 2.5}})
    assert first(local) == ("local_norm", "1/sqrt(P)")
    assert local["cannot_tell"] is False
    copies = answer(body | {"observed": {"gradient": [3, 4], "gradient_norm": 10}})
    assert first(copies) == ("copies_counted", "sqrt(P)")
    scaled = answer(body | {"observed": {"gradient": [6, 8], "gradient_norm": 10}})
    assert scaled["causes"][0]["codes"] != ["copies_counted"]
    blind = norms(0.5, ranks=4, microsteps=2)
    assert blind["cannot_tell"] is True
    assert blind["ask"]["number"] == "gradient"
    assert {cause["factor"] for cause in blind["causes"] if cause["tied"]} >= {"1/K", "1/sqrt(P)"}


def test_a_rank_that_clips_by_its_own_shard_is_found_by_that_shards_norm() -> None:
    body = {"P": 2, "K": 1, "reference": {"gradient": [3, 4], "gradient_norm": 5}}
    for rank, norm in enumerate([3, 4]):
        got = answer(body | {"observed": {"gradient": [3, 4], "gradient_norm": norm}})
        assert (got["causes"][0]["code"], got["causes"][0]["place"]) == ("local_norm", [rank])


def test_the_sources_square_root_of_313_is_a_replicated_part_counted_twice() -> None:
    reference = {"gradient_norm": 13, "replicated_norm": 12}
    body = {"P": 2, "K": 3, "reference": reference, "observed": {"gradient_norm": math.sqrt(313)}}
    got = answer(body)
    assert first(got) == ("copies_counted", "sqrt(1+(P-1)*s)")
    unknown = answer(body | {"reference": {"gradient_norm": 13}})
    assert unknown["causes"][0]["code"] == "copies_counted"
    assert unknown["causes"][0]["share"] == pytest.approx(144 / 169, rel=1e-9)
    assert (unknown["cannot_tell"], unknown["ask"]["number"]) == (True, "replicated_norm")


# --- gradients across ranks


def test_entries_that_keep_their_owners_part_alone_are_a_missing_remote_gradient() -> None:
    parts = [{"gradient": [-0.119, 1.9640]}, {"gradient": [3.8, -1.25]}]
    body = {"P": 2, "K": 1, "counts": [[1], [1]], "reference": {"per_rank": parts}}
    got = answer(body | {"observed": {"gradient": [-0.0595, -0.625]}})
    assert got["causes"][0]["codes"] == ["detached_remote"]
    assert got["causes"][0]["form"] == "owner"


def test_some_right_entries_beside_wrong_ones_point_to_a_missing_remote_gradient() -> None:
    body = {"P": 2, "K": 1, "reference": {"gradient": [1, 2, 3]}, "observed": {"gradient": [1, 2, 0.7]}}
    got = answer(body)
    assert first(got) == ("detached_remote", None)
    assert got["causes"][0]["share"] == pytest.approx(2 / 3)
    assert (got["cannot_tell"], got["ask"]["number"]) == (True, "per_rank")


def test_one_over_p_names_the_reduction_first_and_the_gather_beside_it() -> None:
    codes = [(cause["code"], cause["factor"]) for cause in norms(0.5)["causes"][:2]]
    assert codes == [("scale", "1/P"), ("detached_remote", "1/P")]


# --- refusals and limits


REFUSED_BODIES = changed(
    {"P": 2, "K": 3, "reference": {"gradient_norm": 1}, "observed": {"gradient_norm": 3}},
    [
        ({"observed": {}}, "observed"),
        ({"observed": {"loss": 1}}, "reference.loss"),
        ({"observed": {"gradient": [1]}}, "reference.gradient"),
        ({"observed": {"gradient_norm": -1}}, "observed.gradient_norm"),
        ({"observed": {"gradient_norm": "nan"}}, "observed.gradient_norm"),
        ({"P": 0}, "P"),
        ({"P": 4097}, "P"),
        ({"K": "2.5"}, "K"),
        ({"K": True}, "K"),
        ({"counts": [[1, 2, 3]]}, "counts"),
        ({"counts": [[1, 2], [3, 4]]}, "counts"),
        ({"counts": [[1, 2, -3], [1, 1, 1]]}, "counts.0.2"),
        ({"counts": [[1, 2, 3], [1, 1, 1]], "samples": [[1], [1]]}, "samples"),
        ({"samples": [[1, 2, 3], [1, 1, 1]]}, "samples"),
        ({"reference": {"gradient_norm": 1, "replicated_norm": 2}}, "reference.replicated_norm"),
        ({"reference": {"gradient_norm": 1, "per_rank": [{"loss": 1}]}}, "reference.per_rank"),
        ({"reference": {"gradient_norm": 1, "per_cell": [[{"loss": 1}]]}}, "reference.per_cell"),
        (
            {"reference": {"gradient_norm": 1, "per_rank": [{"gradient": [1]}, {"gradient": [1, 2]}]}},
            "reference.per_rank.1.gradient",
        ),
        (
            {"reference": {"gradient_norm": 1, "per_rank": [{"gradient": 1}, {}]}},
            "reference.per_rank.1.gradient",
        ),
        ({"ratio": 3}, "ratio"),
    ],
)


REFUSED_FIELDS = {
    "reference_norm": [""],
    "reference_loss": [""],
    "reference_gradient": [{"observed_gradient": "1,2"}],
    "observed_gradient": [{"observed_gradient": "1,2", "reference_gradient": "1"}],
    "counts": ["1,2"],
    "part_gradients": ["1;2;3"],
    "part_losses": ["1,2,3"],
    "replicated_norm": ["5"],
    "observed_norm": [{"observed_norm": "", "observed_loss": ""}],
}


def test_a_reference_of_zero_has_no_ratio() -> None:
    got = answer({"P": 2, "K": 3, "reference": {"gradient": [0, 0]}, "observed": {"gradient": [1, 0]}})
    assert (got["defined"], got["ratio"], got["reason"], got["causes"]) == (False, None, "zero_reference", [])
    assert got["cannot_tell"] is True


def test_the_default_state_carries_the_lesson() -> None:
    got = view()
    assert (got["ratio"], got["ratios"]["loss"]) == (3, 1)
    assert first(got) == ("scale", "K")
    assert got["cannot_tell"] is False


def test_the_panels_rows_are_ranks_or_cells() -> None:
    fields = {"P": "2", "K": "2", "counts": "1,3;2,5", "observed_norm": "", "reference_norm": ""}
    by_cell = view(**fields, part_gradients="1,0;-2,1;3,1;0.5,2", observed_gradient="0.625,1")
    assert first(by_cell) == ("microbatch_equal", None)
    totals = view(**fields | {"counts": "4;7"}, part_gradients="1,0;-2,1", observed_gradient="-0.5,0.5")
    assert first(totals) == ("replica_equal", None)


def test_the_largest_window_is_answered() -> None:
    got = norms(3, ranks=4096, microsteps=3)
    assert first(got) == ("scale", "K")
    gradients = [[r % 7 - 3, 1 + r % 5] for r in range(64)]
    wide = answer(
        {
            "P": 64,
            "K": 32,
            "counts": [[r + k + 1 for k in range(32)] for r in range(64)],
            "reference": {"per_rank": [{"gradient": gradient} for gradient in gradients]},
            "observed": {"gradient": [sum(column) / 64 for column in zip(*gradients, strict=True)]},
        }
    )
    assert wide["causes"][0]["code"] == "replica_equal"


def test_the_csv_tables_have_a_full_header() -> None:
    for table in asked.panel().tables():
        assert all(len(row) == len(table.header) for row in table.rows)


# --- properties

SIZES = st.floats(1e-6, 1e6) | st.just(0.0)
ENTRIES = SIZES | SIZES.map(lambda size: -size)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_numbers_get_an_answer_whose_fits_add_up_to_at_most_one(data: st.DataObject) -> None:
    ranks, microsteps, size = (data.draw(st.integers(1, n)) for n in (4, 3, 3))
    vector = st.lists(ENTRIES, min_size=size, max_size=size)
    cells = st.lists(
        st.lists(st.integers(0, 9), min_size=microsteps, max_size=microsteps), min_size=ranks, max_size=ranks
    )
    parts = st.lists(st.fixed_dictionaries({"gradient": vector, "loss": SIZES}), min_size=ranks, max_size=ranks)
    reference = data.draw(st.fixed_dictionaries({"loss": SIZES, "gradient_norm": SIZES, "gradient": vector}))
    observed = data.draw(st.fixed_dictionaries({"loss": SIZES, "gradient_norm": SIZES, "gradient": vector}))
    body: Body = {"P": ranks, "K": microsteps, "reference": reference, "observed": observed}
    if data.draw(st.booleans()):
        body["counts"] = data.draw(cells)
    if data.draw(st.booleans()):
        body["reference"] = reference | {"per_rank": data.draw(parts)}
    got = answer(body)
    assert got["defined"] or got["reason"] == "zero_reference"
    assert sum(cause["fit"] for cause in got["causes"]) <= 1 + 1e-9
    assert (got["ask"] is None) is (got["cannot_tell"] is False)
    if got["defined"] and not got["same"]:
        assert got["causes"]


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-3, 1e3), st.floats(0.01, 100), st.integers(2, 9), st.integers(1, 9))
def test_the_unit_of_the_gradient_does_not_matter(unit: float, ratio: float, ranks: int, microsteps: int) -> None:
    unit = 2.0 ** round(math.log2(unit))  # scales float64 without rounding
    plain = norms(ratio, ranks, microsteps)
    seen = {"reference": {"gradient_norm": unit}, "observed": {"gradient_norm": unit * ratio}}
    scaled = answer({"P": ranks, "K": microsteps} | seen)
    assert (plain["ratio"], plain["same"]) == (scaled["ratio"], scaled["same"])
    names = [[(cause["codes"], cause["factor"]) for cause in got["causes"]] for got in (plain, scaled)]
    assert names[0] == names[1]


# --- several cells, gradients rescaled on the way, and the weights themselves


def window(chance: random.Random, ranks: int, microsteps: int, entries: int) -> Body:
    """Counts, gradients of all cells, and the right gradient; what was observed is missing."""
    counts = [[chance.randint(1, 30) for _ in range(microsteps)] for _ in range(ranks)]
    cells = [[[chance.gauss(0, 1) for _ in range(entries)] for _ in row] for row in counts]
    total = sum(map(sum, counts))
    right = [[n / total for n in row] for row in counts]
    per_cell = [[{"gradient": g} for g in row] for row in cells]
    reference = {"gradient": weighted(right, cells), "per_cell": per_cell}
    return {"P": ranks, "K": microsteps, "counts": counts, "reference": reference, "cells": cells, "right": right}


def weighted(weights: list[list[float]], cells: list[list[Vector]]) -> Vector:
    """Σ w_rk·g_rk, added up cell by cell."""
    total = [0.0] * len(cells[0][0])
    for row, gradients in zip(weights, cells, strict=True):
        for weight, gradient in zip(row, gradients, strict=True):
            total = [a + weight * g for a, g in zip(total, gradient, strict=True)]
    return total


def observed_with(given: Body, weights: list[list[float]], norm: bool = False) -> Answer:
    gradient = weighted(weights, given["cells"])
    body = {name: given[name] for name in ("P", "K", "counts")}
    if not norm:
        return answer(body, reference=given["reference"], observed={"gradient": gradient})
    reference = given["reference"] | {"gradient_norm": math.hypot(*given["reference"]["gradient"])}
    return answer(body, reference=reference, observed={"gradient_norm": math.hypot(*gradient)})


def without(given: Body, lost: set[tuple[int, int]], of_rest: bool) -> list[list[float]]:
    kept = [[0.0 if (r, k) in lost else w for k, w in enumerate(row)] for r, row in enumerate(given["right"])]
    share = sum(map(sum, kept)) if of_rest else 1.0
    return [[w / share for w in row] for row in kept]


@pytest.mark.parametrize("of_rest", [False, True])
@pytest.mark.parametrize("shape", [(1, 4), (2, 3), (3, 4), (12, 1)])
def test_any_cells_that_never_entered_are_all_named(shape: tuple[int, int], of_rest: bool) -> None:
    chance = random.Random(str(shape))
    cells = list(product(range(shape[0]), range(shape[1])))
    for _ in range(8):
        given = window(chance, *shape, entries=3)
        lost = set(chance.sample(cells, chance.randint(2, len(cells) - 1)))
        one_rank = {r for r, _ in set(cells) - lost}
        got = observed_with(given, without(given, lost, of_rest))
        cause = got["causes"][0]
        if of_rest and len(one_rank) == 1 and not lost & {(min(one_rank), k) for k in range(shape[1])}:
            assert (cause["code"], cause["place"]) == ("not_reduced", [min(one_rank)])
            continue
        form = "over_rest" if of_rest else "over_N"
        assert (cause["code"], cause["form"], got["cannot_tell"]) == ("dropped_microbatch", form, False)
        assert {tuple(place) for place in cause["places"]} == lost
        assert cause["place"] == []


@pytest.mark.parametrize(
    "lost",
    [
        lambda r, k: k < 4,
        lambda r, k: k >= 2,
        lambda r, k: r == 2,
        lambda r, k: k == 3,
        lambda r, k: r == 1 and k > 1,
        lambda r, k: (r, k) < (2, 3),
    ],
    ids=["first microsteps", "last microsteps", "a rank", "a microstep", "the end of a rank", "the first cells"],
)
def test_in_larger_windows_what_loops_and_failures_lose_is_named(lost: Callable[[int, int], bool]) -> None:
    given = window(random.Random(3), 4, 5, entries=3)
    missing = {(r, k) for r in range(4) for k in range(5) if lost(r, k)}
    got = observed_with(given, without(given, missing, of_rest=False))
    assert {tuple(place) for place in got["causes"][0]["places"]} == missing
    assert got["cannot_tell"] is False


def test_one_missing_cell_has_a_place_and_the_same_in_its_places() -> None:
    given = window(random.Random(5), 2, 3, entries=3)
    cause = observed_with(given, without(given, {(1, 2)}, of_rest=False))["causes"][0]
    assert (cause["code"], cause["place"], cause["places"]) == ("dropped_microbatch", [1, 2], [[1, 2]])


def test_missing_cells_show_in_the_norm_too_if_the_entries_are_all_there_are() -> None:
    given = window(random.Random(8), 2, 3, entries=4)
    got = observed_with(given, without(given, {(0, 0), (1, 0)}, of_rest=False), norm=True)
    assert got["causes"][0]["places"] == [[0, 0], [1, 0]]


def test_sets_of_cells_that_show_the_same_cannot_be_told_apart() -> None:
    given = window(random.Random(2), 1, 4, entries=3)
    given["counts"] = [[5, 5, 5, 5]]
    given["right"] = [[0.25] * 4]
    given["cells"][0][1] = given["cells"][0][0]
    given["reference"] = {
        "gradient": weighted(given["right"], given["cells"]),
        "per_cell": [[{"gradient": g} for g in given["cells"][0]]],
    }
    got = observed_with(given, without(given, {(0, 0), (0, 3)}, of_rest=False))
    assert got["cannot_tell"] is True
    tied = [cause["places"] for cause in got["causes"] if cause["tied"]]
    assert sorted(tied) == [[[0, 0], [0, 3]], [[0, 1], [0, 3]]]


@pytest.mark.parametrize("base", [2, 3, 7, 8, 100, 0.5, 1.7])
@pytest.mark.parametrize("shape", [(1, 3), (2, 4), (3, 2), (2, 9)])
def test_a_gradient_divided_after_every_microstep_is_named_with_its_base(shape: tuple[int, int], base: float) -> None:
    given = window(random.Random(f"{shape}{base}"), *shape, entries=4)
    last = shape[1] - 1
    weights = [[w / base ** (last - k) for k, w in enumerate(row)] for row in given["right"]]
    got = observed_with(given, weights)
    cause = got["causes"][0]
    assert (cause["code"], got["cannot_tell"]) == ("rescaled_accumulation", False)
    assert cause["base"] == pytest.approx(base, rel=1e-6)
    assert cause["next"] == "rescaled_gradient"


def test_the_weights_of_the_cells_are_solved_for_where_their_gradients_determine_them() -> None:
    chance = random.Random(4)
    for ranks, microsteps in [(1, 3), (2, 2), (3, 2)]:
        weights = [
            [Fraction(chance.randint(-9, 9), chance.choice([7, 48, 640])) for _ in range(microsteps)]
            for _ in range(ranks)
        ]
        given = window(chance, ranks, microsteps, entries=ranks * microsteps + 1)
        got = observed_with(given, [[float(w) for w in row] for row in weights])
        for found, row in zip(got["effective_weights"], weights, strict=True):
            assert found == pytest.approx([float(w) for w in row], abs=1e-9)
        assert got["effective_weights_exact"] == [[str(w) for w in row] for row in weights]


def test_weights_that_nothing_determines_or_that_explain_nothing_are_not_given() -> None:
    given = window(random.Random(9), 2, 2, entries=3)
    assert observed_with(given, given["right"])["effective_weights"] is None
    given = window(random.Random(9), 2, 2, entries=4)
    given["cells"][1][1] = given["cells"][0][0]
    given["reference"]["per_cell"][1][1] = {"gradient": given["cells"][0][0]}
    given["reference"]["gradient"] = weighted(given["right"], given["cells"])
    assert observed_with(given, given["right"])["effective_weights"] is None
    given = window(random.Random(9), 1, 2, entries=3)
    body = {name: given[name] for name in ("P", "K", "counts", "reference")}
    assert answer(body, observed={"gradient": [1, 2, 3]})["effective_weights"] is None
    solved = observed_with(given, [[math.pi / 10, math.e / 10]])
    assert solved["effective_weights"] == [pytest.approx([math.pi / 10, math.e / 10])]
    assert solved["effective_weights_exact"] is None


def test_a_cell_without_a_count_weighs_nothing() -> None:
    given = window(random.Random(6), 1, 3, entries=2)
    given["counts"], given["right"] = [[4, 0, 4]], [[0.5, 0.0, 0.5]]
    given["reference"]["gradient"] = weighted(given["right"], given["cells"])
    assert observed_with(given, given["right"])["effective_weights_exact"] == [["1/2", "0", "1/2"]]


def test_a_division_by_p_twice_too_often_has_a_factor_of_its_own() -> None:
    assert first(norms("1/9", ranks=3, microsteps=2)) == ("scale", "1/P^2")
    assert norms("1/9", ranks=3, microsteps=2)["causes"][0]["next"] == "divided_by_ranks_twice"


def test_counts_are_asked_for_where_they_would_tell_and_tell() -> None:
    got = norms(16384)
    assert got["ask"]["number"] == "counts"
    assert first(norms(16384, counts=[[4096, 2048, 2048], [4096, 2048, 2048]])) == ("scale", "N")
    assert norms(0.57)["ask"]["number"] != "counts"
    given = window(random.Random(12), 2, 3, entries=3)
    lost = without(given, {(0, 1), (1, 1)}, of_rest=True)
    assert observed_with(given | {"counts": None}, lost)["ask"]["number"] == "counts"
    assert observed_with(given, lost)["causes"][0]["places"] == [[0, 1], [1, 1]]


# --- the panel in words

SHOWN = [
    "",
    "P=3",
    "observed_norm=0.42",
    "observed_norm=0.42&observed_loss=6.21",
    "observed_norm=9",
    "observed_norm=0.5",
    "observed_norm=&reference_norm=",
    "counts=4,4,4;4,4,4",
    "reference_gradient=1,-2&observed_gradient=-2,4&observed_norm=&reference_norm=",
    "reference_gradient=0,0&observed_gradient=1,0&observed_norm=&reference_norm=&reference_loss=&observed_loss=",
    "P=2&K=1&counts=2;8&part_gradients=-2;1&observed_gradient=-0.5&observed_norm=&reference_norm=",
    "observed_norm=0",
    "P=1&K=1",
    "K=x",
    "P=1&K=3&counts=4,4,4&part_gradients=1,2;2,-1;4,0&observed_gradient=4/3,0&observed_norm=&reference_norm=",
    "P=1&K=2&counts=4,4&part_gradients=1,2;2,-1&observed_gradient=9/8,0&observed_norm=&reference_norm=",
    "observed_norm=6881.28",
]


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    ranks, microsteps = source.randint(1, 3), source.randint(1, 3)
    counts = [[source.randint(1, 9) for _ in range(microsteps)] for _ in range(ranks)]
    gradient = source.choice(["given", "per_rank", "per_cell"])
    reference: Body = {"gradient_norm": "1.5"}
    if gradient == "given":
        reference |= {"gradient": [1, -2, "0.5"], "loss": 2}
    if gradient == "per_rank":
        reference["per_rank"] = [{"gradient": [1 + r, -2, r], "loss": 1 + r} for r in range(ranks)]
    if gradient == "per_cell":
        reference["per_cell"] = [
            [{"gradient": [1 + r, k, 3], "loss": 1} for k in range(microsteps)] for r in range(ranks)
        ]
    observed = {"gradient": quarters(source, 3), "gradient_norm": "0.75", "loss": "2.5"}
    return {"P": ranks, "K": microsteps, "counts": counts, "reference": reference, "observed": observed}


PROGRAM = Program(
    prints=["ratio", "ratios.loss", "scale.0.value"],
    planted=("1.26", "1.27"),
    bodies=any_body,
)
