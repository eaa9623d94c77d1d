"""The clocks against a run walked microbatch by microbatch, torch's own schedulers, and exact fractions."""

import copy
import math
import random
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

from tests.kit import Answer, Asked, Body, Program

asked = Asked("schedule_clock")
answer, view = asked.answer, asked.view


# --- an independent run, microbatch by microbatch


def walked(body: Body) -> dict[str, list[Fraction]]:
    """What every clock shows before the run and after each attempt; the last entry is the run's end."""
    processes, window, batches = body["P"], body["K"], body["batches"]
    names = ("update", "attempt", "microbatch", "update_P", "microbatch_P", "epoch", "token")
    now = dict.fromkeys(names, Fraction(0))
    shown: dict[str, list[Fraction]] = {name: [Fraction(0)] for name in names}
    waiting = attempts = 0
    for _ in range(body["epochs"]):
        for batch in range(batches):
            waiting += 1
            now["microbatch"] += 1
            now["microbatch_P"] += processes
            now["token"] += Fraction(1, window)
            last = batch == batches - 1
            now["epoch"] += last
            if waiting == window or (last and body["tail"] == "update"):
                waiting = 0
                attempts += 1
                now["attempt"] += 1
                if attempts not in body["skipped"]:
                    now["update"] += 1
                    now["update_P"] += processes
                for name in names:
                    shown[name].append(now[name])
        if body["tail"] == "drop":
            waiting = 0
    for name in ("microbatch", "microbatch_P"):
        shown[name].append(now[name])
    for name in set(names) - {"microbatch", "microbatch_P"}:
        shown[name].append(shown[name][-1])
    return shown


WALKED = {
    "per_update": "update",
    "per_attempt": "attempt",
    "per_microbatch": "microbatch",
    "per_update_times_processes": "update_P",
    "per_microbatch_times_processes": "microbatch_P",
    "per_epoch": "epoch",
    "per_token": "token",
}


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    tail = draw(st.sampled_from(["update", "drop", "carry"]))
    batches, window, epochs = draw(st.integers(1, 13)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    if tail != "update":
        batches = max(batches, window)
    per_epoch = -(-batches // window) if tail == "update" else batches // window
    attempts = batches * epochs // window if tail == "carry" else per_epoch * epochs
    warmup = draw(st.integers(0, 12))
    return {
        "P": draw(st.integers(1, 5)),
        "K": window,
        "batches": batches,
        "epochs": epochs,
        "tail": tail,
        "warmup": warmup,
        "total": warmup + draw(st.integers(0, 30)),
        "shape": draw(st.sampled_from(["linear", "cosine", "constant"])),
        "beyond": draw(st.sampled_from(["formula", "hold"])),
        "min_ratio": draw(st.sampled_from(["0", "0.1", "1/3"])),
        "base_lr": draw(st.sampled_from(["1", "0.003"])),
        "update": draw(st.integers(1, attempts)),
        "skipped": draw(st.lists(st.integers(1, attempts), unique=True)),
    }


@given(bodies())
@settings(max_examples=150, deadline=None)
def test_every_clock_shows_what_a_walk_through_the_run_counts(body: Body) -> None:
    got, shown = answer(body), walked(body)
    u = body["update"]
    assert got["attempts"] == len(shown["update"]) - 2
    assert got["updates"] == shown["update"][-1]
    assert got["microsteps"] == shown["microbatch"][-1]
    for name, inner in WALKED.items():
        clock, counts = got["schemes"][name], shown[inner][:-1]
        assert Fraction(clock["steps_exact"]) == counts[u]
        assert clock["final_steps"] == float(shown[inner][-1])
        for end, first, required in (
            (body["warmup"], clock["warmup_ends_at"], clock["required_warmup"]),
            (body["total"], clock["decay_ends_at"], clock["required_total"]),
        ):
            assert first == next((a for a, count in enumerate(counts) if count >= end), None)
            at = next((a for a, updates in enumerate(shown["update"][:-1]) if updates >= end), None)
            assert required == (None if at is None else float(counts[at]))
        missing = None in (clock["warmup_ends_at"], clock["decay_ends_at"], clock["required_total"])
        assert (clock["reason"] == "not_reached") == (missing or clock["required_warmup"] is None)


def factor_by_hand(body: Body, x: float) -> float:
    if x < body["warmup"]:
        return x / body["warmup"]
    length = max(1, body["total"] - body["warmup"])
    progress = (x - body["warmup"]) / length
    if body["shape"] == "cosine":
        height = (1 + math.cos(math.pi * (min(1, progress) if body["beyond"] == "hold" else progress))) / 2
    else:
        height = 1.0 if body["shape"] == "constant" else max(0, (body["total"] - x) / length)
    floor = float(Fraction(body["min_ratio"]))
    return floor + (1 - floor) * height


def stepped(schedule: LambdaLR, counts: list[Fraction]) -> list[float]:
    """The rates of a torch scheduler that is stepped until it has each of these counts."""
    rates, at = [], Fraction(0)
    schedule.optimizer.step()
    for count in counts:
        while at < count:
            schedule.step()
            at += 1
        rates.append(schedule.get_last_lr()[0])
    return rates


def optimizer(lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=lr)


@given(bodies())
@settings(max_examples=60, deadline=None)
def test_rates_are_those_of_torchs_scheduler_stepped_by_that_clock(body: Body) -> None:
    got, shown, u = answer(body), walked(body), body["update"]
    for name in ("per_update", "per_microbatch", "per_update_times_processes", "per_epoch"):
        lr = float(Fraction(body["base_lr"]))
        schedule = LambdaLR(optimizer(lr), lambda x: factor_by_hand(body, x))
        used, following = stepped(schedule, shown[WALKED[name]][u - 1 : u + 1])
        assert got["schemes"][name]["lr_used"] == pytest.approx(used, rel=1e-12, abs=1e-15)
        assert got["schemes"][name]["lr_next"] == pytest.approx(following, rel=1e-12, abs=1e-15)


def test_warm_up_and_cosine_are_those_of_torchs_linear_and_cosine_schedulers() -> None:
    ramp, end = 5, 45
    made = optimizer(0.3)
    warm = LinearLR(made, start_factor=1e-12, total_iters=ramp)
    both = SequentialLR(made, [warm, CosineAnnealingLR(made, end - ramp, eta_min=0.03)], [ramp])
    rates = stepped(both, list(map(Fraction, range(end + 1))))  # type: ignore[arg-type]
    for update in range(1, end + 1):
        body = {"batches": end, "warmup": ramp, "total": end, "shape": "cosine", "base_lr": "0.3", "min_ratio": 0.1}
        got = answer(body, update=update)
        assert got["schemes"]["per_update"]["lr_used"] == pytest.approx(rates[update - 1], rel=1e-9, abs=1e-12)


@given(bodies())
@settings(max_examples=60, deadline=None)
def test_an_exact_rate_is_the_float_beside_it_and_the_cosine_has_it_only_where_it_is_rational(body: Body) -> None:
    for clock in answer(body)["schemes"].values():
        for which in ("lr_used", "lr_next"):
            if clock[f"{which}_exact"] is None:
                assert body["shape"] == "cosine"
            else:
                assert float(Fraction(clock[f"{which}_exact"])) == clock[which]


def test_the_cosine_is_exact_at_a_sixth_of_its_way() -> None:
    sixths = [
        answer(P=1, warmup=0, total=6, shape="cosine", update=update)["schemes"]["per_update"] for update in range(1, 6)
    ]
    assert [clock["lr_next_exact"] for clock in sixths] == [None, "3/4", "1/2", "1/4", None]


def test_a_clock_configured_with_the_required_numbers_ends_both_parts_at_the_right_updates() -> None:
    """W and T that a clock asks for, given to that clock, in a run without partial windows and skips."""
    run: Body = {"P": 3, "K": 2, "batches": 40, "warmup": 4, "total": 16, "update": 7}
    for name, clock in answer(run)["schemes"].items():
        if name == "per_epoch":
            continue
        repaired = {**run, "warmup": int(clock["required_warmup"]), "total": int(clock["required_total"])}
        again = answer(repaired)["schemes"][name]
        assert (again["warmup_ends_at"], again["decay_ends_at"]) == (4, 16)
        right = answer(run)["schemes"]["per_update"]
        assert again["lr_used"] == pytest.approx(right["lr_used"], rel=1e-12)


def test_on_one_process_without_accumulation_and_skips_all_clocks_of_windows_agree_and_the_epochs_one_does_not() -> (
    None
):
    got = answer(P=1, K=1, batches=50, warmup=10, total=50, update=20)
    agree = {name: clock["matches_reference"] for name, clock in got["schemes"].items()}
    assert agree.pop("per_epoch") is False
    assert set(agree.values()) == {True}


def test_skips_hold_back_the_clocks_of_updates_alone() -> None:
    got = answer(P=2, K=1, batches=20, warmup=4, total=20, update=10, skipped=[1, 2, 12])["schemes"]
    assert [got[name]["steps"] for name in ("per_update", "per_attempt", "per_microbatch")] == [8, 10, 10]
    assert got["per_update_times_processes"]["steps"] == 16
    assert got["per_attempt"]["matches_reference"] is False


def test_skips_may_come_in_any_order_and_blank_means_none() -> None:
    assert answer(skipped=[9, 2]) == answer(skipped="2,9")
    assert answer(skipped=[]) == answer(skipped="") == answer()


def averaged(decay: float, ticks: int) -> float:
    """What is left of the distance to a weight that stays, after an average was updated so often."""
    kept = torch.ones((), dtype=torch.float64)
    for _ in range(ticks):
        kept.lerp_(torch.zeros((), dtype=torch.float64), 1 - decay)
    return kept.item()


@pytest.mark.parametrize("decay", [0.9, 0.999, 0.4])
def test_an_average_keeps_what_calling_it_ticks_times_leaves(decay: float) -> None:
    got = answer(P=3, K=4, batches=16, warmup=0, total=4, update=1, ema_decay=decay)["schemes"]
    ticks = {name: clock["ticks_per_window"] for name, clock in got.items()}
    assert ticks == {
        "per_update": 1,
        "per_attempt": 1,
        "per_microbatch": 4,
        "per_update_times_processes": 3,
        "per_microbatch_times_processes": 12,
        "per_epoch": None,
        "per_token": 1,
    }
    for name, clock in got.items():
        if ticks[name]:
            kept = averaged(decay, ticks[name])
            assert clock["ema_effective_decay"] == pytest.approx(kept, rel=1e-12)
            assert kept ** clock["ema_half_life_updates"] == pytest.approx(0.5, rel=1e-9)


def test_an_average_that_forgets_nothing_never_halves_and_one_that_keeps_nothing_does_at_once() -> None:
    kept, lost = (answer(ema_decay=decay)["schemes"]["per_update"] for decay in (1, 0))
    assert (kept["ema_effective_decay"], kept["ema_half_life_updates"]) == (1, None)
    assert (lost["ema_effective_decay"], lost["ema_half_life_updates"]) == (0, 0)


def test_a_run_of_ten_to_the_fifteenth_microsteps_keeps_every_digit() -> None:
    body: Body = {"batches": 10**9, "epochs": 10**6, "K": 7, "P": 4096, "warmup": 10**6, "total": 10**13}
    got = answer({**body, "update": 10**14, "skipped": list(range(1, 10_001))})
    assert got["attempts"] == -(-(10**9) // 7) * 10**6
    assert got["schemes"]["per_update"]["steps_exact"] == str(10**14 - 10**4)
    assert got["schemes"]["per_update"]["decay_ends_at"] == 10**13 + 10**4


def test_the_rate_of_a_cosine_is_as_good_after_a_million_turns() -> None:
    got = answer(P=1, batches=10**9, warmup=0, total=1000, shape="cosine", update=2 * 10**8 + 251)
    assert got["schemes"]["per_update"]["lr_used"] == pytest.approx((1 + math.cos(math.pi / 4)) / 2, rel=1e-12)


def test_a_restored_scheduler_keeps_its_count_whatever_it_now_means() -> None:
    """What chapter 110 says of resuming on another number of processes."""
    eight = LambdaLR(optimizer(1.0), lambda x: min(1.0, x / 800))
    eight.optimizer.step()
    for _ in range(50 * 8):
        eight.step()
    four = LambdaLR(optimizer(1.0), lambda x: min(1.0, x / 400))
    four.load_state_dict(copy.deepcopy(eight.state_dict()))
    assert four.last_epoch == 400
    four.optimizer.step()
    four.step()
    assert (eight.get_last_lr(), four.get_last_lr()) == ([0.5], [1.0])


def test_the_panel_draws_the_right_rate_and_the_chosen_attempt() -> None:
    got = view()
    assert (got["selected"], got["update"], got["current"]["warmup_ends_at"]) == ("per_update_times_processes", 13, 13)
    points: list[Answer] = got["curve"]
    assert [points[0]["attempt"], points[-1]["attempt"]] == [1, 1000]
    assert next(p for p in points if p["attempt"] == 13)["lr"]["per_update"] == 0.12


REFUSED_BODIES = [
    ({"P": 0}, "P"),
    ({"P": 4097}, "P"),
    ({"K": "1.5"}, "K"),
    ({"batches": 10**9 + 1}, "batches"),
    ({"epochs": 0}, "epochs"),
    ({"tail": "last"}, "tail"),
    ({"warmup": -1}, "warmup"),
    ({"warmup": 1001}, "total"),
    ({"shape": "root"}, "shape"),
    ({"min_ratio": "nan"}, "min_ratio"),
    ({"min_ratio": "1.5"}, "min_ratio"),
    ({"base_lr": "inf"}, "base_lr"),
    ({"update": 0}, "update"),
    ({"update": 1001}, "update"),
    ({"tail": "drop", "K": 1001, "update": 1}, "update"),
    ({"skipped": [0]}, "skipped"),
    ({"skipped": [1001]}, "skipped"),
    ({"skipped": [4, 4]}, "skipped"),
    ({"skipped": list(range(1, 10_002)), "batches": 20_000}, "skipped"),
    ({"ema_decay": "1.1"}, "ema_decay"),
    ({"ema_decay": "0." + "9" * 350}, "ema_decay"),
    ({"min_ratio": "5e-324", "warmup": 0, "total": 1, "update": 3, "P": 1, "shape": "linear"}, "min_ratio"),
    ({"clock": "x"}, "clock"),
]
REFUSED_FIELDS = {
    "update": ["1001"],
    "scheme": ["per_sample"],
}


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    window, batches, epochs = source.randint(1, 4), source.randint(4, 12), source.randint(1, 3)
    tail = source.choice(["update", "drop", "carry"])
    fewest = batches // window * epochs
    warmup = source.randint(0, 9)
    return {
        "P": source.randint(1, 4),
        "K": window,
        "batches": batches,
        "epochs": epochs,
        "tail": tail,
        "warmup": warmup,
        "total": warmup + source.randint(0, 20),
        "shape": source.choice(["linear", "cosine", "constant"]),
        "beyond": source.choice(["formula", "hold"]),
        "min_ratio": source.choice(["0", "0.1"]),
        "base_lr": source.choice(["1", "0.003"]),
        "update": source.randint(1, fewest),
        "skipped": source.sample(range(1, fewest + 1), source.randint(0, min(2, fewest))),
        "ema_decay": source.choice(["0.999", "0.5"]),
    }


PROGRAM = Program(
    prints=["schemes.per_update.lr_used", "schemes.per_update_times_processes.warmup_ends_at", "updates"],
    planted=("W, T, update, skipped = 100,", "W, T, update, skipped = 90,"),
    bodies=any_body,
)
