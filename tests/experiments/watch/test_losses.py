"""Every way to write a loss of tokens: the weights that are read beside those that float64 autograd gives.

Independent of what is read: with p the softmax of the logits z and q the target distribution, ∂ℓ_i/∂z_i = p_i − q_i, so
the gradient of the whole loss with respect to the logits has rows w_i (p_i − q_i), from which w_i is projected.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy as named_before
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from samestep import watch
from samestep.experiments.watch import records
from samestep.experiments.watch.joined.assembling import assemble
from samestep.experiments.watch.records import Loss
from samestep.experiments.watch.session import Order, start, stop

VOCABULARY, WIDTH = 20, 8
GENERATOR = torch.Generator().manual_seed(1)
IDS = torch.randint(VOCABULARY, (3, 8), generator=GENERATOR)
LABELS = IDS.roll(-1, 1).masked_fill(torch.arange(8) >= torch.tensor([[3], [6], [8]]), -100)
VALID = LABELS != -100
MASK, KNOWN = VALID.double(), LABELS.clamp(min=0)
CLASSES = torch.rand(VOCABULARY, generator=GENERATOR, dtype=torch.float64)
SOFT = torch.softmax(torch.randn(3, 8, VOCABULARY, generator=GENERATOR, dtype=torch.float64), -1)
HARD = functional.one_hot(KNOWN, VOCABULARY).double()
SMOOTH = 0.9 * HARD + 0.1 / VOCABULARY
ADVANTAGE = torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)

LogProbabilities = Callable[[Tensor], Tensor]


def flat(z: Tensor) -> Tensor:
    return z.view(-1, VOCABULARY)


def taken(z: Tensor) -> Tensor:
    return z.log_softmax(-1).gather(-1, KNOWN[..., None])[..., 0]


def beside_logsumexp(z: Tensor) -> Tensor:
    """As TRL does: row by row, to save memory."""
    return z.gather(-1, KNOWN[..., None]).squeeze(-1) - torch.stack([torch.logsumexp(row, -1) for row in z])


def row_by_row(z: Tensor) -> Tensor:
    rows = zip(z, KNOWN, strict=True)
    return torch.stack([row.log_softmax(-1).gather(-1, known[:, None]).squeeze(-1) for row, known in rows])


def clipped_ratio(z: Tensor) -> Tensor:
    """A policy gradient: a token's weight has its sequence's sign."""
    logp = taken(z)
    ratio = torch.exp(logp - logp.detach())
    each = -torch.min(ratio * ADVANTAGE, ratio.clamp(0.8, 1.2) * ADVANTAGE)
    return ((each * MASK).sum(-1) / MASK.sum(-1)).mean()


def indexed(p: Tensor) -> Tensor:
    return p[torch.arange(3)[:, None], torch.arange(8), KNOWN]


def by_counts(z: Tensor) -> Tensor:
    counts = z.exp()
    each = -torch.log(indexed(counts / counts.sum(-1, keepdim=True)))
    return (each * MASK).sum() / MASK.sum()


def maximum_added(z: Tensor) -> Tensor:
    """As vocabularies are cut over ranks: z − log Σ exp(z − m) − m."""
    top = z.detach().amax(-1, keepdim=True)
    total = (z - top).exp().sum(-1, keepdim=True).log() + top
    return -((z - total).gather(-1, KNOWN[..., None])[..., 0] * MASK).sum() / 7


def shifted_in_place(z: Tensor) -> Tensor:
    y = z - z.detach().amax(-1, keepdim=True)
    return ((y.exp().sum(-1).log() - y.gather(-1, KNOWN[..., None])[..., 0]) * MASK).sum() / MASK.sum()


def smoothed_by_hand(z: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
    """A picked log-probability, and a part for all classes alike."""
    logp = z.log_softmax(-1)
    each = -0.9 * logp.gather(-1, KNOWN[..., None])[..., 0] - 0.1 * total(logp)
    return (each * MASK).sum() / MASK.sum()


def with_entropy(z: Tensor) -> Tensor:
    logp = z.log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    return functional.nll_loss(flat(logp), LABELS.view(-1)) - 0.01 * entropy.mean()


HARD_LABELS: dict[str, LogProbabilities] = {
    "cross_entropy": lambda z: functional.cross_entropy(flat(z), LABELS.view(-1)),
    "a name imported before": lambda z: named_before(flat(z), LABELS.view(-1)),
    "CrossEntropyLoss": lambda z: nn.CrossEntropyLoss()(flat(z), LABELS.view(-1)),
    "classes in the second axis": lambda z: functional.cross_entropy(z.transpose(1, 2), LABELS),
    "sum divided by hand": lambda z: functional.cross_entropy(flat(z), LABELS.view(-1), reduction="sum") / 5,
    "masked by hand": lambda z: (
        (functional.cross_entropy(flat(z), KNOWN.view(-1), reduction="none") * MASK.view(-1)).sum() / MASK.sum()
    ),
    "nll_loss": lambda z: functional.nll_loss(flat(z.log_softmax(-1)), LABELS.view(-1)),
    "aten": lambda z: torch.ops.aten.cross_entropy_loss(flat(z), LABELS.view(-1)),
    "log_softmax and gather": lambda z: -(taken(z) * MASK).sum() / MASK.sum(),
    "log_softmax and index": lambda z: (
        -(z.log_softmax(-1)[torch.arange(3)[:, None], torch.arange(8), KNOWN] * MASK).sum() / 7
    ),
    "log of softmax and gather": lambda z: (
        -(torch.log(z.softmax(-1)).gather(-1, KNOWN[..., None])[..., 0] * MASK).sum() / 7
    ),
    "gathered before the log": lambda z: (
        -(torch.log(z.softmax(-1).gather(-1, KNOWN[..., None])[..., 0] + 1e-30) * MASK).sum() / 7
    ),
    "probabilities by hand": lambda z: (
        -(indexed(z.exp() / z.exp().sum(-1, keepdim=True)).log() * MASK).sum() / MASK.sum()
    ),
    "probabilities of one exponential": by_counts,
    "minus logsumexp": lambda z: (
        -((z - z.logsumexp(-1, keepdim=True)).gather(-1, KNOWN[..., None])[..., 0] * MASK).sum() / 7
    ),
    "minus logsumexp, one-hot": lambda z: -((z - z.logsumexp(-1, keepdim=True)) * HARD * MASK[..., None]).sum() / 7,
    "nll_loss of logits minus logsumexp": lambda z: functional.nll_loss(
        flat(z - z.logsumexp(-1, keepdim=True)), LABELS.view(-1)
    ),
    "log of a sum of exponentials": shifted_in_place,
    "with its maximum added again": maximum_added,
    "one-hot product": lambda z: -(z.log_softmax(-1) * HARD * MASK[..., None]).sum() / 7,
    "einsum": lambda z: -torch.einsum("btv,btv,bt->", z.log_softmax(-1), HARD, MASK) / 7,
    "gather beside logsumexp": lambda z: -(beside_logsumexp(z) * MASK).sum() / MASK.sum(),
    "row by row": lambda z: -(row_by_row(z) * MASK).sum() / MASK.sum(),
    "a mean for each sequence": lambda z: (-(row_by_row(z) * MASK).sum(-1) / MASK.sum(-1)).mean(),
    "in chunks": lambda z: (
        sum(
            (
                functional.cross_entropy(flat(part), labels.view(-1), reduction="sum")
                for part, labels in zip(z.split(1), LABELS.split(1), strict=True)
            ),
            torch.zeros((), dtype=torch.float64),
        )
        / MASK.sum()
    ),
    "clipped ratio": clipped_ratio,
    "inside a checkpoint": lambda z: checkpoint(
        lambda each: functional.cross_entropy(flat(each), LABELS.view(-1)), z, use_reentrant=False
    ),
    "inside a reentrant checkpoint": lambda z: checkpoint(
        lambda each: functional.cross_entropy(flat(each), LABELS.view(-1)), z, use_reentrant=True
    ),
    "a dot product of per-token losses": lambda z: (
        functional.cross_entropy(flat(z), LABELS.view(-1), reduction="none") @ (MASK.view(-1) / 9)
    ),
}


TARGETS: dict[str, tuple[LogProbabilities, Tensor]] = {
    **{name: (loss, HARD) for name, loss in HARD_LABELS.items()},
    "smoothed": (lambda z: functional.cross_entropy(flat(z), LABELS.view(-1), label_smoothing=0.1), SMOOTH),
    "smoothed by hand": (lambda z: smoothed_by_hand(z, lambda p: p.sum(-1) / VOCABULARY), SMOOTH),
    "smoothed by hand with a mean": (lambda z: smoothed_by_hand(z, lambda p: p.mean(-1)), SMOOTH),
    "soft targets": (lambda z: functional.cross_entropy(flat(z), SOFT.view(-1, VOCABULARY)), SOFT),
    "distillation": (
        lambda z: functional.kl_div(flat(z.log_softmax(-1)), SOFT.view(-1, VOCABULARY), reduction="batchmean"),
        SOFT,
    ),
    "class weights": (lambda z: functional.cross_entropy(flat(z), LABELS.view(-1), weight=CLASSES), HARD),
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.embedding(ids)))
        return logits


class Waits(TorchFunctionMode):
    """Calls that need a tensor's numbers on the host: on a GPU each of them would wait for it."""

    NUMBERS = ("__bool__", "__float__", "__index__", "__int__", "cpu", "equal", "item", "numpy", "tolist")
    SHAPES = ("masked_select", "nonzero", "unique")

    def __init__(self) -> None:
        super().__init__()
        self.met: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__
        index = args[1] if name == "__getitem__" else None
        masks = isinstance(index, Tensor) and index.dtype == torch.bool
        if name in (*self.NUMBERS, *self.SHAPES) or masks:
            self.met.append(name)
        return function(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Stepped:
    """One update: its backward as it was written down, and what waited for numbers in the backward and in the step."""

    cell: records.Cell
    in_backward: list[str]
    in_step: list[str]


Step = Callable[[LogProbabilities], Stepped]


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Step]:
    """`stepped(loss)`: one update with it, made once. What was imported before need not be looked through each time."""
    gc.freeze()

    @cache
    def made(loss: LogProbabilities) -> Stepped:
        folder = tmp_path_factory.mktemp("step")
        backward, step = Waits(), Waits()
        session = start(Order(str(folder)))
        try:
            model = Model().double()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # reentrant checkpoints warn of themselves
                value = loss(model(IDS))
                with backward:
                    value.backward()
            with step:
                optimizer.step()
        finally:
            stop(session)
        log = records.ranks(folder)[0]
        assert log.faults == []
        return Stepped(log.updates[0].cells[0], backward.met, step.met)

    yield made
    gc.unfreeze()


@pytest.fixture
def step(stepped: Step) -> Callable[[LogProbabilities], records.Cell]:
    """`step(loss)`: the backward of one update with it, as it was written down."""
    return lambda loss: stepped(loss).cell


def contrasted(z: Tensor) -> Tensor:
    """Every row against all others: its label is its own position."""
    return functional.cross_entropy(z.mean(1) @ z.sum(1).T, torch.arange(3))


@pytest.mark.parametrize("loss", [*(loss for loss, _ in TARGETS.values()), contrasted], ids=[*TARGETS, "contrastive"])
def test_no_backward_waits_for_a_device_and_a_step_does_once(stepped: Step, loss: LogProbabilities) -> None:
    with Waits() as control:
        assert bool(LABELS.diff().eq(1).any())
    assert control.met == ["__bool__"]
    assert (stepped(loss).in_backward, stepped(loss).in_step) == ([], ["cpu", "numpy"])


def all_tokens(losses: tuple[Loss, ...]) -> Tensor:
    return torch.cat([torch.from_numpy(loss.weights) for loss in losses if loss.weights is not None])


def by_autograd(loss: LogProbabilities, target: Tensor) -> Tensor:
    """[24] w_i, from the gradient with respect to the logits."""
    logits = Model().double()(IDS).detach().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (gradient,) = torch.autograd.grad(loss(logits), logits) if loss is not REENTRANT else (_backward(loss, logits),)
    pattern = logits.detach().softmax(-1) - target
    weights: Tensor = (gradient * pattern).sum(-1) / pattern.square().sum(-1)
    assert torch.allclose(gradient, weights[..., None] * pattern, atol=1e-12)
    return weights.view(-1)


REENTRANT = HARD_LABELS["inside a reentrant checkpoint"]


def _backward(loss: LogProbabilities, logits: Tensor) -> Tensor:
    """A reentrant checkpoint allows no torch.autograd.grad."""
    loss(logits).backward()
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize("name", TARGETS)
def test_every_token_has_the_weight_that_autograd_gives_it(
    step: Callable[[LogProbabilities], records.Cell], name: str
) -> None:
    loss, target = TARGETS[name]
    cell = step(loss)
    assert cell.losses, "no loss was recognised"
    assert torch.allclose(all_tokens(cell.losses), by_autograd(loss, target), rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("name", ["cross_entropy", "classes in the second axis", "inside a checkpoint", "smoothed"])
def test_batch_and_time_survive_the_flattening(step: Callable[[LogProbabilities], records.Cell], name: str) -> None:
    (loss,) = step(TARGETS[name][0]).losses
    assert loss.shape == (3, 8)


def test_an_entropy_beside_the_loss_does_not_blur_its_weights(step: Callable[[LogProbabilities], records.Cell]) -> None:
    cell = step(with_entropy)
    (loss,) = cell.losses
    assert torch.allclose(all_tokens((loss,)), MASK.view(-1) / MASK.sum(), rtol=1e-12)
    assert [term.factor for term in cell.terms if not term.losses] == [pytest.approx(-0.01)]


@pytest.mark.parametrize(
    ("loss", "entries", "each"),
    [
        (lambda z: functional.binary_cross_entropy_with_logits(z, SOFT), 480, 1 / 480),
        (lambda z: functional.binary_cross_entropy(z.sigmoid(), SOFT, reduction="sum"), 480, 1.0),
        (lambda z: functional.mse_loss(z, SOFT), 480, 1 / 480),
        (lambda z: functional.smooth_l1_loss(z, SOFT, reduction="none").sum() / 7, 480, 1 / 7),
        (lambda z: functional.huber_loss(z, SOFT) * 3, 480, 1 / 160),
    ],
    ids=["bce_with_logits", "bce", "mse", "smooth_l1", "huber"],
)
def test_element_wise_losses_weigh_elements(
    step: Callable[[LogProbabilities], records.Cell], loss: LogProbabilities, entries: int, each: float
) -> None:
    weights = all_tokens(step(loss).losses)
    assert weights.tolist() == pytest.approx([each] * entries)


def test_a_marked_loss_has_the_weights_of_its_tensor(step: Callable[[LogProbabilities], records.Cell]) -> None:
    cell = step(lambda z: (watch.tokens(z.square().mean(-1), VALID) * MASK / 11).sum())
    (loss,) = cell.losses
    assert loss.kind == "marked"
    assert loss.valid is not None
    assert loss.valid.tolist() == VALID.view(-1).tolist()
    assert all_tokens((loss,)).tolist() == pytest.approx((MASK.view(-1) / 11).tolist())


def test_a_mark_is_returned_as_it_is_and_a_mask_of_another_shape_is_refused() -> None:
    loss = torch.ones(3, requires_grad=True) * 2
    assert watch.tokens(loss) is loss
    with pytest.raises(ValueError, match=r"mask has shape \[2\], loss \[3\]"):
        watch.tokens(loss, torch.ones(2))


def test_what_is_normalised_over_all_tokens_at_once_is_no_loss_of_tokens(
    step: Callable[[LogProbabilities], records.Cell],
) -> None:
    cell = step(lambda z: (z.exp().sum().log() - z.gather(-1, KNOWN[..., None])).mean())
    assert (cell.losses, cell.ends[:2]) == ((), ("Mean", "Log"))


def test_a_mean_square_by_hand_is_no_loss_of_tokens(step: Callable[[LogProbabilities], records.Cell]) -> None:
    cell = step(lambda z: (z - SOFT).square().mean())
    assert cell.losses == ()
    assert cell.ends == ("Mean", "Pow")


def test_a_function_of_ones_own_is_named_where_the_loss_ends(step: Callable[[LogProbabilities], records.Cell]) -> None:
    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(context: object, z: Tensor) -> Tensor:
            return z.mean()

        @staticmethod
        def backward(context: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient.expand(3, 8, VOCABULARY) / 480

    cell = step(lambda z: Fused.apply(z))
    assert (cell.losses, cell.ends) == ((), ("Fused",))


def test_a_loss_in_torchscript_still_compiles(step: Callable[[LogProbabilities], records.Cell]) -> None:
    def scripted(z: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated, and used all the same
            made = torch.jit.script(nn.CrossEntropyLoss())
        result: Tensor = made(flat(z), LABELS.view(-1))
        return result

    assert step(scripted).contribution


def test_a_compiled_loss_is_said_to_hide_its_tokens_and_shows_them_when_run_as_written(tmp_path: Path) -> None:
    compiled = torch.compile(lambda z: functional.cross_entropy(flat(z), LABELS.view(-1)), backend="aot_eager")
    for eager, verdict in ((False, "not_explained"), (True, "same")):
        folder = tmp_path / str(eager)
        folder.mkdir()
        session = start(Order(str(folder), eager=eager))
        try:
            model = Model().double()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's own
                compiled(model(IDS)).backward()
            optimizer.step()
        finally:
            stop(session)
        report = assemble(folder, "tokens")
        assert report.verdict == verdict, report
        assert ("--eager" in report.sentence["en"]) is not eager
