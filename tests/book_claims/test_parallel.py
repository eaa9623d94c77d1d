"""Sentences of the book on DDP, Gloo and FSDP2, each done by two real processes (`parallel_ranks.py`), one launch."""

import json
from typing import Any

import pytest

from samestep.experiments.ranks.launch import Job, launch, workplace

EXACT = 1e-12


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    with workplace() as folder:
        launch(Job(["tests.book_claims.parallel_ranks"], 2), folder)
        answers: dict[str, Any] = json.loads((folder / "parallel_ranks" / "result.json").read_text())["answers"]
    return answers


@pytest.mark.parametrize("way", ["plain", "backward_in_no_sync", "one_backward_of_the_sum"])
def test_these_ways_of_running_two_microsteps_under_ddp_are_right(found: dict[str, Any], way: str) -> None:
    assert found["ddp"][way]["apart"] == 0
    assert found["ddp"][way]["off"] < EXACT


@pytest.mark.parametrize("way", ["forward_in_no_sync", "module_called", "two_forwards", "unused"])
def test_comparing_replicas_finds_each_of_the_four_traps_of_ddp(found: dict[str, Any], way: str) -> None:
    assert found["ddp"][way]["apart"] > 0.1
    assert 0.8 < found["ddp"][way]["ratio"] < 1.2, "rank 0 holds a gradient of ordinary size"


def test_of_two_forwards_and_two_backwards_only_the_first_backward_is_reduced(found: dict[str, Any]) -> None:
    assert found["ddp"]["two_forwards_keep_the_second_local"] < EXACT


def test_an_unused_parameter_is_reported_at_the_next_forward(found: dict[str, Any]) -> None:
    assert "finished reduction in the prior iteration" in found["ddp"]["unused"]["refusal"]


def test_beside_an_empty_rank_the_gradient_is_finite_and_half_of_the_token_mean(found: dict[str, Any]) -> None:
    assert found["empty_rank"]["loss_is_nan"] == [False, True]
    assert found["empty_rank"]["apart"] == 0
    assert found["empty_rank"]["off"] < EXACT


def test_the_maximum_over_a_nan_depends_on_the_rank_that_holds_it(found: dict[str, Any]) -> None:
    assert found["maximum"] == {"rank 0": ["nan", "nan"], "rank 1": ["1.0", "1.0"]}


def test_the_loss_scaler_agrees_across_the_ranks_of_fsdp2_by_itself(found: dict[str, Any]) -> None:
    assert found["scaler"]["fsdp2"] == [[4.0, 0.0], [4.0, 0.0]]


def test_the_loss_scaler_does_not_agree_where_shards_are_plain_tensors(found: dict[str, Any]) -> None:
    (scale_0, moved_0), (scale_1, moved_1) = found["scaler"]["plain"]
    assert (scale_0, scale_1) == (8.0, 4.0)
    assert moved_0 > 0 == moved_1


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_an_element_wise_optimizer_steps_on_its_shards_without_a_message(found: dict[str, Any], name: str) -> None:
    assert found["optimizers"][name]["collectives"] == 0
    assert found["optimizers"][name]["off"] < EXACT


def test_muon_communicates_in_its_step_and_takes_the_step_of_the_whole_matrix(found: dict[str, Any]) -> None:
    assert found["optimizers"]["Muon"]["collectives"] > 0
    assert found["optimizers"]["Muon"]["off"] < 2e-4, "it computes in bfloat16; see the control in test_numerics"


def test_adafactor_refuses_shards(found: dict[str, Any]) -> None:
    assert "placement" in found["optimizers"]["Adafactor"]["refusal"]


def test_what_is_written_into_the_root_between_forward_and_backward_is_lost(found: dict[str, Any]) -> None:
    assert found["sharded"]["root_after_forward"] is False
    assert found["sharded"]["write_survived"] == 0


def test_a_state_dict_between_forward_and_backward_holds_shards_and_sends_nothing(found: dict[str, Any]) -> None:
    assert found["sharded"]["state_dict"] == [True, 0]


def test_an_optimizer_built_before_sharding_moves_nothing(found: dict[str, Any]) -> None:
    assert found["sharded"]["early_optimizer_moved"] == 0


def test_gloo_refuses_a_divide_factor_in_float32(found: dict[str, Any]) -> None:
    assert "PREMUL_SUM" in found["sharded"]["refusal"]


def test_under_hybrid_sharding_the_default_is_the_mean_over_all_ranks(found: dict[str, Any]) -> None:
    assert found["hybrid"]["None"] == (1 + 10) / 2


def test_a_divide_factor_is_applied_twice_where_the_shard_dimension_has_one_rank(found: dict[str, Any]) -> None:
    assert found["hybrid"] | {"None": 0} == {"None": 0, "1.0": 11.0, "4.0": 11 / 4**2}


def test_the_sum_over_tensor_parallel_ranks_is_not_taken_in_the_reduce_dtype_of_fsdp2(found: dict[str, Any]) -> None:
    assert found["split"] == {"torch.bfloat16": 256, "torch.float32": 257}
