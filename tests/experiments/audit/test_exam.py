"""Files of many ways to write a step, each wrong one beside what it should be called; one launch for all of them."""

from pathlib import Path

import pytest

from tests.experiments.audit.asked import ask

FILES = Path(__file__).parent / "exam_files"

EXPECTED: dict[str, tuple[str, str | None, str | None]] = {
    "closure": ("same", None, None),
    "sparse_embedding": ("same", None, None),
    "sharded_optimizer": ("same", None, None),
    "whole_script": ("same", None, None),
    "moments_lost_on_rank_1": ("different", "replicas", "optimizer_state"),
    "clipped_before_reduction": ("different", "gradient", "per_rank_clip"),
    "clipped_by_shard": ("different", "gradient", "local_norm"),
    "penalty_in_every_microbatch": ("different", "gradient", "regulariser"),
    "last_one_divided": ("different", "gradient", "unknown"),
    "computed_in_float32": ("different", "gradient", "precision"),
    "not_finite": ("vacuous", None, "unknown"),
    "no_valid_token": ("vacuous", None, "stepped_on_empty"),
}
SAYS = {
    "penalty_in_every_microbatch": "does not depend on the samples",
    "clipped_by_shard": 'ctx.note("norm", norm)',
    "not_finite": "not finite",
    "last_one_divided": "re-weighting",
}


REPORTS = ask({name: FILES / f"{name}.py" for name in EXPECTED})


@pytest.mark.parametrize("name", EXPECTED)
def test_a_step_gets_its_verdict_and_its_cause(name: str) -> None:
    report = REPORTS[name]
    assert (report.verdict, report.first_difference, report.cause) == EXPECTED[name], report


@pytest.mark.parametrize("name", SAYS)
def test_what_has_no_cause_of_its_own_is_said_in_a_sentence(name: str) -> None:
    assert SAYS[name] in str(REPORTS[name])
