"""`samestep-lab report NAME`: a surprise as a maintainer would want it, in a short Markdown file.

What was expected and what was measured come from the published rows, with their versions; the script beside them, from
`templates/reports/`, reproduces it with the framework alone and imports nothing of this project.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from samestep.app.evidence.bags import ConformanceRow, Library
from samestep.app.paths import folder
from samestep.experiments.conformance.rules import weights
from samestep.experiments.conformance.scenarios import SCENARIOS, Kind

NAME = "conformance"


class NoReportError(RuntimeError):
    """There is no such report, or nothing is published that it could be written from."""


@dataclass(frozen=True)
class Surprise:
    """`rows`: (framework, setting, scenario) in the pinned release; `expected`: the rule that a reader would expect.

    `told`: what happens, in English. `packages` and `command`: what installs and runs the script. `url`: a public
    thread. `script`: whose name it has, if not the report's.
    """

    title: str
    told: str
    rows: tuple[tuple[str, str, str], ...]
    packages: tuple[str, ...]
    command: str
    url: str
    expected: str = "global_token_mean"


_TORCHRUN = "torchrun --nproc-per-node 2 {}"
_DEVICES = "JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=2"
SURPRISES: dict[str, Surprise] = {
    "torch_pipelining": Surprise(
        "A pipeline schedule divides a loss that is normalised already by the number of micro-batches",
        "With `scale_grads=True`, the default, gradients are divided by the number of micro-batches. For a mean of "
        "each micro-batch that is an average; a loss that is the micro-batch's part of the window's mean (sum ÷ all "
        "labels) comes out K times too small, without a warning.",
        (("torch_pipelining", "gpipe_sum_over_total", "M"), ("torch_pipelining", "gpipe_recipe", "M")),
        ("torch",),
        _TORCHRUN,
        "https://github.com/NVIDIA/Megatron-LM/issues/4590",
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
        ("torch",),
        _TORCHRUN,
        "https://github.com/NVIDIA/Megatron-LM/issues/4590",
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
        ("torch", "accelerate"),
        _TORCHRUN,
        "https://github.com/huggingface/accelerate/issues/2708",
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
        ("jax",),
        f"{_DEVICES} python {{}}",
        "https://github.com/jax-ml/jax/issues/3970",
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
        ("jax", "optax"),
        "JAX_PLATFORMS=cpu python {}",
        "https://github.com/jax-ml/jax/issues/3970",
        expected="per_update",
    ),
    "keras_two_backends": Surprise(
        "One Keras program has two objectives: a global token mean on JAX, replica-equal under MirroredStrategy",
        "`fit` takes the mean over the global array under DataParallel, and each replica's own mean, averaged, under "
        "TensorFlow's MirroredStrategy: tokens of the replica that has few labels weigh more.",
        (("keras_jax", "mask", "A"), ("keras_tensorflow", "mask", "A")),
        ("keras", "jax", "tensorflow"),
        f"KERAS_BACKEND=jax {_DEVICES} python {{0}}; KERAS_BACKEND=tensorflow python {{0}}",
        "https://github.com/keras-team/keras/issues/19740",
    ),
    "trl_cispo": Surprise(
        'loss_type="cispo" makes a fifth of the update unless epsilon_high is given',
        "The ratio is clamped at `epsilon_high`, which falls back to `epsilon`, 0.2: at the first update of a "
        "generation every ratio is 1 and becomes 0.2. The documentation recommends `epsilon_high=5.0`.",
        (("trl_grpo", "cispo", "S"), ("trl_grpo", "cispo_epsilon_high", "S")),
        ("trl", "transformers", "accelerate", "datasets"),
        "python {}",
        "https://github.com/NovaSky-AI/SkyRL/issues/553",
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
    file = f"{name}.py"
    versions = dict(pair for row in rows for pair in row["packages"].items())
    pins = " ".join(f"{package}=={versions[package]}" for package in surprise.packages)
    return "\n".join(
        [
            f"# {surprise.title}",
            "",
            surprise.told,
            "",
            f"Versions: {', '.join(f'{package} {version}' for package, version in versions.items())}. CPU.",
            "",
            "| setting | situation | expected | measured |",
            "|---|---|---|---|",
            *(f"| {' | '.join(_line(row, surprise.expected))} |" for row in rows),
            "",
            "## Reproduce",
            "",
            "```sh",
            f"pip install {pins}",
            *surprise.command.format(file).split("; "),
            "```",
            "",
            f"`{file}`:",
            "",
            "```python",
            script(name).rstrip(),
            "```",
            "",
            f"Related: {surprise.url}",
            "",
        ]
    )


def script(name: str) -> str:
    """The program, which needs the framework alone."""
    return (folder("templates") / "reports" / f"{name}.py.jinja").read_text("utf-8")


def _published(framework: str, setting: str, scenario: str) -> ConformanceRow:
    """Of the newest release that is published; raises NoReportError."""
    library = Library(folder("content") / "evidence")
    rows = cast(Sequence[ConformanceRow], library.bag(NAME).result["rows"])
    wanted = (framework, setting, scenario)
    found = [row for row in rows if (row["framework"], row["setting"], row["scenario"]) == wanted]
    if not found:
        raise NoReportError(f"{framework}, {setting}, scenario {scenario}: no such measurement is published")
    return found[0]  # the pinned release is measured first


def _line(row: ConformanceRow, rule: str) -> Iterator[str]:
    """Cells of the table."""
    scenario, values = SCENARIOS[row["scenario"]], row["values"]
    yield row["title"]["en"]
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
