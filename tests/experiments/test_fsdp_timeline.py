"""Real FSDP2 steps hold and send what the calculator says, byte for byte; other expectations are seen to err."""

import csv
import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from samestep.app.calculators.fsdp_timeline import STATES, Inputs, compute
from samestep.app.evidence.bags import AGREES, Library, met
from samestep.app.mathematics.element_size import BYTES
from samestep.experiments.fsdp_timeline import accounts, cases, checks, step, storages
from samestep.experiments.registry import ROOT

NAME = "fsdp_timeline"
TWO = ("reshard", "keep", "no-prefetch", "both", "bfloat16", "bfloat16-reduced")
FOUR = ("reshard", "keep", "group")
CUT = [*(f"p2-{name}" for name in TWO), *(f"p4-{name}" for name in FOUR)]


def values(lab: Any, row: str) -> dict[str, Any]:
    found: dict[str, Any] = lab.rows(NAME)[row]["values"]
    return found


def gaps(lab: Any, row: str) -> dict[str, float]:
    found: dict[str, float] = lab.rows(NAME)[row]["max_abs_difference"]
    return found


# --- the run


def test_every_check_holds(lab: Any) -> None:
    assert lab.results[NAME]["verdict"] == "holds", lab.output
    assert len(lab.rows(NAME)) == len(CUT) * len(cases.FOR_FSDP) + len(cases.FOR_DDP)


@pytest.mark.parametrize("case", CUT)
def test_the_calculator_is_right_to_the_byte(lab: Any, case: str) -> None:
    quantities = ("at_rest", "at_update", "peak", "moments", "collectives", "sent")
    assert gaps(lab, f"{case}-calculator") == dict.fromkeys(quantities, 0.0)


def test_the_peak_comes_near_the_end_of_backward_and_earlier_where_the_layers_are_kept(lab: Any) -> None:
    assert values(lab, "p2-reshard-calculator")["peak_group"] == 2
    assert values(lab, "p2-keep-calculator")["peak_group"] == 3


def test_collectives_are_those_of_five_groups(lab: Any) -> None:
    # all-gathers, reduce-scatters, all-reduces: four layers and the root, which is gathered once
    counted = {
        "p2-reshard-calculator": [9, 5, 0],
        "p2-keep-calculator": [5, 5, 0],
        "p2-no-prefetch-calculator": [9, 5, 0],
        "p4-group-calculator": [9, 5, 0],
        "p2-ddp-replicated": [0, 0, 1],
    }
    assert {name: values(lab, name)["collectives"] for name in counted} == counted


def test_kept_layers_send_as_many_bytes_as_ddp_and_freed_ones_gather_all_but_the_root_again(lab: Any) -> None:
    layers, root = 2000 + 2040 + 2080 + 2120, 500
    sent = {case: values(lab, f"p2-{case}-replicated")["sent"] for case in ("keep", "ddp", "reshard")}
    assert sent["keep"] == sent["ddp"] == 4 * (layers + root)
    assert sent["reshard"] - sent["keep"] == 4 * layers // 2


def test_prefetching_moves_memory_but_no_byte_more(lab: Any) -> None:
    wrong = gaps(lab, "p2-reshard-no-prefetch")
    assert (wrong["collectives"], wrong["sent"]) == (0, 0)
    assert wrong["peak"] > 0
    assert wrong["moments"] > 0


def test_a_p_th_of_everything_is_right_at_rest_and_at_the_update_and_too_little_in_between(lab: Any) -> None:
    for name in TWO:
        share = gaps(lab, f"p2-{name}-share")
        assert (share["at_rest"], share["at_update"]) == (0, 0)
        assert values(lab, f"p2-{name}-share")["peak"] > 1.1 * values(lab, f"p2-{name}-share")["expected_peak"]
    assert gaps(lab, "p4-reshard-share")["at_rest"] > 0  # padding


def test_what_is_wrong_under_fsdp_is_right_under_ddp_and_the_other_way_round(lab: Any) -> None:
    assert max(gaps(lab, "p2-ddp-replicated").values()) == 0
    assert gaps(lab, "p2-reshard-replicated")["at_rest"] == 52440  # as much again as is held
    assert min(gaps(lab, "p2-ddp-fsdp").values()) > 0


# --- what is published: every moment

Line = dict[str, str]


def steps(folder: Path) -> Iterator[tuple[str, int, list[Line]]]:
    """Case, rank and lines of every recorded step."""
    with (folder / "timeline.csv").open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    for (case, rank), moments in groupby(lines, lambda line: (line["case"], int(line["rank"]))):
        yield case, rank, list(moments)


def check(folder: Path) -> int:
    """Today's calculator against a file of moments; how many steps of FSDP2 it held."""
    bodies = json.loads((folder / "result.json").read_text("utf-8"))["setup"]["cases"]
    checked = 0
    for case, rank, lines in steps(folder):
        if case.endswith("_ddp"):
            continue
        body, checked = bodies[case], checked + 1
        less = 0
        for elements in (*body["parameters"], body["root_parameters"]):
            shard = -(-elements // body["ranks"])
            less += shard - len(range(elements)[rank * shard : (rank + 1) * shard])
        less *= STATES[body["optimizer"]] * BYTES["float32"]  # states are as long as a rank's own shard
        said = json.loads(compute(Inputs(**body)).model_dump_json())["moments"]
        assert len(said) == len(lines), case
        for moment, line in zip(said, lines, strict=True):
            event = "gather" if moment["event"] == "prefetch" else moment["event"]
            group = "" if moment["group"] is None else str(moment["group"])
            assert (line["phase"], line["event"], line["group"]) == (moment["phase"], event, group)
            wanted = moment | {"optimizer": moment["optimizer"] - less, "total": moment["total"] - less}
            for kind in (*storages.KINDS, "total"):
                assert int(line[kind]) == wanted[kind], (case, rank, line)
    return checked


def test_the_file_of_moments_holds_what_the_calculator_says(lab: Any) -> None:
    assert check(lab.folder / NAME) == 2 * len(TWO) + 4 * len(FOUR)


def test_the_published_moments_are_still_what_the_calculator_says() -> None:
    """`verify` looks at sources of experiments only; the calculator could drift away from the evidence unnoticed."""
    library = Library(ROOT / "content" / "evidence")
    if NAME in library.names():
        assert check(library.bag(NAME).folder / "data") > 0


# --- the comparison itself, without processes


def recorded(case: cases.Case, name: str = "calculator") -> list[step.Measured]:
    """Ranks that do exactly what an expectation says."""
    ranks = []
    for rank in range(case.ranks):
        said = accounts.expected(case, name, rank)
        assert said.moments is not None
        assert said.collectives is not None
        assert said.sent is not None
        ranks.append(step.Measured(said.moments, said.collectives, [int(said.sent)], 1.0))
    return ranks


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 8])
def test_for_any_number_of_processes_the_expectations_differ_where_they_say(ranks: int) -> None:
    for case in cases.cases_of(ranks):
        for name in () if case.ddp else cases.FOR_FSDP:
            assert accounts.compare(case, name, recorded(case))["met"], (case.name, name)


def test_one_byte_on_one_rank_a_missing_moment_and_another_order_are_noticed() -> None:
    case = cases.cases_of(4)[0]
    good = recorded(case)
    assert accounts.compare(case, "calculator", good)["met"]
    moments = good[3].moments
    last = moments[20]
    heavier = last._replace(held=last.held | {"reduce_buffers": last.held["reduce_buffers"] + 1})
    for changed in (
        [*moments[:20], heavier, *moments[21:]],
        [*moments[:20], *moments[21:]],
        [*moments[:20], moments[21], moments[20], *moments[22:]],
    ):
        assert not accounts.compare(case, "calculator", [*good[:3], good[3]._replace(moments=changed)])["met"]
    assert not accounts.compare(case, "calculator", [good[0]._replace(collectives=[9, 4, 0]), *good[1:]])["met"]
    assert not accounts.compare(case, "calculator", [good[0]._replace(sent=[0]), *good[1:]])["met"]


def test_controls_do_not_hold_where_nothing_happened() -> None:
    case = cases.cases_of(4)[0]
    good = recorded(case)
    ranks = [each._replace(sent=[1] * sum(each.collectives)) for each in good]
    rows = [accounts.compare(case, name, good) for name in cases.FOR_FSDP]

    def failed(changed: step.Measured) -> set[str]:
        found = checks.controls([case], {case.name: [changed, *ranks[1:]]}, rows)
        return {each["id"] for each in found if not each["met"]}

    empty = [moment._replace(held=dict.fromkeys(moment.held, 0)) for moment in ranks[0].moments]
    assert "counted" in failed(ranks[0]._replace(collectives=[0, 0, 0], sent=[]))
    assert "counted" in failed(ranks[0]._replace(sent=[0] * len(ranks[0].sent)))
    assert {"held", "returned"} <= failed(ranks[0]._replace(moments=empty))
    assert "returned" in failed(ranks[0]._replace(moments=ranks[0].moments[:-1]))
    assert "step" in failed(ranks[0]._replace(moved=0.0))
    assert not failed(ranks[0]) - {"both-ways"}


def test_differences_are_whole_bytes(lab: Any) -> None:
    for row in lab.rows(NAME).values():
        assert met(row["expected"], row["max_abs_difference"])
        assert all(gap == 0 or gap > 0.1 > AGREES for gap in row["max_abs_difference"].values()), row["id"]
