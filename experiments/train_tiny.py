"""Where the weights of the tiny language model come from.

    python -m experiments train                 one process, resumable; `run train_tiny`: two, to be compared

Set-up. The frozen chapters of this book, a tokenizer learnt from them, 298,176 parameters in float64. 800 AdamW steps
of 8 windows of 96 tokens drawn from the first nine tenths of every document; the last tenth is for validation. Seed 11
for the initial weights and, in a generator of their own, for the windows. Warm-up, then a cosine down to a tenth.

What is compared. Every other process, which repeats the whole training, bit for bit; and a training that is
interrupted and resumed. The weights are no claim of quality: they are a fixed, public starting point.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samestep.app.evidence.bags import Control, Json, Result, Row, Text
from samestep.experiments import corpus
from samestep.experiments.measured import arrays, difference_over, environment
from samestep.experiments.ranks.world import World
from samestep.experiments.results import control, result, row
from samestep.experiments.tensors import describe, largest_difference, load, raw_sha256, save
from samestep.experiments.tiny import tokenizer
from samestep.experiments.tiny.tiny_transformer import (
    PARAMETERS,
    VOCABULARY,
    WINDOW,
    TinyTransformer,
    initialise,
    loss_mean,
    parameter_count,
)

QUESTION: Text = {
    "zh": "这份权重与 tokenizer 从哪里来，重复训练会得到同样的比特吗？",
    "en": "Where do these weights and this tokenizer come from, and does training again give the same bits?",
}
PROCESSES = 2
ALONE = True
CORPUS = True
TRAINING = True
SCOPE: Text = {
    "zh": "CPU、float64、单线程、固定种子、无 dropout。权重只是固定的公开起点，不代表模型质量。",
    "en": "CPU, float64, one thread, fixed seeds, no dropout. The weights are a fixed, public starting point, "
    "no claim of quality.",
}
SEED = 11
STEPS = 800
BATCH = 8
LEARNING_RATE, WARM_UP, FLOOR = 3e-3, 40, 0.1
BETAS, EPSILON, WEIGHT_DECAY, MAX_NORM = (0.9, 0.95), 1e-8, 0.1, 1.0
VALIDATE_EVERY, VALIDATION_WINDOWS = 25, 32
SAVE_EVERY = 50
EARLY = 10
"""After this many steps the weights' digests are recorded, so that a short training can be checked against them."""

Moments = dict[str, NDArray[Any]]


class Data(NamedTuple):
    """Token streams; `fingerprint` says which text and which tokenizer they come from."""

    train: Tensor
    validation: Tensor
    tokens: tokenizer.Tokenizer
    documents: list[corpus.Document]
    fingerprint: str


def prepare(folder: Path) -> Data:
    """Learn the tokenizer from the whole corpus, then cut every document at nine tenths."""
    documents = corpus.read(folder)
    learnt = tokenizer.train([document.text for document in documents])
    train: list[int] = []
    validation: list[int] = []
    for document in documents:
        stream = [tokenizer.BOS, *learnt.encode(document.text), tokenizer.EOS]
        cut = len(stream) * 9 // 10
        train += stream[:cut]
        validation += stream[cut:]
    fingerprint = " ".join([*(document.sha256 for document in documents), raw_sha256({"train": np.array(train)})])
    return Data(torch.tensor(train), torch.tensor(validation), learnt, documents, fingerprint)


# ---- training ---------------------------------------------------------------------------------------------------


class Training:
    """A training in progress: `step` updates have been made of `steps`."""

    def __init__(self, data: Data, steps: int) -> None:
        self.data = data
        self.steps = steps
        self.step = 0
        torch.manual_seed(SEED)
        self.model = TinyTransformer()
        initialise(self.model)
        self.optimizer = adamw(self.model, LEARNING_RATE)
        self.draws = torch.Generator().manual_seed(SEED)
        self.losses: list[float] = []
        self.validation: list[list[float]] = [[0, self.validate()]]
        self.early: dict[str, Json] | None = None

    def learning_rate(self) -> float:
        """Linear warm-up, then half a cosine from the full rate to its tenth."""
        if self.step < WARM_UP:
            return LEARNING_RATE * (self.step + 1) / WARM_UP
        progress = (self.step - WARM_UP) / max(1, self.steps - WARM_UP)
        return LEARNING_RATE * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * progress)) / 2)

    def advance(self) -> None:
        """One update."""
        starts = torch.randint(0, len(self.data.train) - WINDOW, (BATCH,), generator=self.draws, device="cpu").tolist()
        windows = torch.stack([self.data.train[start : start + WINDOW + 1] for start in starts])
        loss = loss_mean(self.model(windows[:, :-1]), windows[:, 1:])
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        self.optimizer.step()
        self.step += 1
        self.losses.append(loss.item())
        if self.step % VALIDATE_EVERY == 0 or self.step == self.steps:
            self.validation.append([self.step, self.validate()])
        if self.step == EARLY:
            weights = self.weights()
            norm = math.sqrt(sum(float(np.square(array).sum()) for array in weights.values()))
            self.early = {"step": EARLY, "norm": norm, **cast(dict[str, Json], describe(weights))}

    @torch.no_grad()
    def validate(self) -> float:
        """Mean loss over fixed windows, evenly spread over the validation stream."""
        stream = self.data.validation
        starts = np.linspace(0, len(stream) - WINDOW - 1, VALIDATION_WINDOWS).astype(int).tolist()
        windows = torch.stack([stream[start : start + WINDOW + 1] for start in starts])
        return float(loss_mean(self.model(windows[:, :-1]), windows[:, 1:]))

    def weights(self) -> dict[str, NDArray[Any]]:
        return arrays(dict(self.model.named_parameters()))

    def moments(self) -> Moments:
        return arrays(optimizer_state(self.model, self.optimizer))

    def save(self, folder: Path) -> None:
        """Everything that a resumed training needs to go on with the same bits; the small file is written last."""
        folder.mkdir(parents=True, exist_ok=True)
        save(folder / "weights.safetensors", self.weights())
        save(folder / "optimizer.safetensors", self.moments())
        save(folder / "draws.safetensors", {"state": self.draws.get_state().numpy()})
        state = {
            "fingerprint": self.data.fingerprint,
            "steps": self.steps,
            "step": self.step,
            "losses": self.losses,
            "validation": self.validation,
            "early": self.early,
            "raw_sha256": raw_sha256(self.weights()),
        }
        partial = folder / "state.partial"
        partial.write_text(json.dumps(state), "utf-8")
        partial.replace(folder / "state.json")

    def resume(self, folder: Path) -> bool:
        """Go on from what `save` left; False when there is nothing that fits this training."""
        if not (folder / "state.json").is_file():
            return False
        state = json.loads((folder / "state.json").read_text("utf-8"))
        weights = load(folder / "weights.safetensors")
        fits = (state["fingerprint"], state["steps"]) == (self.data.fingerprint, self.steps)
        if not fits or raw_sha256(weights) != state["raw_sha256"]:
            return False
        restore(self.model, weights)
        restore_optimizer(self.model, self.optimizer, load(folder / "optimizer.safetensors"))
        self.draws.set_state(torch.from_numpy(load(folder / "draws.safetensors")["state"]))
        self.step, self.losses, self.validation = state["step"], state["losses"], state["validation"]
        self.early = state["early"]
        return True


def adamw(model: TinyTransformer, learning_rate: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), learning_rate, BETAS, EPSILON, WEIGHT_DECAY)


def optimizer_state(model: TinyTransformer, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW's moments and step of every parameter, by `exp_avg.NAME` and so on."""
    return {
        f"{key}.{name}": optimizer.state[parameter][key]
        for name, parameter in model.named_parameters()
        for key in ("exp_avg", "exp_avg_sq", "step")
        if key in optimizer.state[parameter]
    }


def restore(model: TinyTransformer, weights: Mapping[str, NDArray[Any]]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weights[name]))


def restore_optimizer(
    model: TinyTransformer, optimizer: torch.optim.Optimizer, state: Mapping[str, NDArray[Any]]
) -> None:
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            key: torch.from_numpy(state[f"{key}.{name}"].copy()).to("cpu" if key == "step" else parameter.device)
            for key in ("step", "exp_avg", "exp_avg_sq")
        }


# ---- run --------------------------------------------------------------------------------------------------------


def run(world: World) -> Result | None:
    """Options: `steps` (800), `until` (stop there, with everything saved), `corpus` (folder), `state` (folder)."""
    steps = cast(int, world.options.get("steps") or STEPS)
    until = cast(int, world.options.get("until") or steps)
    data = prepare(Path(cast(str, world.options.get("corpus") or corpus.FOLDER)))
    training = Training(data, steps)
    state = world.options.get("state")
    place = Path(cast(str, state)) / f"rank{world.rank}" if state else None
    if place and training.resume(place):
        world.step(f"train_tiny: resumed at step {training.step}")
    while training.step < min(until, steps):
        training.advance()
        world.step(f"step {training.step}/{steps}, loss {training.losses[-1]:.3f}", training.step / steps)
        if place and training.step % SAVE_EVERY == 0:
            training.save(place)
    if place:
        training.save(place)
    if training.step < steps:
        return None
    world.step("train_tiny: compare")
    everybody = world.gather((training.weights(), training.moments()))
    if world.rank:
        return None
    return note(world, training, everybody)


def note(world: World, training: Training, everybody: list[tuple[Moments, Moments]]) -> Result:
    """Rank 0's files and rows."""
    folder = world.folder / "train_tiny"
    folder.mkdir(parents=True, exist_ok=True)
    sets = {
        "weights.safetensors": save(folder / "weights.safetensors", training.weights()),
        "optimizer.safetensors": save(folder / "optimizer.safetensors", training.moments()),
    }
    (folder / "tokenizer.json").write_text(training.data.tokens.to_json(), "utf-8")
    rows = [interrupted(training.data, training.steps)]
    rows += [repeated(rank, everybody[0], other) for rank, other in enumerate(everybody) if rank]
    curve = [[step, loss] for step, loss in enumerate(training.losses, start=1)]
    return result(
        __name__,
        world.processes(PROCESSES),
        question=QUESTION,
        scope=SCOPE,
        setup=setup(training),
        cases={"training": {"zh": "整段训练", "en": "the whole training"}, "resumed": _RESUMED},
        paths={row["path"]: row["title"] for row in rows},
        rows=rows,
        controls=controls(training),
        environment=environment(),
        tensors=sets,
        rerun=1e-8,
        curve={"train": curve, "validation": training.validation},
    )


def setup(training: Training) -> dict[str, Json]:
    data = training.data
    size = sum(document.size for document in data.documents)
    return {
        "seed": SEED,
        "steps": training.steps,
        "batch": BATCH,
        "window": WINDOW,
        "parameters": parameter_count(training.model),
        "vocabulary": len(data.tokens),
        "optimizer": {
            "name": "AdamW",
            "learning_rate": LEARNING_RATE,
            "warm_up": WARM_UP,
            "final_learning_rate": training.optimizer.param_groups[0]["lr"],
            "betas": list(BETAS),
            "epsilon": EPSILON,
            "weight_decay": WEIGHT_DECAY,
            "max_norm": MAX_NORM,
        },
        "corpus": {
            "bytes": size,
            "documents": [
                {"name": document.name, "bytes": document.size, "sha256": document.sha256}
                for document in data.documents
            ],
        },
        "tokens": {"train": len(data.train), "validation": len(data.validation)},
        "bytes_per_token": size / (len(data.train) + len(data.validation)),
        "first_loss": training.losses[0],
        "last_loss": training.losses[-1],
        "first_validation_loss": training.validation[0][1],
        "last_validation_loss": training.validation[-1][1],
        "early": cast(Json, training.early),
    }


# ---- compare ----------------------------------------------------------------------------------------------------

_RESUMED: Text = {"zh": "中断后继续", "en": "interrupted and resumed"}


def repeated(rank: int, mine: tuple[Moments, Moments], other: tuple[Moments, Moments]) -> Row:
    """Another process that trained on its own: every bit should be the same."""
    differences = {
        "weights": largest_difference(mine[0], other[0]),
        "optimizer": largest_difference(mine[1], other[1]),
    }
    digests = [raw_sha256(mine[0]), raw_sha256(other[0])]
    title: Text = {"zh": f"进程 {rank} 独立训练同样的步数", "en": f"process {rank} trains the same steps on its own"}
    return row(
        "training",
        f"repeated_{rank}",
        title,
        "agrees",
        differences,
        also=digests[0] == digests[1],
        values={"raw_sha256": cast(Json, digests), "bit_identical": digests[0] == digests[1]},
    )


def interrupted(data: Data, steps: int) -> Row:
    """Six steps at once, and three, everything put aside and brought back, three more."""
    whole, first, second = (Training(data, steps) for _ in range(3))
    for _ in range(6):
        whole.advance()
    for _ in range(3):
        first.advance()
    restore(second.model, first.weights())
    restore_optimizer(second.model, second.optimizer, first.moments())
    second.draws.set_state(first.draws.get_state())
    second.step = first.step
    for _ in range(3):
        second.advance()
    one, other = dict(whole.model.named_parameters()), dict(second.model.named_parameters())
    identical = raw_sha256(whole.weights()) == raw_sha256(second.weights())
    return row(
        "resumed",
        "resumed",
        _RESUMED,
        "agrees",
        {"weights": difference_over(one, other)},
        also=identical,
        values={"bit_identical": identical},
    )


# ---- controls ---------------------------------------------------------------------------------------------------


def controls(training: Training) -> list[Control]:
    """The model, the tokenizer and the text are what they are said to be, and something was learnt."""
    data, losses = training.data, training.losses
    first, last = training.validation[0][1], training.validation[-1][1]
    round_trip = all(data.tokens.decode(data.tokens.encode(each.text)) == each.text for each in data.documents)
    count, size = parameter_count(training.model), len(data.tokens)
    return [
        control(
            "parameters",
            {"zh": "恰有 298,176 个参数", "en": "exactly 298,176 parameters"},
            count == PARAMETERS,
            parameters=count,
        ),
        control(
            "vocabulary", {"zh": "词表恰有 387 项", "en": "exactly 387 tokens"}, size == VOCABULARY, vocabulary=size
        ),
        control(
            "round_trip",
            {"zh": "语料编码再解码后逐字节相同", "en": "the corpus survives encoding and decoding byte for byte"},
            round_trip,
        ),
        control(
            "uniform_start",
            {"zh": "训练前的验证损失接近 ln 387", "en": "before training the validation loss is close to ln 387"},
            abs(first - math.log(VOCABULARY)) < 0.1,
            loss=first,
        ),
        control(
            "learnt",
            {"zh": "验证损失明显下降", "en": "the validation loss falls"},
            all(math.isfinite(loss) for loss in losses) and last < first - (1.0 if training.steps >= STEPS else 0.0),
            first=first,
            last=last,
        ),
    ]
