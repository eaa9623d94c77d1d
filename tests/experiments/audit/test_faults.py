"""Every planted fault is named, and the right version beside it is found to be the same update.

The files are those a reader might bring. The tests below only look at reports.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from samestep.experiments.audit import Report
from tests.experiments.audit.asked import ask

FILES = Path(__file__).parent / "files"
SHAPES = ((2, 3), (3, 2))
"""Processes and microbatches: coprime, and each takes the other's place, where what is said is made of P and K."""
MADE_OF_P_AND_K = (
    "scale",
    "replica_equal",
    "microbatch_equal",
    "dropped_microbatch",
    "duplicated_samples",
    "copies_counted",
    "local_norm",
)

Reports = Mapping[str, Report]
Shape = tuple[int, int]


@dataclass(frozen=True)
class Fault:
    """A wrong file, its right version, and what the audit says of the wrong one."""

    wrong: str
    right: str
    cause: str
    first_difference: str = "gradient"
    factor: str | None = None


FAULTS = (
    # a factor
    Fault("accumulate_sum_over_n", "accumulate", "scale", factor="1/P"),
    Fault("accumulate_divided_again", "accumulate", "scale", factor="1/K"),
    Fault("accumulate_divided_by_all", "accumulate", "scale", factor="1/(P*K)"),
    Fault("accumulate_multiplied", "accumulate", "scale", factor="K"),
    Fault("sum_hook_world_size", "sum_hook", "scale", factor="P"),
    Fault("raw_sum", "accumulate", "scale", factor="N/P"),
    Fault("replicated_head_not_divided", "replicated_head", "scale", factor="P"),
    Fault("fsdp2_sum_over_n", "fsdp2", "scale", factor="1/P"),
    Fault("fsdp2_divided_again", "fsdp2", "scale", factor="1/K"),
    Fault("fsdp2_divide_factor_world_size", "fsdp2_divide_factor", "scale", factor="P"),
    # weights
    Fault("accumulate_rank_count", "accumulate", "replica_equal"),
    Fault("fsdp2_rank_count", "fsdp2", "replica_equal"),
    Fault("accumulate_means", "accumulate", "microbatch_equal"),
    Fault("accumulate_means_summed", "accumulate", "microbatch_equal", factor="K"),
    Fault("model_output_mean", "model_output", "microbatch_equal"),
    Fault("fsdp2_means", "fsdp2", "microbatch_equal"),
    Fault("accumulate_zeroed_in_loop", "accumulate", "dropped_microbatch"),
    # samples
    Fault("accumulate_last_skipped", "accumulate", "dropped_microbatch", "samples"),
    Fault("fsdp2_last_left_out", "fsdp2", "dropped_microbatch", "samples"),
    Fault("sampler_drops", "sampler", "dropped_microbatch", "samples"),
    Fault("sampler_pads", "sampler", "duplicated_samples", "samples"),
    Fault("accumulate_same_batch_again", "accumulate", "dropped_microbatch", "samples"),
    # reduction
    Fault("accumulate_module_bypassed", "accumulate", "not_reduced", "replicas"),
    Fault("accumulate_never_synced", "accumulate", "not_reduced", "replicas"),
    Fault("accumulate_forward_unsynced", "accumulate", "not_reduced", "replicas"),
    Fault("accumulate_two_forwards", "accumulate", "not_reduced", "replicas"),
    Fault("unused_parameter", "unused_parameter_found", "not_reduced", "replicas"),
    Fault("manual_forgotten", "manual", "not_reduced", "replicas"),
    # terms across samples
    Fault("contrastive_detached", "contrastive", "detached_remote"),
    Fault("fsdp2_contrastive_detached", "fsdp2_contrastive", "detached_remote"),
    Fault("contrastive_local", "contrastive", "missing_negatives"),
    Fault("contrastive_accumulated", "contrastive", "missing_negatives"),
    Fault("normalized_by_batch", "normalized", "batch_statistics"),
    # the norm
    Fault("fsdp2_clip_own_shards", "fsdp2_clip_by_hand", "local_norm", "norm"),
    Fault("clip_before_reduction", "clip_reduced", "per_rank_clip", "norm"),
    Fault("clip_counts_copies", "clip_by_hand", "copies_counted", "norm"),
    Fault("replicated_head_counted", "replicated_head", "copies_counted", "norm"),
    Fault("scaler_clip_first", "scaler", "clip_before_unscale"),
    Fault("clip_every_microbatch", "clip", "per_microbatch_clip"),
    Fault("fsdp2_clip_every_microbatch", "fsdp2_clip", "per_microbatch_clip"),
    # the order of things
    Fault("accumulate_stepped_each_time", "accumulate_without_no_sync", "step_inside_window"),
    Fault("fsdp2_stepped_each_time", "fsdp2_every_sync", "step_inside_window"),
    Fault("warmed_up_stale", "warmed_up", "stale_gradient"),
    # rounding
    Fault("fp16_hook", "accumulate", "precision"),
    Fault("manual_float32_buffer", "manual", "precision"),
    Fault("fsdp2_float32", "fsdp2", "precision"),
    # the optimizer
    Fault("fsdp2_moments_lost", "fsdp2_moments_kept", "optimizer_state", "parameters"),
    Fault("moments_summed", "moments_averaged", "optimizer_state", "optimizer_state"),
)

RIGHT = sorted(
    {fault.right for fault in FAULTS}
    | {"buffers", "checkpointed", "dropout_off", "overflow_skipped", "parameter_groups", "tied_weights"}
)
VACUOUS = ("empty_window_skipped", "fsdp2_never_synced", "fsdp2_old_optimizer", "nothing_reduced", "nothing_stepped")

# files with a test of their own
EVERYTHING_EVERYWHERE = "sampler_forgotten"
REDUCED_AGAIN_AND_AGAIN = "manual_in_window"
DROPOUT = "dropout"
BATCH_NORM = "normalized_by_batch"
STEPPED_ON_EMPTY = "empty_window_stepped"


EXCHANGED = tuple(fault for fault in FAULTS if fault.cause in MADE_OF_P_AND_K)
RIGHT_EXCHANGED = sorted({fault.right for fault in EXCHANGED})


def name_of(value: object) -> str:
    if isinstance(value, Fault):
        return value.wrong
    return f"{value[0]}x{value[1]}" if isinstance(value, tuple) else str(value)


def on_both(*values: object, exchanged: Sequence[object]) -> pytest.MarkDecorator:
    """Shape and value: all of them with the first shape, some with the other one, too."""
    pairs = [*((SHAPES[0], value) for value in values), *((SHAPES[1], value) for value in exchanged)]
    return pytest.mark.parametrize(("shape", "each"), pairs, ids=name_of)


def asked(shape: Shape) -> Reports:
    """The reports of every file, with P processes and K microbatches."""
    processes, microbatches = shape
    names = [*(fault.wrong for fault in EXCHANGED), *RIGHT_EXCHANGED, EVERYTHING_EVERYWHERE, REDUCED_AGAIN_AND_AGAIN]
    if shape == SHAPES[0]:
        alone = (STEPPED_ON_EMPTY, EVERYTHING_EVERYWHERE, REDUCED_AGAIN_AND_AGAIN, DROPOUT)
        names = [*(fault.wrong for fault in FAULTS), *RIGHT, *VACUOUS, *alone]
    options = {} if shape == SHAPES[0] else {"processes": processes, "microbatches": microbatches}
    return ask({name: FILES / f"{name}.py" for name in names}, **options)


AUDITED = {shape: asked(shape) for shape in SHAPES}
REPORTS = AUDITED[SHAPES[0]]


@on_both(*FAULTS, exchanged=EXCHANGED)
def test_a_planted_fault_is_named(shape: Shape, each: Fault) -> None:
    report = AUDITED[shape][each.wrong]
    found = (report.verdict, report.cause, report.first_difference, report.factor)
    assert found == ("different", each.cause, each.first_difference, each.factor), report


@on_both(*RIGHT, exchanged=RIGHT_EXCHANGED)
def test_the_right_version_is_the_same_update(shape: Shape, each: str) -> None:
    report = AUDITED[shape][each]
    assert report.verdict == "same", report


@pytest.mark.parametrize("name", VACUOUS)
def test_a_run_that_proves_nothing_is_never_called_the_same(name: str) -> None:
    assert REPORTS[name].verdict == "vacuous", REPORTS[name]


def test_a_step_on_an_empty_window_is_named() -> None:
    """Its right version skips, and so is vacuous."""
    report = REPORTS[STEPPED_ON_EMPTY]
    assert (report.verdict, report.cause, report.first_difference) == ("different", "stepped_on_empty", "parameters")


@on_both(EVERYTHING_EVERYWHERE, exchanged=[EVERYTHING_EVERYWHERE])
def test_a_forgotten_sampler_is_the_same_update_at_p_times_the_work(shape: Shape, each: str) -> None:
    (plan,) = AUDITED[shape][each].plans
    assert plan.verdict == "same"
    assert any("every sample" in note["en"] for note in plan.notes), plan.notes


@on_both(REDUCED_AGAIN_AND_AGAIN, exchanged=[REDUCED_AGAIN_AND_AGAIN])
def test_a_sum_over_ranks_that_is_summed_again_shows_in_the_weights(shape: Shape, each: str) -> None:
    """With K microbatches the first one is multiplied by P another K - 1 times, the last one never."""
    report = AUDITED[shape][each]
    assert (report.verdict, report.first_difference) == ("different", "gradient")
    assert report.cause != "duplicated_samples"
    (plan,) = report.plans
    assert plan.finding is not None
    assert plan.finding.weights is not None
    processes, microbatches = report.settings.processes, report.settings.microbatches
    for observed, right in zip(plan.finding.weights.observed, plan.finding.weights.expected, strict=True):
        ratios = [found / wanted for found, wanted in zip(observed, right, strict=True)]
        assert ratios == pytest.approx([processes ** (microbatches - 1 - k) for k in range(microbatches)], rel=1e-8)


@pytest.mark.parametrize(
    ("name", "feature", "verdict"), [(DROPOUT, "dropout", "vacuous"), (BATCH_NORM, "BatchNorm1d", "different")]
)
def test_what_breaks_the_method_is_said(name: str, feature: str, verdict: str) -> None:
    """Masks of another run prove nothing; statistics of each part are another update."""
    (plan,) = REPORTS[name].plans
    assert plan.verdict == verdict
    assert any(feature in limit["en"] and feature in limit["zh"] for limit in plan.limits), plan.limits


@on_both("accumulate_means", exchanged=["accumulate_means"])
def test_effective_weights_are_set_against_the_right_ones(shape: Shape, each: str) -> None:
    """A mean of means weighs every microbatch 1/(P·K); right is the number of its valid tokens over all of them."""
    report = AUDITED[shape][each]
    (plan,) = report.plans
    assert plan.finding is not None
    assert plan.finding.weights is not None
    cells = report.settings.processes * report.settings.microbatches
    assert sum(plan.finding.weights.observed, ()) == pytest.approx([1 / cells] * cells, abs=1e-9)
    counts = sum(plan.counts, ())
    assert sum(plan.finding.weights.expected, ()) == pytest.approx([n / sum(counts) for n in counts], abs=1e-9)
