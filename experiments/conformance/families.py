"""Families of frameworks that want packages of their own, and an environment for each: `--family NAME`.

JAX and TensorFlow want other packages than torch, and trainers on top of transformers each want their own release of
it. So a family has a virtual environment in the cache, made once from exact pins by pip, from wheels or source as it
finds them, and never mixed with the wiki's: its processes see its packages and this project's code, and nothing else
of ours.

Making one is bounded: in time by LIMIT, on the disk by `Family.megabytes`; what does not end well is removed. Another
set of pins is another place, and takes the place of what an older set left.
"""

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import samestep
from samestep.app.paths import cache_folder
from samestep.experiments.ranks import Tell

LIMIT = 1500.0
"""Seconds for all of pip's work on one environment."""
SPARE = 1000
"""Megabytes that must stay free on the disk."""


class NoEnvironmentError(RuntimeError):
    """A family's environment cannot be had here, and why."""


@dataclass(frozen=True)
class Family:
    """`pins` with their dependencies, then `alone` without (their metadata ask for what they do not need here).

    `python`: the release of Python that the pins are for, where it is not this one. `takes`: what it took to make it
    and to measure what it holds, on two cores that others used as well. `megabytes`: more than this on the disk is an
    error.
    """

    id: str
    pins: tuple[str, ...]
    alone: tuple[str, ...] = ()
    python: str = ""
    takes: str = ""
    megabytes: int = 2500

    @property
    def version(self) -> str:
        """Of Python, as `3.12`."""
        return self.python or f"{sys.version_info.major}.{sys.version_info.minor}"


TORCH = "torch==2.13.0"
_BESIDE_AXOLOTL = (
    *(TORCH, "numpy==2.3.5", "numba==0.63.1", "scipy==1.16.3", "pillow==12.0.0", "einops==0.8.1"),
    *("addict==2.4.0", "colorama==0.4.6", "python-dotenv==1.0.1"),
)
"""What the trainer imports of the forty packages that axolotl asks for."""
FAMILIES: dict[str, Family] = {
    family.id: family
    for family in (
        Family(
            "jax",
            ("jax==0.12.0.1", "optax==0.2.8", "keras==3.15.1", "numpy==2.4.6"),
            python="3.12",
            takes="640 MB, 2 minutes",
            megabytes=1000,
        ),
        Family(
            "tensorflow",
            ("tensorflow==2.21.0", "keras==3.15.1", "numpy==2.4.6"),
            python="3.12",
            takes="2,100 MB, 5 minutes",
            megabytes=2700,
        ),
        Family(
            "axolotl",
            (
                *("transformers==5.20.1", "accelerate==1.15.0", "trl==1.14.1", "datasets==5.0.1", "peft==0.21.2"),
                *_BESIDE_AXOLOTL,
            ),
            alone=("axolotl==0.21.0",),
            takes="1,830 MB, 11 minutes",
        ),
        Family(
            "axolotl_0_19",
            (
                *("transformers==5.16.1", "accelerate==1.13.0", "trl==1.9.0", "datasets==4.8.4", "peft==0.20.0"),
                *_BESIDE_AXOLOTL,
            ),
            alone=("axolotl==0.19.0",),
            takes="1,830 MB, 11 minutes",
        ),
        Family(
            "llama_factory",
            (
                *(TORCH, "numpy==2.3.5", "transformers==5.6.0", "accelerate==1.11.0", "trl==0.24.0"),
                *("datasets==4.0.0", "peft==0.18.1", "omegaconf==2.3.0", "fire==0.7.1", "av==16.0.0"),
                *("modelscope==1.31.0", "einops==0.8.1", "scipy==1.16.3", "pillow==12.0.0"),
            ),
            alone=("llamafactory==0.9.5",),
            takes="1,780 MB, 12 minutes",
        ),
        Family(
            "verl",
            (
                *(TORCH, "numpy==2.3.5", "transformers==5.10.4", "accelerate==1.15.0", "tensordict==0.10.0"),
                *("codetiming==1.4.0", "hydra-core==1.3.2", "peft==0.21.2", "ray==2.55.0", "torchdata==0.11.0"),
                *("pylatexenc==2.10", "pyvers==0.1.0", "orjson==3.11.4", "pillow==12.0.0", "pandas==2.3.3"),
                *("dill==0.4.0", "datasets==4.8.4"),
            ),
            alone=("verl==0.9.1",),
            takes="1,700 MB, 6 minutes",
        ),
        Family(
            "openrlhf",
            (TORCH, "numpy==2.3.5", "deepspeed==0.19.8"),
            alone=("openrlhf==0.11.2",),
            takes="1,000 MB, 9 minutes, 5 of them for DeepSpeed's operator",
        ),
        Family(
            "paddle",
            ("paddlepaddle==3.3.1", "numpy==2.3.5", "protobuf==6.33.1", "setuptools==80.9.0"),
            takes="840 MB, 4 minutes",
            megabytes=1200,
        ),
        Family(
            "megatron_core",
            (TORCH, "numpy==2.3.5", "packaging==25.0", "triton==3.7.0"),
            alone=("megatron-core==0.19.2",),
            takes="1,670 MB, 9 minutes",
        ),
        Family(
            "tunix",
            ("google-tunix==0.1.7", "jax==0.12.0.1", "optax==0.2.8", "numpy==2.4.6"),
            python="3.12",
            takes="1,530 MB, 13 minutes",
        ),
        Family(
            "ms_swift",
            (
                *("ms-swift==4.6.0", TORCH, "numpy==2.3.5", "transformers==5.19.0", "accelerate==1.15.0"),
                *("trl==0.29.0", "peft==0.20.0", "datasets==4.8.4"),
            ),
            takes="1,960 MB, 12 minutes",
        ),
    )
}


def place(family: Family) -> Path:
    """Where its environment is, or would be."""
    pins = hashlib.sha256("\n".join((*family.pins, "", *family.alone)).encode()).hexdigest()[:10]
    return cache_folder() / "families" / f"{family.id}-{pins}-py{family.version.replace('.', '')}"


def made(family: Family) -> bool:
    """Whether its environment is here, and was made to the end."""
    return _seal(family).is_file()


def _seal(family: Family) -> Path:
    return place(family) / "made"


def interpreter(family: Family) -> Path:
    return place(family) / "bin" / "python"


def code(family: Family) -> Path:
    """The folder that this project's package can be imported from, without anything that lies beside it."""
    return place(family) / "code"


def install(family: Family, tell: Tell) -> Path:
    """Make the environment, once, and give its Python; raises NoEnvironmentError with what stood in the way."""
    target = place(family)
    if not made(family):
        base = _base(family)
        free = shutil.disk_usage(_existing(target)).free // 2**20
        if free < family.megabytes + SPARE:
            raise NoEnvironmentError(f"{family.id} may take {family.megabytes} MB, and only {free} MB are free")
        tell(f"make the environment of {family.id}: {', '.join((*family.pins, *family.alone))}", None)
        for old in target.parent.glob(f"{family.id}-*"):
            shutil.rmtree(old)
        try:
            _make(family, base, target)
        except BaseException:  # interrupted too: half an environment must not be taken for a whole one
            shutil.rmtree(target, ignore_errors=True)
            raise
        _seal(family).touch()
    _link(family)
    return interpreter(family)


def _existing(place: Path) -> Path:
    return next(parent for parent in place.parents if parent.is_dir())


def _base(family: Family) -> str:
    """The Python that it is made with."""
    if family.version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    found = shutil.which(f"python{family.version}")
    if found is None:
        raise NoEnvironmentError(f"{family.id} needs Python {family.version}, and there is no python{family.version}")
    return found


def _make(family: Family, base: str, target: Path) -> None:
    """A virtual environment knows its own place, so it is made where it stays. It gets on without a pip of its own."""
    _call(base, "-m", "venv", "--without-pip", str(target))
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    pip = (sys.executable, "-m", "pip", "--python", str(interpreter(family)), "install", *quiet)
    _call(*pip, *family.pins)
    if family.alone:
        _call(*pip, "--no-deps", "--ignore-requires-python", *family.alone)
    size = sum(each.lstat().st_size for each in target.rglob("*")) // 2**20
    if size > family.megabytes:
        raise NoEnvironmentError(f"{family.id} takes {size} MB, more than the {family.megabytes} MB that it may")


def _call(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise NoEnvironmentError(f"not done after {LIMIT:.0f} s: {' '.join(command[1:6])} …") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it gave no reason"]
        errors = [line for line in lines if line.startswith("ERROR")]
        raise NoEnvironmentError(f"{' '.join(command[1:6])} failed: {(errors or lines)[-1][:300]}")


def _link(family: Family) -> None:
    """Point `code` to where the package is today: a checkout, or an installed wheel."""
    package = Path(samestep.__file__).parent
    link = code(family) / package.name
    link.parent.mkdir(exist_ok=True)
    if link.is_symlink():
        link.unlink()
    link.symlink_to(package)
