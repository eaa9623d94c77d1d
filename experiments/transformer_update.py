"""Split into micro-batches and processes: is it still the same update of a whole Transformer?

    python -m experiments run transformer_update

Set-up. The trained tiny Transformer (298,176 parameters, see `train_tiny`), four real windows of 96 tokens and the
token after each, and a number of supervised labels at the end of every window, set by hand so that only the
denominators differ. From the same weights every path (see `update_paths`) makes one update: SGD with a fresh state,
and AdamW restored from step 800. Two processes under real DistributedDataParallel on Gloo hold two windows each.

Reference. One process, one batch of all four windows, sum of losses over the N labels divided by N; each optimizer is
compared with its own reference.

What is compared. Loss, and the largest absolute difference over all parameters of gradient, updated weights, AdamW's
moments and step; and the processes with each other, by digest. Every path has a stated expectation in every case: mean
rules must agree at equal counts, differ at unequal ones, and are undefined where a mean is taken over no labels.
"""

from collections.abc import Mapping
from pathlib import Path as File
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from samestep.app.evidence.bags import DIFFERS, Control, Expectation, Json, Result, Row, TensorSet, Text, sha256_of
from samestep.experiments import corpus, tokenizer
from samestep.experiments.measured import arrays, difference, difference_over, environment, plain
from samestep.experiments.ranks.world import World
from samestep.experiments.results import control, result, row
from samestep.experiments.tensors import canonical_sha256, load, raw_sha256, save
from samestep.experiments.tiny_transformer import PARAMETERS, WINDOW, TinyTransformer, parameter_count
from samestep.experiments.train_tiny import FLOOR, LEARNING_RATE, adamw, optimizer_state, restore, restore_optimizer
from samestep.experiments.update_paths import (
    CASES,
    PATHS,
    Named,
    Path,
    Share,
    compute,
    gradient_of,
    labels,
    reference,
    whole_batch,
    window_sum,
)

QUESTION: Text = {
    "zh": "完整模型里，拆成微批和两进程后还是同一次更新吗？",
    "en": "In a whole model, split into micro-batches and two processes: is it still the same update?",
}
PROCESSES = 2
ALONE = True
NEEDS = ("train_tiny",)
CORPUS = True
SCOPE: Text = {
    "zh": "CPU float64、固定、无 dropout、显式 softmax 注意力，298,176 个参数，一次更新。不做 CUDA/NCCL、混合精度、"
    "裁剪或训练质量结论；监督后缀人工指定，没有聊天模板。",
    "en": "CPU float64, fixed, no dropout, explicit softmax attention, 298,176 parameters, one update. Nothing on "
    "CUDA/NCCL, mixed precision, clipping or training quality is concluded; the supervised suffixes are set by hand.",
}
OPTIMIZERS = ("sgd", "adamw")
SGD_RATE = 0.1
ADAMW_RATE = LEARNING_RATE * FLOOR
"""The rate at which the training ended."""
MAX_NORM = 1.0
WINDOWS = 4
FOUR_TIMES = "four_times_then_clipped"

TITLES: dict[str, Text] = {
    FOUR_TIMES: {"zh": "梯度大了 4 倍，随后裁剪", "en": "a gradient four times too large, then clipped"},
    "coordinated_skip": {"zh": "归约 N，发现为 0，一起跳步", "en": "N is reduced, found to be 0, all skip"},
    "none_gradients_step": {"zh": "梯度为 None，仍调用 step", "en": "gradients are None, step is called"},
    "zero_loss_step": {"zh": "零损失反传后仍调用 step", "en": "a zero loss is backpropagated, step is called"},
}
SKIPS = ("coordinated_skip", "none_gradients_step", "zero_loss_step")
NOTES: dict[str, Text] = {
    FOUR_TIMES: {
        "zh": "裁剪之后看不出差别：要在裁剪之前比较梯度",
        "en": "after the clip nothing shows: compare gradients before it",
    },
    "zero_loss_step": {
        "zh": "梯度恰为 0，AdamW 仍因衰减与历史矩移动权重并推进步数",
        "en": "the gradient is exactly 0, yet AdamW moves weights by decay and moments and counts a step",
    },
    "empty_mean": {
        "zh": "loss 是 NaN；框架的交叉熵仍给出梯度，等于把空均值当作 0",
        "en": "the loss is NaN; the framework's cross-entropy still gives a gradient, as if the empty mean were 0",
    },
}


# ---- set-up: where every path starts ----------------------------------------------------------------------------


class Start(NamedTuple):
    """Weights, AdamW's state after the last training step, and the windows [4, 97]."""

    weights: Mapping[str, NDArray[Any]]
    moments: Mapping[str, NDArray[Any]]
    windows: Tensor

    def model(self) -> TinyTransformer:
        model = TinyTransformer()
        restore(model, self.weights)
        return model

    def ready(self, optimizer: str) -> tuple[TinyTransformer, torch.optim.Optimizer]:
        """A model and its optimizer, as they are before the update."""
        model = self.model()
        if optimizer == "sgd":
            return model, torch.optim.SGD(model.parameters(), SGD_RATE)
        stepper = adamw(model, ADAMW_RATE)
        restore_optimizer(model, stepper, self.moments)
        return model, stepper


def draw(documents: list[corpus.Document], learnt: tokenizer.Tokenizer) -> tuple[Tensor, list[Json]]:
    """Four windows, a fifth to four fifths into four documents, each beginning with a whole character."""
    windows: list[list[int]] = []
    origins: list[Json] = []
    for k in range(WINDOWS):
        document = documents[k * (len(documents) - 1) // (WINDOWS - 1)]
        stream = [tokenizer.BOS, *learnt.encode(document.text), tokenizer.EOS]
        start = len(stream) * (k + 1) // (WINDOWS + 1)
        while learnt.bytes_of[stream[start]][0] & 0xC0 == 0x80:  # in the middle of a character
            start += 1
        windows.append(stream[start : start + WINDOW + 1])
        origins.append({"document": document.name, "token": start, "text": learnt.decode(windows[-1])})
    return torch.tensor(windows), origins


# ---- run: one update --------------------------------------------------------------------------------------------


class Updated(NamedTuple):
    """Weights after (or before) an update, and AdamW's moments and steps (none for SGD)."""

    weights: Named
    state: Named

    def part(self, key: str) -> Named:
        return {name: tensor for name, tensor in self.state.items() if name.startswith(f"{key}.")}


def update(start: Start, optimizer: str, gradient: Named | None) -> Updated:
    """One step from the start; a gradient of None leaves every parameter without one."""
    model, stepper = start.ready(optimizer)
    for name, parameter in model.named_parameters():
        parameter.grad = None if gradient is None else gradient[name].clone()
    stepper.step()
    return snapshot(model, stepper)


def snapshot(model: TinyTransformer, stepper: torch.optim.Optimizer) -> Updated:
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    return Updated(weights, {name: tensor.clone() for name, tensor in optimizer_state(model, stepper).items()})


# ---- run: everything on this process ----------------------------------------------------------------------------


class Finding(NamedTuple):
    """One row as this process sees it: differences from the reference, digests, collectives, loss."""

    differences: dict[str, float | None]
    digests: dict[str, str]
    collectives: int = 0
    loss: Json = None


Findings = dict[tuple[str, str, str], Finding]
"""By case, path and optimizer (empty where none took part)."""


def digests(**sets: Named) -> dict[str, str]:
    """`NAME_raw_sha256` and, where all values are finite, `NAME_canonical_sha256`; nothing for an empty set."""
    found = {}
    for name, tensors in sets.items():
        if tensors:
            found[f"{name}_raw_sha256"] = raw_sha256(arrays(tensors))
            if all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
                found[f"{name}_canonical_sha256"] = canonical_sha256(arrays(tensors))
    return found


def differences(got: Updated, wanted: Updated) -> dict[str, float | None]:
    found = {"weights": difference_over(got.weights, wanted.weights)}
    if wanted.state:
        found |= {key: difference_over(got.part(key), wanted.part(key)) for key in ("exp_avg", "exp_avg_sq", "step")}
    return found


def measure(world: World, start: Start, group: dist.ProcessGroup) -> Findings:
    """Every path in every case, then clipping and the ways to go on without any label."""
    found: Findings = {}
    for case_name, case in CASES.items():
        world.step(f"transformer_update: {case.title['en']}")
        wanted = reference(start.model(), start.windows, case)
        updates = {optimizer: update(start, optimizer, wanted.gradient) for optimizer in OPTIMIZERS}
        for name, path in PATHS.items():
            if case_name not in path.behaviour:
                continue
            got = compute(start.model(), start.windows, case, path, group)
            apart = {"loss": difference(got.loss, wanted.loss)}
            if not case.total:  # no update to compare: there is no objective
                found[case_name, name, ""] = Finding(apart, {}, got.collectives, plain(got.loss))
                continue
            apart["gradient"] = difference_over(got.gradient, wanted.gradient)
            for optimizer in OPTIMIZERS:
                after = update(start, optimizer, got.gradient)
                found[case_name, name, optimizer] = Finding(
                    apart | differences(after, updates[optimizer]),
                    digests(gradient=got.gradient, weights=after.weights, state=after.state),
                    got.collectives,
                    plain(got.loss),
                )
    world.step("transformer_update: clipping and skipping")
    return found | clipped(start) | skipped(start, group)


def clipped(start: Start) -> Findings:
    """A gradient four times too large, then clipped: what clipping hides."""
    right = reference(start.model(), start.windows, CASES["unequal"]).gradient
    wrong = {name: 4 * gradient for name, gradient in right.items()}
    one, other = clip(right), clip(wrong)
    found: Findings = {}
    for optimizer in OPTIMIZERS:
        got, wanted = update(start, optimizer, other), update(start, optimizer, one)
        apart = {"gradient": difference_over(wrong, right), "clipped_gradient": difference_over(other, one)}
        sets = digests(gradient=wrong, weights=got.weights, state=got.state)
        found["unequal", FOUR_TIMES, optimizer] = Finding(apart | differences(got, wanted), sets)
    return found


def clip(gradient: Named) -> Named:
    """Multiply by min(1, MAX_NORM / norm)."""
    factor = min(1.0, MAX_NORM / norm_of(gradient))
    return {name: factor * tensor for name, tensor in gradient.items()}


def norm_of(gradient: Named) -> float:
    return float(torch.cat([tensor.flatten() for tensor in gradient.values()]).norm())


def skipped(start: Start, group: dist.ProcessGroup) -> Findings:
    """N = 0: the whole state before, and after three ways to go on."""
    found: Findings = {}
    for optimizer in OPTIMIZERS:
        before = snapshot(*start.ready(optimizer))
        count = torch.tensor(CASES["none"].total)
        dist.all_reduce(count, group=group)
        after = {
            "coordinated_skip": before if count == 0 else update(start, optimizer, None),
            "none_gradients_step": update(start, optimizer, None),
            "zero_loss_step": update(start, optimizer, zero_gradient(start, group)),
        }
        for name, got in after.items():
            sets = digests(weights=got.weights, state=got.state)
            found["none", name, optimizer] = Finding(differences(got, before), sets)
    return found


def zero_gradient(start: Start, group: dist.ProcessGroup) -> Named:
    """DDP with the losses' plain sum, which is 0: every gradient is exactly zero, and none is None."""
    path = Path(TITLES["zero_loss_step"], window_sum, {}, ddp=True)
    gradient = compute(start.model(), start.windows, CASES["none"], path, group).gradient
    if any(bool(tensor.any()) for tensor in gradient.values()):
        raise RuntimeError("a loss over no labels gave a gradient that is not zero")
    return gradient


def run(world: World) -> Result | None:
    """Two processes, or four. Options: `weights` (folder of train_tiny's files), `corpus` (folder)."""
    count = 4 if world.processes(PROCESSES) >= 4 else 2
    if world.size < count:
        raise ValueError("transformer_update needs at least two processes")
    folder = File(cast(str, world.options["weights"]))
    learnt = tokenizer.Tokenizer.from_json((folder / "tokenizer.json").read_text("utf-8"))
    windows, origins = draw(corpus.read(File(cast(str, world.options.get("corpus") or corpus.FOLDER))), learnt)
    start = Start(load(folder / "weights.safetensors"), load(folder / "optimizer.safetensors"), windows)
    group = world.first(count)
    everybody = world.gather(measure(world, start, group) if group is not None else {})[:count]
    if world.rank:
        return None
    world.step("transformer_update: compare")
    rows = [compare(key, [found[key] for found in everybody]) for key in everybody[0]]
    return result(
        __name__,
        count,
        question=QUESTION,
        scope=SCOPE,
        setup=setup(folder, start, origins),
        cases={name: case.title for name, case in CASES.items()},
        paths={name: path.title for name, path in PATHS.items()} | TITLES,
        rows=rows,
        controls=controls(start, rows, count),
        environment=environment(),
        tensors=keep(world.folder / "transformer_update", start, learnt),
    )


def keep(folder: File, start: Start, learnt: tokenizer.Tokenizer) -> dict[str, TensorSet]:
    """The files of the bag: gradient sums of each window (all other gradients follow from them), windows, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    sums: Named = {}
    for k in range(WINDOWS):
        model = start.model()
        wanted = labels(start.windows, CASES["unequal"].counts)
        torch.autograd.backward(window_sum(model, Share(start.windows[:, :-1], wanted, torch.tensor(1), 1), k))
        sums |= {f"window{k}.{name}": tensor for name, tensor in gradient_of(model).items()}
    (folder / "tokenizer.json").write_text(learnt.to_json(), "utf-8")
    return {
        "gradient_sums.safetensors": save(folder / "gradient_sums.safetensors", arrays(sums)),
        "windows.safetensors": save(folder / "windows.safetensors", arrays({"tokens": start.windows})),
    }


def setup(folder: File, start: Start, origins: list[Json]) -> dict[str, Json]:
    references: dict[str, Json] = {}
    for name, case in CASES.items():
        if case.total:
            found = reference(start.model(), start.windows, case)
            references[name] = {
                "loss": plain(found.loss),
                "gradient_norm": norm_of(found.gradient),
                **digests(gradient=found.gradient),
            }
    initial: Json = [
        {"file": f"train_tiny/data/{name}", "sha256": sha256_of(folder / name)}
        for name in ("weights.safetensors", "optimizer.safetensors", "tokenizer.json")
    ]
    return {
        "parameters": parameter_count(start.model()),
        "initial": initial,
        "windows": origins,
        "supervision": {name: list(case.counts) for name, case in CASES.items()},
        "supervision_rule": "of the 96 labels of a window the last n count, all others are ignored",
        "sgd": {"learning_rate": SGD_RATE},
        "adamw": {"learning_rate": ADAMW_RATE, "state": "as after the last training step"},
        "max_norm": MAX_NORM,
        "references": references,
    }


# ---- compare ----------------------------------------------------------------------------------------------------


def compare(key: tuple[str, str, str], processes: list[Finding]) -> Row:
    """One row: what the first process found, provided that all processes have the same bits."""
    case, name, optimizer = key
    first = processes[0]
    alike = all((found.digests, found.differences) == (first.digests, first.differences) for found in processes)
    path = PATHS.get(name)
    communicated = (first.collectives > 0) == (path is not None and path.ddp)
    expectation, expected, note = expectations(case, name, optimizer)
    return row(
        case,
        name,
        path.title if path else TITLES[name],
        expectation,
        first.differences,
        expected=expected,
        optimizer=optimizer or None,
        also=alike and communicated,
        note=note,
        values={
            "loss": first.loss,
            "processes_agree": alike,
            "collectives": first.collectives,
            "ranks": [cast(Json, found.digests) for found in processes],
        },
    )


def expectations(case: str, name: str, optimizer: str) -> tuple[Expectation, dict[str, Expectation], Text | None]:
    """A row's expectation, the quantities that behave otherwise, and what a reader should know."""
    if name == FOUR_TIMES:
        return "agrees", {"gradient": "differs"}, NOTES[name]
    if name in SKIPS:
        moves = name == "zero_loss_step" and optimizer == "adamw"
        return "differs" if moves else "agrees", {}, NOTES[name] if moves else None
    path = PATHS[name]
    expectation = path.behaviour[case]
    otherwise: dict[str, Expectation] = {"step": "agrees"} if optimizer == "adamw" else {}
    if expectation == "undefined" and optimizer and not path.nan_gradient:
        moved = ("gradient", "weights", *(("exp_avg", "exp_avg_sq") if optimizer == "adamw" else ()))
        return expectation, otherwise | dict.fromkeys(moved, "differs"), NOTES["empty_mean"]
    return expectation, otherwise, None


# ---- controls ---------------------------------------------------------------------------------------------------


def controls(start: Start, rows: list[Row], count: int) -> list[Control]:
    """The model is the stated one, gradients are real derivatives, clipping and no_sync did what they claim."""
    gradient = reference(start.model(), start.windows, CASES["unequal"]).gradient
    norm, parameters = norm_of(gradient), parameter_count(start.model())
    error = abs(finite_difference(start, gradient) / norm - 1)
    seen = {(each["case"], each["path"], each.get("optimizer")): each["values"] for each in rows}
    often = cast(int, seen["unequal", "ddp_global_count", "sgd"]["collectives"])
    once = cast(int, seen["unequal", "ddp_global_count_no_sync", "sgd"]["collectives"])
    rounds = WINDOWS // count
    exactly: Text = {"zh": f"恰有 {PARAMETERS:,} 个参数", "en": f"exactly {PARAMETERS:,} parameters"}
    moves: Text = {"zh": "参考梯度不为零", "en": "the reference gradient is not zero"}
    slopes: Text = {"zh": "梯度与有限差分一致", "en": "the gradient agrees with a finite difference of the loss"}
    active: Text = {"zh": "裁剪确实生效：范数大于阈值", "en": "clipping is active: the norm is above the threshold"}
    saves: Text = {"zh": "no_sync 只在最后一次反传通信", "en": "under no_sync only the last backward communicates"}
    return [
        control("parameters", exactly, parameters == PARAMETERS, parameters=parameters),
        control("moves", moves, norm > DIFFERS, gradient_norm=norm),
        control("finite_difference", slopes, error < 1e-7, gradient_norm=norm, relative_error=error),
        control("clipping_active", active, norm > MAX_NORM, gradient_norm=norm, max_norm=MAX_NORM),
        control("no_sync_saves", saves, 0 < once * rounds <= often, every_backward=often, no_sync=once),
    ]


def finite_difference(start: Start, gradient: Named) -> float:
    """The slope of the loss along its gradient, which should be the gradient's norm."""
    model, norm, step = start.model(), norm_of(gradient), 1e-5
    case = CASES["unequal"]
    share = Share(start.windows[:, :-1], labels(start.windows, case.counts), torch.tensor(case.total), 1)
    losses = []
    with torch.no_grad():
        for sign in (1, -1):
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.from_numpy(start.weights[name]) + sign * step * gradient[name] / norm)
            losses.append(float(whole_batch(model, share)))
    return (losses[0] - losses[1]) / (2 * step)
