"""Training loops over two ranks, watched: exact weights, the verdict that each deserves, and a run that is unchanged.

Expected weights are fractions by hand. With n tokens in a cell, n_r on a rank, N in the update, P = 2 ranks, K = 3:
a mean of means gives 1/(P·K·n), a mean of ranks 1/(P·n_r), the global mean 1/N.
"""

import contextlib
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from samestep.experiments.watch.telling.causes import REFUSALS
from samestep.experiments.watch.telling.report import UpdateReport, as_json
from tests.experiments.watch.conftest import Loops
from tests.experiments.watch.training import COUNTS, LOOPS

Counts = list[list[int]]
Rule = Callable[[Counts], list[list[float]]]


def mean_of_means(counts: Counts) -> list[list[float]]:
    return [[1 / (2 * len(rank) * n) if n else 0.0 for n in rank] for rank in counts]


def rank_means(counts: Counts) -> list[list[float]]:
    return [[1 / (2 * sum(rank)) for _ in rank] for rank in counts]


def global_mean(counts: Counts, factor: float = 1.0) -> list[list[float]]:
    return [[factor / sum(map(sum, counts)) for _ in rank] for rank in counts]


def last_only(counts: Counts) -> list[list[float]]:
    return [[0.0, 0.0, 1 / (2 * rank[-1])] for rank in counts]


EXACT: Mapping[str, tuple[Rule, str, str | None, str | None]] = {
    "ddp_mean": (mean_of_means, "different", "microbatch_equal", None),
    "ddp_global": (global_mean, "same", None, None),
    "ddp_one_over_n": (lambda c: global_mean(c, 0.5), "different", "scale", "1/P"),
    "ddp_constant": (lambda c: [[1 / 144] * 3] * 2, "different", "constant_denominator", None),
    "ddp_rank_mean": (rank_means, "different", "replica_equal", None),
    "ddp_syncs_always": (mean_of_means, "different", "microbatch_equal", None),
    "ddp_bucket_view": (mean_of_means, "different", "microbatch_equal", None),
    "ddp_float64": (mean_of_means, "different", "microbatch_equal", None),
    "ddp_autocast": (mean_of_means, "different", "microbatch_equal", None),
    "ddp_tied": (mean_of_means, "different", "microbatch_equal", None),
    "ddp_recomputed": (mean_of_means, "different", "microbatch_equal", None),
    "ddp_recomputed_reentrant": (mean_of_means, "different", "microbatch_equal", None),
    "ddp_loss_recomputed": (mean_of_means, "different", "microbatch_equal", None),
    "ddp_other_terms": (mean_of_means, "different", "microbatch_equal", None),
    "ddp_zero_redundancy": (mean_of_means, "different", "microbatch_equal", None),
    "ddp_zeroes_inside": (last_only, "different", "dropped_microbatch", None),
    "ddp_empty_rank": (mean_of_means, "different", "microbatch_equal", None),
    "ddp_scaler": (global_mean, "same", None, None),
    "ddp_scaler_clips_scaled": (global_mean, "different", "clip_before_unscale", None),
    "hand_reduced": (mean_of_means, "different", "microbatch_equal", None),
    "fsdp2_mean": (mean_of_means, "different", "microbatch_equal", None),
    "fsdp2_resharded": (mean_of_means, "different", "microbatch_equal", None),
    "fsdp2_bf16": (mean_of_means, "different", "microbatch_equal", None),
    "loss_marked": (mean_of_means, "different", "microbatch_equal", None),
}
"""Loop → the weights of its cells, its verdict, cause and factor."""
COARSE = {"ddp_fp16_hook": 1e-4, "ddp_bf16": 1e-3}
"""Loops whose gradients are of low precision, with the relative error that this leaves."""
OTHER_COUNTS = {"ddp_empty_rank": [[[6, 4], [0, 8]]], "hand_reduced": [[[14, 2, 10], [4, 6]]]}


def weights(update: UpdateReport) -> list[list[float]]:
    return [[cell.weight or 0.0 for cell in rank] for rank in update.cells]


@pytest.mark.parametrize("name", EXACT)
def test_every_cell_has_the_weight_that_is_found_by_hand(loops: Loops, name: str) -> None:
    rule, verdict, cause, factor = EXACT[name]
    report = loops.report(name)
    counts = OTHER_COUNTS.get(name, COUNTS)
    assert [[[cell.n for cell in rank] for rank in update.cells] for update in report.updates] == counts
    for update, window in zip(report.updates, counts, strict=True):
        found = [weight for rank in weights(update) for weight in rank]
        assert found == pytest.approx([w for rank in rule(window) for w in rank], rel=1e-6, abs=1e-12)
        assert (update.verdict, update.cause) == (verdict, cause)
        assert sum(map(sum, window)) == update.N
        assert update.residual is not None
        assert update.residual < 1e-6
    if factor:
        assert report.factor == factor


@pytest.mark.parametrize("name", COARSE)
def test_low_precision_blurs_the_weights_and_not_the_rule(loops: Loops, name: str) -> None:
    for update, window in zip(loops.report(name).updates, COUNTS, strict=True):
        expected = [w for rank in mean_of_means(window) for w in rank]
        assert [w for rank in weights(update) for w in rank] == pytest.approx(expected, rel=COARSE[name])
        assert update.cause == "microbatch_equal"
        assert any("low precision" in text["en"] for text in update.evidence)


@pytest.mark.parametrize("name", LOOPS)
def test_the_run_is_the_same_bit_for_bit_with_and_without_watch(loops: Loops, name: str) -> None:
    for rank in loops.digests:
        assert rank[name]["plain"] == rank[name]["watched"]


def test_records_are_read_without_torch(loops: Loops) -> None:
    """The launcher reads them while the run goes on: an import of torch there would take seconds."""
    packages = set()

    class Reading(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            packages.add(module.partition(".")[0])
            return super().find_class(module, name)

    for file in loops.folder.glob("*/0-*.watch"):
        with file.open("rb") as stream, contextlib.suppress(EOFError):
            while True:
                Reading(stream).load()
    assert packages == {"numpy", "samestep"}


def test_a_watched_process_imports_no_more_of_ours_than_the_taps(loops: Loops) -> None:
    """Its environment may have torch, and nothing else that this project needs."""
    ours = "samestep.experiments"
    rooms = {"session", "windows", "written", "records", "front"}  # the last for `watch.tokens`, in a loop
    allowed = {ours, f"{ours}.taps", f"{ours}.watch", *(f"{ours}.watch.{room}" for room in rooms)}
    imported = json.loads((loops.folder / "imported.json").read_text("utf-8"))
    assert {name for name in imported if not name.startswith(f"{ours}.taps.")} == allowed


def test_loops_end_with_different_parameters_so_that_equal_digests_mean_something(loops: Loops) -> None:
    assert len({loops.digests[0][name]["plain"] for name in ("ddp_mean", "ddp_global", "ddp_rank_mean")}) == 3


def test_short_sequences_are_heavier_where_each_sequence_has_a_mean(loops: Loops) -> None:
    update = loops.report("ddp_sequence_mean").updates[0]
    assert update.cause == "sequence_mean"
    longer, shorter = 9, 5
    first = update.cells[0][0]
    assert (first.n, first.within) == (longer + shorter, "sequence_mean")
    assert (first.weight_min, first.weight_max) == pytest.approx((1 / (12 * longer), 1 / (12 * shorter)), rel=1e-6)


def test_the_same_run_is_right_if_sequences_are_the_objective_and_the_global_mean_is_not(loops: Loops) -> None:
    assert loops.report("ddp_sequence_mean", "sequences").verdict == "same"
    assert loops.report("ddp_global", "sequences").verdict == "different"


def test_the_same_data_on_every_rank_is_named(loops: Loops) -> None:
    update = loops.report("ddp_same_data").updates[0]
    assert update.cause == "duplicated_samples"
    assert "rank 0 microstep 0, rank 1 microstep 0" in update.sentence["en"]
    assert "26 different tokens where it seems to have 52" in update.sentence["en"]


def test_a_partial_window_that_is_divided_as_a_full_one_is_two_thirds(loops: Loops) -> None:
    first, second = loops.report("ddp_tail").updates
    assert (first.factor, second.factor, second.cause) == (None, "2/K", "microbatch_equal")
    expected = [1 / (2 * 3 * n) for n in (15, 5, 11, 17)]
    assert [w for rank in weights(second) for w in rank] == pytest.approx(expected, rel=1e-6)


def test_two_optimizers_have_an_update_each_with_the_same_weights(loops: Loops) -> None:
    updates = loops.report("ddp_two_optimizers").updates
    assert [update.optimizer for update in updates] == ["SGD", "AdamW"] * 2
    assert weights(updates[0]) == [pytest.approx(rank, rel=1e-6) for rank in weights(updates[1])]


def test_two_optimizers_have_windows_of_their_own_length(loops: Loops) -> None:
    updates = loops.report("ddp_two_rhythms").updates
    assert [[[cell.n for cell in rank] for rank in update.cells] for update in updates] == [
        [[14], [4]], [[2], [6]], [[14, 2], [4, 6]],
    ]  # fmt: skip
    assert not any(
        "partial" in text["en"] or "of the usual" in text["en"] for each in updates for text in each.evidence
    )


def test_one_backward_of_stacked_losses_has_the_tokens_of_all(loops: Loops) -> None:
    for update, window in zip(loops.report("ddp_stacked").updates, COUNTS, strict=True):
        assert sum(map(sum, window)) == update.N
        for cell, counts in zip((rank[0] for rank in update.cells), window, strict=True):
            assert (cell.weight_min, cell.weight_max) == pytest.approx((1 / (6 * max(counts)), 1 / (6 * min(counts))))


def test_a_gradient_that_was_not_cleared_is_found_in_the_next_update_once(loops: Loops) -> None:
    first, second = loops.report("ddp_forgets_zero").updates
    assert (first.cause, second.cause) == ("microbatch_equal", "stale_gradient")
    assert second.leak_of_last == pytest.approx(1.0, abs=1e-6)
    assert second.residual is not None
    assert second.residual < 1e-6


def test_what_was_thrown_away_stays_in_the_table_with_weight_zero(loops: Loops) -> None:
    update = loops.report("ddp_zeroes_inside").updates[0]
    assert update.discarded_backwards == 4
    assert [[cell.discarded for cell in rank] for rank in update.cells] == [[True, True, False]] * 2
    assert update.N == 58


def test_a_bypassed_wrapper_leaves_each_rank_with_its_own_part(loops: Loops) -> None:
    update = loops.report("ddp_bypassed").updates[0]
    assert update.cause == "not_reduced"
    assert "its own backwards alone" in update.sentence["en"]
    assert weights(update)[1] == pytest.approx([1 / (3 * n) for n in COUNTS[0][1]], rel=1e-6)


def test_backwards_that_are_left_out_of_the_reduction_are_named(loops: Loops) -> None:
    update = loops.report("ddp_syncs_too_early").updates[0]
    assert update.cause == "not_reduced"
    assert "their own rank alone: rank 0 microstep 2, rank 1 microstep 2." in update.sentence["en"]


def test_an_optimizer_that_reduces_by_itself_is_not_said_to_forget_it(loops: Loops) -> None:
    report = loops.report("hand_reduces_in_step")
    assert report.verdict == "not_explained"
    assert "Reducing communicates within its own step" in report.sentence["en"]


def test_one_tensor_that_is_not_reduced_is_named_with_its_own_factors(loops: Loops) -> None:
    update = loops.report("hand_forgets_head").updates[0]
    assert update.cause == "not_reduced"
    assert "head.weight" in update.sentence["en"]
    assert update.fit is not None
    (off,) = update.fit.tensors_off
    assert off.name == "head.weight"
    assert off.factors == pytest.approx((1, 1, 1, 0, 0), abs=1e-6)


def test_a_sum_that_is_reduced_after_every_microstep_doubles_early_ones(loops: Loops) -> None:
    update = loops.report("hand_reduces_always").updates[0]
    assert "summed again" in update.sentence["en"]
    assert weights(update)[0] == pytest.approx([4 / 58, 2 / 58, 1 / 58], rel=1e-6)


def test_a_step_that_the_scaler_skips_is_no_update(loops: Loops) -> None:
    first, second = loops.report("ddp_scaler_skips").updates
    assert (first.skipped, first.verdict) == (True, "vacuous")
    assert (second.skipped, second.verdict) == (False, "same")
    assert second.scale == 512.0


def test_a_mean_over_no_label_is_named_with_its_cell(loops: Loops) -> None:
    report = loops.report("ddp_mean_of_nothing")
    assert report.verdict == "not_explained"
    assert "inf or nan, from rank 1 microstep 0." in report.sentence["en"]


def test_the_clip_factor_is_told_and_is_not_in_the_weights(loops: Loops) -> None:
    update = loops.report("ddp_scaler").updates[0]
    assert update.clip is not None
    assert update.clip < 0.9
    assert update.scale == 1024.0


def test_other_terms_of_the_loss_have_their_own_factor(loops: Loops) -> None:
    terms = loops.report("ddp_other_terms").updates[0].terms
    assert terms is not None
    assert [term.name for term in terms] == ["nll_loss", "Mean", "Mean"]
    assert [term.factors[0][0] if term.factors else None for term in terms] == [
        None,
        pytest.approx(0.5 * 0.01 / 3, rel=1e-6),
        pytest.approx(0.5 * 0.1 / 3, rel=1e-6),
    ]


def test_a_loss_without_known_tokens_is_explained_and_not_judged(loops: Loops) -> None:
    report = loops.report("loss_unseen")
    assert (report.verdict, report.code) == ("not_explained", 1)
    assert "Mean, Pow" in report.sentence["en"]
    assert "watch.tokens" in report.sentence["en"]


def test_a_contrastive_loss_is_said_to_couple_its_rows(loops: Loops) -> None:
    report = loops.report("loss_contrastive")
    assert report.verdict == "not_explained"
    assert "samestep-lab audit" in report.sentence["en"]
    assert "training.py:" in report.sentence["en"]


def test_weights_of_both_signs_have_no_share(loops: Loops) -> None:
    report = loops.report("loss_signed")
    assert report.verdict == "not_explained"
    assert "both signs" in report.sentence["en"]


@pytest.mark.parametrize(
    "code", ["fsdp1", "optimizer_in_backward", "tensor_parallel", "pipeline", "context_parallel", "lbfgs"]
)
def test_what_is_not_supported_is_said_before_any_number(loops: Loops, code: str) -> None:
    name = {"optimizer_in_backward": "refused_in_backward"}.get(code, f"refused_{code}")
    report = loops.report(name)
    assert (report.verdict, report.code, report.updates) == ("error", 2, ())
    assert report.sentence == REFUSALS[code]


def test_lines_of_loss_backward_and_step_are_those_of_the_script(loops: Loops) -> None:
    update = loops.report("ddp_mean").updates[0]
    cell = update.cells[0][0]
    assert all(
        line is not None and line.startswith("training.py:") for line in (cell.line, cell.loss_line, update.line)
    )
    assert len({cell.line, cell.loss_line, update.line}) == 3


@pytest.mark.parametrize("name", ["ddp_mean", "hand_forgets_head", "loss_unseen", "refused_fsdp1"])
def test_the_json_report_has_the_fields_that_it_promises(loops: Loops, name: str) -> None:
    value: Any = json.loads(as_json(loops.report(name)))
    assert value["schema"] == "samestep.watch.1"
    assert set(value["sentence"]) == {"en", "zh"}
    assert {"verdict", "script", "environment", "updates"} <= value.keys()
    for update in value["updates"]:
        assert {
            "index", "N", "n_source", "optimizer", "processes", "fit", "replica_difference", "leak_of_last",
            "discarded_backwards", "verdict", "cause", "factor", "residual", "clip", "scale", "skipped", "cells",
            "terms", "unseen", "not_compared",
        } <= update.keys()  # fmt: skip
        for cell in (cell for rank in update["cells"] for cell in rank):
            assert {
                "n",
                "weight",
                "weight_min",
                "weight_max",
                "share",
                "local_weight",
                "reduction",
                "line",
            } <= cell.keys()
