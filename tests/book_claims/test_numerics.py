"""Sentences of the book on losses, optimizers and half precision in PyTorch, each done in one process."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DistributedSampler

IGNORED = -100


# --- an empty cell


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_mean_over_ignored_labels_has_a_loss_of_nan_and_a_gradient_of_zero(dtype: torch.dtype) -> None:
    logits = torch.linspace(-1, 1, 20, dtype=dtype).view(4, 5).requires_grad_()
    loss = cross_entropy(logits, torch.full((4,), IGNORED))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.isnan()
    assert logits.grad is not None
    assert not logits.grad.any()


def test_a_mean_over_a_mask_written_by_hand_fills_the_gradient_with_nan() -> None:
    logits = torch.linspace(-1, 1, 20).view(4, 5).requires_grad_()
    mask = torch.zeros(4)
    losses = cross_entropy(logits, torch.zeros(4, dtype=torch.long), reduction="none")
    ((losses * mask).sum() / mask.sum()).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert bool(logits.grad.isnan().all())


# --- optimizers


@pytest.mark.parametrize(("beta2", "moved"), [(0.999, 2.515), (0.95, 0.447)])
def test_how_far_the_row_of_a_rare_token_jumps_depends_on_beta2(beta2: float, moved: float) -> None:
    rows = nn.Embedding(2, 1, dtype=torch.float64)
    optimizer = torch.optim.AdamW(rows.parameters(), lr=1.0, betas=(0.9, beta2), weight_decay=0.0)
    for tokens in [[0]] * 999 + [[0, 1]]:
        before = rows.weight.detach().clone()
        optimizer.zero_grad()
        rows(torch.tensor(tokens)).sum().backward()
        optimizer.step()
    assert float((before - rows.weight.detach())[1]) == pytest.approx(moved, abs=5e-4)


@pytest.mark.parametrize(("dtype", "after"), [(torch.bfloat16, 1.0), (torch.float32, 0.697)])
def test_adamw_leaves_a_bfloat16_weight_of_one_where_it_is(dtype: torch.dtype, after: float) -> None:
    weight = nn.Parameter(torch.ones(1, dtype=dtype))
    optimizer = torch.optim.AdamW([weight], lr=1e-3)
    for _ in range(300):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert weight.detach().item() == (after if dtype is torch.bfloat16 else pytest.approx(after, abs=5e-4))


@pytest.mark.parametrize(("step", "moves"), [(0.0019, False), (0.002, True)])
def test_below_one_a_bfloat16_weight_moves_by_steps_of_at_least_two_to_the_minus_nine(step: float, moves: bool) -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=step).step()
    assert (weight.detach().item() != 1.0) == moves == (step > 2.0**-9)


def muon_step(gradient: Tensor) -> Tensor:
    weight = nn.Parameter(torch.zeros_like(gradient))
    weight.grad = gradient
    torch.optim.Muon([weight], lr=1e-2).step()
    return weight.detach()


def test_muon_takes_another_step_where_a_shard_is_taken_for_the_whole_matrix() -> None:
    gradient = torch.linspace(-1, 1, 24, dtype=torch.float64).view(4, 6).sin().cumsum(0)
    of_shards = torch.cat([muon_step(shard) for shard in gradient.chunk(2)])
    assert float((muon_step(gradient) - of_shards).abs().max()) > 1e-3


# --- gradients in half precision


def test_a_thousand_microsteps_of_one_leave_256_in_a_bfloat16_gradient() -> None:
    weight = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    for _ in range(1024):
        weight.sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.item() == 256


def test_under_autocast_gradients_stay_in_float32() -> None:
    layer = nn.Linear(4, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = layer(torch.ones(1, 4))
    assert value.dtype is torch.bfloat16
    value.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype is torch.float32


def scaled(dtype: torch.dtype = torch.float32) -> tuple[torch.amp.GradScaler, torch.optim.Optimizer]:
    weight = nn.Parameter(torch.zeros(2, dtype=dtype))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(weight.sum()).backward()  # type: ignore[no-untyped-call]
    return scaler, torch.optim.SGD([weight], lr=1.0)


def twice() -> None:
    scaler, optimizer = scaled()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def unchecked() -> None:
    scaled()[0].update()


def half() -> None:
    scaler, optimizer = scaled(torch.float16)
    scaler.unscale_(optimizer)


@pytest.mark.parametrize(
    ("misuse", "refusal"),
    [(twice, "already been called"), (unchecked, "No inf checks"), (half, "unscale FP16")],
)
def test_the_scaler_refuses_what_the_chapter_says(misuse: Callable[[], None], refusal: str) -> None:
    with pytest.raises((RuntimeError, AssertionError, ValueError), match=refusal):
        misuse()


@pytest.mark.parametrize("value", [1.0, math.inf])
def test_the_scaler_returns_none_whether_it_stepped_or_not(value: float) -> None:
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.full((1,), value)
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=4.0), torch.optim.SGD([weight], lr=1.0)
    scaler.scale(torch.zeros(()))
    assert scaler.step(optimizer) is None
    scaler.update()
    assert (scaler.get_scale() < 4.0) == math.isinf(value)


def clipped(*values: float, max_norm: float = 1.0) -> Tensor:
    weight = nn.Parameter(torch.zeros(len(values)))
    weight.grad = torch.tensor(values)
    clip_grad_norm_([weight], max_norm)
    return weight.grad


def test_a_clip_turns_infinity_into_nan_and_the_rest_into_zero() -> None:
    assert [str(abs(value)) for value in clipped(3.0, math.inf, -4.0).tolist()] == ["0.0", "nan", "0.0"]


def test_a_norm_whose_squares_leave_float32_zeroes_the_gradient() -> None:
    assert not clipped(1e20, 1e20, 1e20, 1e20).any()


def test_a_negative_threshold_reverses_the_gradient() -> None:
    assert clipped(3.0, 4.0, max_norm=-1.0).tolist() == pytest.approx([-0.6, -0.8], abs=1e-6)


# --- counting by equal logits


def test_equal_logits_do_not_show_a_label_that_was_shifted_twice() -> None:
    """Each label costs ln V wherever it stands, so a count on the tensor that goes in agrees all the same."""
    vocabulary = 50
    labels = torch.arange(20).view(4, 5)
    twice_shifted = torch.cat([labels[:, 1:], torch.full((4, 1), IGNORED)], 1)[:, 1:]
    logits = torch.zeros(*twice_shifted.shape, vocabulary)
    loss = cross_entropy(logits.flatten(0, 1), twice_shifted.flatten(), reduction="sum")
    assert float(loss) / math.log(vocabulary) == pytest.approx(int((twice_shifted != IGNORED).sum()), rel=1e-6)


# --- counts in a checkpoint


def after_a_restart(
    schedule: Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler],
) -> tuple[float, float, float]:
    """Rates after 50 updates of 100, restored where 1,000 are configured: of the next update, of the one after it,
    and what the latter would have been without the restart."""

    def trainer(total: int) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.LRScheduler]:
        parameter = torch.ones(1, requires_grad=True)
        parameter.grad = torch.ones(1)
        optimizer = torch.optim.AdamW([parameter], lr=1)
        return optimizer, schedule(optimizer, total)

    saved, scheduler = trainer(100)
    for _ in range(50):
        saved.step()
        scheduler.step()
    optimizer, resumed = trainer(1000)
    optimizer.load_state_dict(saved.state_dict())
    resumed.load_state_dict(scheduler.state_dict())
    assert resumed.last_epoch == 50
    assert [state["step"] for state in optimizer.state.values()] == [50]
    first = optimizer.param_groups[0]["lr"]
    for one, clock in ((optimizer, resumed), (saved, scheduler)):
        one.step()
        clock.step()
    return first, optimizer.param_groups[0]["lr"], saved.param_groups[0]["lr"]


def test_a_restored_scheduler_applies_the_new_function_to_the_old_count_from_its_next_step_on() -> None:
    found = after_a_restart(
        lambda optimizer, total: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: 1 - count / total)
    )
    assert found == (1 - 50 / 100, 1 - 51 / 1000, 1 - 51 / 100)


def test_a_restored_scheduler_that_holds_its_length_stays_on_the_old_schedule() -> None:
    _, resumed, without = after_a_restart(torch.optim.lr_scheduler.CosineAnnealingLR)
    assert resumed == without


def test_what_ranks_have_read_is_a_prefix_of_one_permutation_known_by_its_number_of_samples() -> None:
    def read(ranks: int, each: int) -> set[int]:
        samplers = [DistributedSampler(range(1000), ranks, rank, seed=3) for rank in range(ranks)]  # type: ignore[arg-type, var-annotated]
        return {index for sampler in samplers for index in list(sampler)[:each]}

    assert read(8, 50) == read(4, 100) == read(1, 400)
    assert len(read(8, 50) - read(4, 50)) == 200


def test_the_growth_counter_of_a_scaler_counts_finite_attempts_in_a_row_and_is_saved() -> None:
    scaler = torch.amp.GradScaler("cpu")
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    found = []
    for factor in (1.0, 1.0, math.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale(weight.sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append(scaler.state_dict()["_growth_tracker"])
    assert found == [1, 2, 0, 1]
