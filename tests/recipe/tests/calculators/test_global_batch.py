"""The number of samples of an update, counted one by one."""

from random import Random

import pytest

from tests.kit import Asked, Body, Program

asked = Asked("global_batch")


@pytest.mark.parametrize(("microbatch", "accumulation", "replicas"), [(1, 1, 1), (3, 2, 5)])
def test_every_sample_is_counted_once(microbatch: int, accumulation: int, replicas: int) -> None:
    samples = {(b, k, r) for b in range(microbatch) for k in range(accumulation) for r in range(replicas)}
    got = asked.answer(microbatch=microbatch, accumulation=accumulation, replicas=replicas)
    assert got["samples"] == len(samples)


REFUSED_FIELDS = {"microbatch": ["0", ""], "replicas": ["1.5"]}


def any_body(source: Random) -> Body:
    return {name: source.randint(1, 9) for name in ("microbatch", "accumulation", "replicas")}


PROGRAM = Program(prints=["samples"], planted=("8)", "9)"), bodies=any_body)
