"""`samestep-lab report NAME`: a surprise as a maintainer would want it, in a short Markdown file.

What was expected and what was measured come from the published rows, with their versions; the script beside them, from
`templates/reports/`, reproduces it with the framework alone and imports nothing of this project.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from samestep.app.evidence.bags import ConformanceRow, Library
from samestep.app.paths import folder
from samestep.experiments.conformance.families import FAMILIES
from samestep.experiments.conformance.rules import weights
from samestep.experiments.conformance.scenarios import SCENARIOS, Kind

NAME = "conformance"


class NoReportError(RuntimeError):
    """There is no such report, or nothing is published that it could be written from."""


@dataclass(frozen=True)
class Surprise:
    """`rows`: (framework, setting, scenario), and a version where it is not the pinned one; `expected`: the rule that a
    reader would expect.

    `told`: what happens, in English. `packages`: what the script needs, in the versions that were measured; none where
    it takes all pins of `family`. `command`: what runs it. `url`: a public thread on the same fault, "" where none was
    found. `fact`: what the script prints of it where the rows have another size.
    """

    title: str
    told: str
    rows: tuple[tuple[str, ...], ...]
    command: str
    packages: tuple[str, ...] = ()
    family: str = ""
    url: str = ""
    expected: str = "global_token_mean"
    fact: str = ""


_TORCHRUN = "torchrun --nproc-per-node 2 {}"
_TRL = ("trl", "transformers", "accelerate", "datasets")
_DEVICES = "JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=2"
SURPRISES: dict[str, Surprise] = {
    "torch_pipelining": Surprise(
        "A pipeline schedule divides a loss that is normalised already by the number of micro-batches",
        "With `scale_grads=True`, the default, gradients are divided by the number of micro-batches. For a mean of "
        "each micro-batch that is an average; a loss that is the micro-batch's part of the window's mean (sum ÷ all "
        "labels) comes out K times too small, without a warning.",
        (("torch_pipelining", "gpipe_sum_over_total", "M"), ("torch_pipelining", "gpipe_recipe", "M")),
        _TORCHRUN,
        packages=("torch",),
        url="https://github.com/NVIDIA/Megatron-LM/issues/936",
    ),
    "torch_tensor_parallel": Surprise(
        "A norm that the tensor-parallel plan leaves out trains with another gradient on every rank",
        "In a sequence-parallel region every rank has its part of the positions. A norm in the plan "
        "(`SequenceParallel`) has a Partial(sum) gradient that is added where it is used; a plain module's gradient "
        "is never added, and no error tells it.",
        (
            ("torch_tensor_parallel", "sequence_parallel", "sequence"),
            ("torch_tensor_parallel", "plain_norm", "sequence"),
        ),
        _TORCHRUN,
        packages=("torch",),
        url="https://github.com/pytorch/torchtitan/issues/2217",
        expected="the gradient of one process",
    ),
    "accelerate_scheduler": Surprise(
        "A prepared scheduler moves once for every process in each update",
        "A learning-rate curve written for 8 updates is over after 8 ÷ P of them: the scheduler makes P steps an "
        "update, unless `split_batches=True`; with `step_scheduler_with_optimizer=False` it moves at every micro-batch "
        "instead.",
        (
            ("accelerate", "scheduler", "counters"),
            ("accelerate", "scheduler", "counters_accumulated"),
            ("accelerate", "scheduler_every_backward", "counters_accumulated"),
        ),
        _TORCHRUN,
        packages=("torch", "accelerate"),
        url="https://github.com/huggingface/accelerate/issues/2708",
        expected="per_update",
    ),
    "jax_shard_map": Surprise(
        "pmean or psum of a gradient inside shard_map gives P or P² times the update, without an error",
        "With `check_vma=True`, the default, the gradient of a replicated weight has been summed over devices already. "
        "`pmean(grad)`, as one writes it in pmap, changes nothing any more and leaves P times the average; "
        "`psum(grad)` multiplies by P once more.",
        (
            ("jax", "pmap_pmean", "A"),
            ("jax", "shard_map_pmean", "A"),
            ("jax", "shard_map_psum", "A"),
            ("jax", "shard_map_grad_pmean", "A"),
        ),
        f"{_DEVICES} python {{}}",
        packages=("jax",),
        url="https://github.com/jax-ml/jax/issues/3970",
        expected="replica_equal",
    ),
    "optax_apply_every": Surprise(
        "chain(adam, apply_every(K)) counts micro-steps and makes its steps K times as long",
        "Adam stands before `apply_every`, so its moments and its count move at every micro-step, and K of its steps "
        "are added up. `MultiSteps(adam, K)` counts updates.",
        (
            ("optax", "adam_multi_steps", "counters_accumulated"),
            ("optax", "adam_apply_every", "counters_accumulated"),
        ),
        "JAX_PLATFORMS=cpu python {}",
        packages=("jax", "optax"),
        url="https://github.com/jenkspt/gpt-jax/issues/2",
        expected="per_update",
    ),
    "keras_two_backends": Surprise(
        "One Keras program has two objectives: a global token mean on JAX, replica-equal under MirroredStrategy",
        "`fit` takes the mean over the global array under DataParallel, and each replica's own mean, averaged, under "
        "TensorFlow's MirroredStrategy: tokens of the replica that has few labels weigh more.",
        (("keras_jax", "mask", "A"), ("keras_tensorflow", "mask", "A")),
        f"KERAS_BACKEND=jax {_DEVICES} python {{0}}; KERAS_BACKEND=tensorflow python {{0}}",
        packages=("keras", "jax", "tensorflow"),
    ),
    "trl_cispo": Surprise(
        'loss_type="cispo" makes a fifth of the update unless epsilon_high is given',
        "The ratio is clamped at `epsilon_high`, which falls back to `epsilon`, 0.2: at the first update of a "
        "generation every ratio is 1 and becomes 0.2. The documentation recommends `epsilon_high=5.0`.",
        (("trl_grpo", "cispo", "S"), ("trl_grpo", "cispo_epsilon_high", "S")),
        "python {}",
        packages=_TRL,
        url="https://github.com/NovaSky-AI/SkyRL/pull/553",
    ),
    "trl_generations": Surprise(
        'loss_type="dapo" divides by the tokens of a generation, not by those of the window it updates with',
        "Where `steps_per_generation` is not `gradient_accumulation_steps`, one generation serves several updates. In "
        "1.16.0 each of them is divided by the generation's average: the size is right on the whole, and a window "
        "with fewer tokens than the average still makes a smaller update than its token mean. 1.5.0 divided each by "
        "all tokens of the generation: about half the update for two windows.",
        (("trl_grpo", "dapo", "S"), ("trl_grpo", "dapo", "G"), ("trl_grpo", "dapo", "G", "1.5.0")),
        "python {}",
        packages=_TRL,
        url="https://github.com/huggingface/trl/pull/6024",
        fact="One process, windows of 16 and of 17 tokens: every token of the first update weighs 2/33 = 0.06061 (in "
        "1.5.0 1/33), and should weigh 1/16 = 0.0625. In the second update ratios are no longer 1.",
    ),
    "axolotl": Surprise(
        "Every model is treated as one that takes no num_items_in_batch: the global token mean is gone",
        "The trainer looks for a parameter `num_items_in_batch` in the signature of the inner model's forward, which "
        "has none: `model_accepts_loss_kwargs` becomes False, and every micro-batch is averaged by itself. 0.21.0 "
        "looks at the model's loss function and is right.",
        (
            ("axolotl", "default", "B", "0.19.0"),
            ("axolotl", "flag_restored", "B", "0.19.0"),
            ("axolotl", "default", "B"),
        ),
        "python {}",
        family="axolotl_0_19",
        url="https://github.com/axolotl-ai-cloud/axolotl/pull/3982",
        fact="One process, two micro-batches of 2 and 8 labels: their tokens weigh 0.25 and 0.0625, and should weigh "
        "0.1.",
    ),
    "llama_factory": Surprise(
        "With a processor, which every multimodal model has, micro-batches weigh the same",
        "As soon as the trainer is given a processor it sets `model_accepts_loss_kwargs = False`: the same data, all "
        "of it text, is trained with another objective than without one, and nothing says so.",
        (("llama_factory", "text", "B"), ("llama_factory", "processor", "B")),
        "python {}",
        family="llama_factory",
        url="https://github.com/hiyouga/LlamaFactory/issues/7743",
        fact="One process, two micro-batches of 2 and 8 labels: with a processor their tokens weigh 0.25 and 0.0625, "
        "and should weigh 0.1, as without one.",
    ),
    "verl": Surprise(
        "seq-mean-token-sum-norm divides by the width of a tensor unless loss_scale_factor is set",
        "The divisor of “Dr. GRPO” is meant to be a constant. By default it is the width of the mask at hand, which is "
        "the longest response of the own micro-batch: what a sequence weighs depends on whom it shares it with.",
        (("verl", "seq_mean_token_sum_norm", "S"),),
        "python {}",
        family="verl",
        url="https://github.com/verl-project/verl/issues/3741",
        expected="sequence_sum",
        fact="Four responses of 2, 8, 5 and 1 tokens: unset, tokens weigh 1/(4·8) in the first micro-batch and "
        "1/(4·5) in the second; with a constant they weigh the same.",
    ),
}


def add_to(commands: Any) -> None:
    """The command line of `report`."""
    parser = commands.add_parser("report", help="write a surprise down for the framework's maintainers")
    parser.add_argument("name", nargs="?", metavar="NAME", help="leave it out to see which there are")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where NAME.md goes (default: here)")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Write the file, or list what there is."""
    if options.name is None:
        for name, surprise in SURPRISES.items():
            print(f"{name:<24} {surprise.title}")
        return 0
    text = written(options.name)
    options.out.mkdir(parents=True, exist_ok=True)
    place = options.out / f"{options.name}.md"
    place.write_text(text, "utf-8")
    print(place)
    return 0


def written(name: str) -> str:
    """The report; raises NoReportError."""
    if name not in SURPRISES:
        raise NoReportError(f"there is no report {name}; there are {', '.join(SURPRISES)}")
    surprise = SURPRISES[name]
    rows = [_published(*key) for key in surprise.rows]
    file = f"{name}_weights.py" if surprise.family else f"{name}.py"  # a script must not hide the package it imports
    versions = dict.fromkeys(pair for row in rows for pair in row["packages"].items())
    return "\n".join(
        [
            f"# {surprise.title}",
            "",
            surprise.told,
            "",
            f"Versions: {', '.join(f'{package} {version}' for package, version in versions)}. CPU.",
            "",
            "| setting | situation | expected | measured |",
            "|---|---|---|---|",
            *(f"| {' | '.join(_line(row, surprise.expected))} |" for row in rows),
            "",
            "## Reproduce",
            "",
            *([surprise.fact, ""] if surprise.fact else []),
            "```sh",
            *_installs(surprise, rows),
            *surprise.command.format(file).split("; "),
            "```",
            "",
            f"`{file}`:",
            "",
            "```python",
            script(name).rstrip(),
            "```",
            "",
            *([f"Related: {surprise.url}", ""] if surprise.url else []),
        ]
    )


def _installs(surprise: Surprise, rows: Sequence[ConformanceRow]) -> Iterator[str]:
    """Commands of pip: what the rows were measured with, or all pins of an environment."""
    if surprise.family:
        family = FAMILIES[surprise.family]
        yield f"pip install {' '.join(family.pins)}"
        yield f"pip install --no-deps {' '.join(family.alone)}"
        return
    versions: dict[str, str] = {}
    for row in rows:
        versions = {**row["packages"], **versions}
    yield f"pip install {' '.join(f'{package}=={versions[package]}' for package in surprise.packages)}"


def script(name: str) -> str:
    """The program, which needs the framework alone."""
    return (folder("templates") / "reports" / f"{name}.py.jinja").read_text("utf-8")


@cache
def _rows() -> list[ConformanceRow]:
    library = Library(folder("content") / "evidence")
    return cast(list[ConformanceRow], library.bag(NAME).result["rows"])


def _published(framework: str, setting: str, scenario: str, version: str = "") -> ConformanceRow:
    """Of this release, or of the newest that is published; raises NoReportError."""
    wanted = (framework, setting, scenario)
    for row in _rows():  # the pinned release is measured first
        if (row["framework"], row["setting"], row["scenario"]) == wanted and version in ("", row["version"]):
            return row
    raise NoReportError(f"{framework} {version}, {setting}, scenario {scenario}: no such measurement is published")


def _line(row: ConformanceRow, rule: str) -> Iterator[str]:
    """Cells of the table."""
    scenario, values = SCENARIOS[row["scenario"]], row["values"]
    yield f"{row['title']['en']} ({row['version']})"
    yield scenario.title["en"]
    match Kind(row["kind"]):
        case Kind.COUNTERS:
            yield f"{values['updates']} steps in {values['updates']} updates"
            yield f"{values['count']} steps; step sizes {_numbers(values['rates'])}"
        case Kind.SHARDED:
            yield rule
            groups = [key.removesuffix("_factor") for key in values if key.endswith("_factor")]
            yield ", ".join(_group(group, values) for group in groups)
        case _:
            cells = weights(rule, scenario)
            exact = [[float(cell[0]) for cell in rank] for rank in cells]
            several = [[list(map(float, cell)) for cell in rank] for rank in cells]
            yield _numbers(several if scenario.lengths else exact)
            yield _numbers(values["sequences"] if scenario.lengths else row["coefficients"])


def _group(name: str, values: Any) -> str:
    factor, residual = values[f"{name}_factor"], values[f"{name}_residual"]
    return f"{name}: × {factor:.4g}" + (f" and another direction (residual {residual:.2g})" if residual > 1e-6 else "")


def _numbers(value: Any) -> str:
    """Nested lists, each number with four digits."""
    if isinstance(value, list):
        return f"[{', '.join(map(_numbers, value))}]"
    return "–" if value is None else f"{value:.4g}"
