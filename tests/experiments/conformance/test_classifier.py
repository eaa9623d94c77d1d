"""Coefficients get the name of the rule that gives them, and of every other rule that would give the same."""

import math
from collections.abc import Sequence
from fractions import Fraction

import pytest

from samestep.experiments.conformance.classifier import Finding, classify, coefficients, listing, resolve
from samestep.experiments.conformance.counters import counted
from samestep.experiments.conformance.scenarios import SCENARIOS

TOLERANCE = 1e-12
# What every token of a cell gets, by hand, for n = (2 | 8), (2, 8 | 5, 1), (0 | 8), (4 | 3), (2, 0 | 5, 1).
GLOBAL = {"A": ["1/10", "1/10"], "B": ["1/16"] * 4, "C": ["0", "1/8"], "D": ["1/7", "1/7"], "E": ["1/8"] * 4}
REPLICA = {"A": ["1/4", "1/16"], "B": ["1/20", "1/20", "1/12", "1/12"], "C": ["0", "1/16"], "D": ["1/8", "1/6"],
           "E": ["1/4", "0", "1/12", "1/12"]}  # fmt: skip
MICROBATCH = {"A": ["1/4", "1/16"], "B": ["1/8", "1/32", "1/20", "1/4"], "C": ["0", "1/16"], "D": ["1/8", "1/6"],
              "E": ["1/8", "0", "1/20", "1/4"]}  # fmt: skip


def tokens(scenario: str, cells: Sequence[str], times: Fraction = Fraction(1)) -> list[list[list[float]]]:
    """Every token of a cell with that cell's coefficient."""
    each = iter(cells)
    return [[[float(Fraction(next(each)) * times)] * n for n in rank] for rank in SCENARIOS[scenario].counts]


def found(scenario: str, cells: Sequence[str], times: Fraction = Fraction(1)) -> Finding:
    return classify(tokens(scenario, cells, times), SCENARIOS[scenario], TOLERANCE)


def candidates(scenario: str, cells: Sequence[str], times: Fraction = Fraction(1)) -> list[str]:
    return listing(found(scenario, cells, times).candidates, SCENARIOS[scenario])


@pytest.mark.parametrize("scenario", ["A", "B", "D", "E"])
def test_the_global_token_mean_is_recognised_and_nothing_else_fits(scenario: str) -> None:
    assert candidates(scenario, GLOBAL[scenario]) == ["global_token_mean"]


def test_one_micro_batch_a_rank_cannot_tell_ranks_from_micro_batches() -> None:
    assert candidates("A", MICROBATCH["A"]) == ["replica_equal", "microbatch_equal"]
    assert found("A", MICROBATCH["A"]).verdict == "replica_equal | microbatch_equal"


def test_accumulation_tells_them_apart() -> None:
    assert candidates("B", MICROBATCH["B"]) == ["microbatch_equal"]
    assert candidates("B", REPLICA["B"]) == ["replica_equal"]


def test_with_an_empty_rank_a_halved_global_mean_looks_the_same() -> None:
    assert candidates("C", MICROBATCH["C"]) == ["replica_equal", "microbatch_equal", "global_token_mean*1/P"]
    assert candidates("C", GLOBAL["C"]) == ["global_token_mean", "replica_equal*P", "microbatch_equal*P"]


def test_an_empty_micro_batch_keeps_its_place_in_the_divisor() -> None:
    assert candidates("E", MICROBATCH["E"]) == ["microbatch_equal"]
    without_it = ["1/6", "0", "1/15", "1/3"]  # divided by the three that have labels
    assert found("E", without_it) == Finding("other", nearest={"microbatch_equal": pytest.approx(4 / 3)})


def test_a_factor_has_its_name_and_the_names_that_coincide() -> None:
    assert candidates("A", MICROBATCH["A"], Fraction(2)) == ["replica_equal*P", "microbatch_equal*P"]
    assert candidates("B", MICROBATCH["B"], Fraction(2)) == ["microbatch_equal*P", "microbatch_equal*K"]
    assert candidates("B", MICROBATCH["B"], Fraction(4)) == [
        "microbatch_equal*P*K",
        "microbatch_equal*P*P",  # P is K here: scenario A tells them apart
    ]
    assert candidates("B", ["1"] * 4) == ["global_token_mean*N"]
    assert candidates("B", ["1/2"] * 4) == ["global_token_mean*N/P"]


def test_a_factor_without_a_name_is_other_with_the_number() -> None:
    assert found("B", GLOBAL["B"], Fraction(4, 5)) == Finding(
        "other", nearest={"global_token_mean": pytest.approx(0.8)}
    )


def test_tokens_of_one_cell_that_differ_follow_no_rule() -> None:
    mixed = tokens("B", MICROBATCH["B"])
    mixed[0][1] = [0.0, 0.0625] * 4
    assert classify(mixed, SCENARIOS["B"], TOLERANCE) == Finding("other")


def test_nothing_at_all_is_dropped_and_leaks_if_a_later_update_has_it() -> None:
    zero = ["0", "0"]
    assert found("D", zero).verdict == "dropped"
    later = tokens("D", ["1/12", "1/12"])
    assert classify(tokens("D", zero), SCENARIOS["D"], TOLERANCE, later).verdict == "leaking"
    assert classify(tokens("D", zero), SCENARIOS["D"], TOLERANCE, tokens("D", zero)).verdict == "dropped"


def test_what_is_not_finite_is_undefined() -> None:
    poisoned = tokens("A", GLOBAL["A"])
    poisoned[0][0][0] = math.nan
    assert classify(poisoned, SCENARIOS["A"], TOLERANCE).verdict == "undefined"


def test_half_the_tolerance_fits_and_twice_does_not() -> None:
    for factor, verdict in ((0.5, "global_token_mean"), (2.0, "other")):
        shifted = tokens("B", GLOBAL["B"])
        shifted[1][1][0] += factor * 1e-6
        assert classify(shifted, SCENARIOS["B"], 1e-6).verdict == verdict


def verdicts(rule: dict[str, list[str]], tail: Fraction = Fraction(1), scenarios: str = "ABCDE") -> dict[str, str]:
    """The verdict of each scenario in the light of all, where the tail carries a factor of its own."""
    findings = {name: found(name, rule[name], tail if name == "D" else Fraction(1)) for name in scenarios}
    resolution = resolve(findings)
    return {name: resolution.verdict(finding, SCENARIOS[name]) for name, finding in findings.items()}


@pytest.mark.parametrize(
    ("name", "rule"), [("global_token_mean", GLOBAL), ("replica_equal", REPLICA), ("microbatch_equal", MICROBATCH)]
)
def test_all_scenarios_together_leave_one_rule(name: str, rule: dict[str, list[str]]) -> None:
    assert set(verdicts(rule).values()) == {name}


S = {  # lengths (2, 8), (5, 1) | (6, 2), (4, 1), by hand: N = 29, eight sequences
    "global_token_mean": ["1/29"] * 8,
    "sequence_mean": ["1/16", "1/64", "1/40", "1/8", "1/48", "1/16", "1/32", "1/8"],
    "microbatch_equal": ["1/40", "1/40", "1/24", "1/24", "1/32", "1/32", "1/20", "1/20"],
    "replica_equal": ["1/32"] * 4 + ["1/26"] * 4,
    "micro_step_equal": ["1/36", "1/36", "1/22", "1/22"] * 2,
    "sequence_sum": ["1/8"] * 8,
    "constant": ["1/128"] * 8,  # 16 positions
}


def sequences(cells: Sequence[str], times: Fraction = Fraction(1)) -> list[list[list[float]]]:
    """Tokens of scenario S, from a coefficient of each of its sequences."""
    each = iter(cells)
    return [
        [[float(Fraction(value) * times) for n in cell for value in [next(each)] for _ in range(n)] for cell in rank]
        for rank in SCENARIOS["S"].lengths
    ]


@pytest.mark.parametrize("name", S)
def test_several_sequences_a_micro_batch_tell_every_rule_apart(name: str) -> None:
    finding = classify(sequences(S[name]), SCENARIOS["S"], TOLERANCE, positions=16)
    shown = listing(finding.candidates, SCENARIOS["S"])
    assert (finding.verdict, shown[:1]) == (name, [name])
    assert shown[1:] == (["sequence_sum*1/positions"] if name == "constant" else [])


def test_a_sequence_whose_tokens_differ_follows_no_rule() -> None:
    mixed = sequences(S["sequence_mean"])
    mixed[0][0][2:] = mixed[0][0][2:5] + [0.0] * 5
    assert classify(mixed, SCENARIOS["S"], TOLERANCE).verdict == "other"


def test_a_clipped_ratio_and_a_square_of_processes_have_their_names() -> None:
    fifth = classify(sequences(S["global_token_mean"], Fraction(1, 5)), SCENARIOS["S"], TOLERANCE)
    assert fifth.verdict == "global_token_mean*0.2"
    assert candidates("A", MICROBATCH["A"], Fraction(4)) == ["replica_equal*P*P", "microbatch_equal*P*P"]


def test_a_mean_over_each_micro_step_is_asked_for_where_there_are_several() -> None:
    each = ["1/14", "1/18", "1/14", "1/18"]  # 2 · (2 + 5) and 2 · (8 + 1)
    assert candidates("B", each) == ["micro_step_equal"]
    assert candidates("A", GLOBAL["A"]) == ["global_token_mean"]
    assert candidates("M", ["1/8", "1/32", "1/20", "1/4"]) == ["microbatch_equal"]  # one process: its micro-batches


@pytest.mark.parametrize(
    ("scenario", "each"),
    [("G", ["2/65"] * 8), ("H", [value for _ in (0, 1) for value in ["1/58"] * 4 + ["1/72"] * 4])],
)
def test_a_mean_over_what_was_generated_together_is_no_mean_of_the_window(scenario: str, each: list[str]) -> None:
    wanted = [float(Fraction(value)) for value in each]
    flat = [value for rank in coefficients("generation_mean", SCENARIOS[scenario]) for cell in rank for value in cell]
    assert flat == wanted
    values = iter(wanted)
    given = [[[v for n in cell for v in [next(values)] * n] for cell in rank] for rank in SCENARIOS[scenario].lengths]
    assert classify(given, SCENARIOS[scenario], TOLERANCE).verdict == "generation_mean"


@pytest.mark.parametrize(
    ("scenario", "updates", "count", "found"),
    [
        ("counters", 8, 8, ["per_update"]),
        ("counters", 8, 16, ["per_update*P"]),
        ("counters_accumulated", 4, 4, ["per_update"]),
        ("counters_accumulated", 4, 8, ["per_update*P", "per_update*K"]),
        ("counters_accumulated", 4, 16, ["per_update*P*K"]),
        ("counters_accumulated", 4, 5, []),
    ],
)
def test_a_counter_moves_once_an_update_or_by_a_factor_with_a_name(
    scenario: str, updates: int, count: int, found: list[str]
) -> None:
    assert listing(counted(updates, count, SCENARIOS[scenario]).candidates, SCENARIOS[scenario]) == found


def test_without_accumulation_both_rules_stay() -> None:
    assert set(verdicts(MICROBATCH, scenarios="AC").values()) == {"replica_equal | microbatch_equal"}


def test_a_tail_may_carry_a_factor_of_its_own() -> None:
    assert verdicts(MICROBATCH, Fraction(1, 2))["D"] == "microbatch_equal*1/K"
    assert verdicts(MICROBATCH, Fraction(1, 2))["B"] == "microbatch_equal"
    assert verdicts(MICROBATCH, Fraction(0)) == {**verdicts(MICROBATCH), "D": "dropped"}


def test_the_rules_have_the_coefficients_of_their_definitions() -> None:
    for name, rule in (("global_token_mean", GLOBAL), ("replica_equal", REPLICA), ("microbatch_equal", MICROBATCH)):
        for scenario, cells in rule.items():
            flat = [value for rank in coefficients(name, SCENARIOS[scenario]) for cell in rank for value in cell]
            counted = [n for rank in SCENARIOS[scenario].counts for n in rank]
            wanted = [float(Fraction(cell)) if n else 0.0 for cell, n in zip(cells, counted, strict=True)]
            assert flat == wanted, (name, scenario)
