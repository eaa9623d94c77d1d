"""What may help when a file cannot be run under the audit's conditions."""

import pytest

from samestep.experiments.audit.running.hints import hint
from samestep.experiments.audit.settings import Settings


@pytest.mark.parametrize(
    ("doing", "text", "helps"),
    [
        ("reference on one process", "RuntimeError: expected m1 and m2 to have the same dtype", "--dtype float32"),
        ("plan ragged: step()", "was killed by SIGABRT\n gloo::EnforceNotMet", "--plan contiguous"),
        ("plan tail: step()", "AssertionError\n    assert len(batch) == 4", "--plan contiguous"),
        ("reference on one process", "AssertionError\n    assert x.shape[0] == 4", "reference(ctx, model"),
    ],
)
def test_the_option_that_helps_is_named(doing: str, text: str, helps: str) -> None:
    assert helps in hint(Settings(), doing, text)


@pytest.mark.parametrize(
    ("settings", "doing", "text"),
    [
        (Settings(), "plan ragged: step()", "LookupError: the shard of rank 1 is missing"),
        (Settings(), "plan contiguous: step()", "RuntimeError: shapes must match"),
        (Settings(dtype="float32"), "reference on one process", "RuntimeError: expected the same dtype"),
    ],
)
def test_nothing_is_advised_that_would_not_help(settings: Settings, doing: str, text: str) -> None:
    assert hint(settings, doing, text) == ""
