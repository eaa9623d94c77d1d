"""Callbacks that watch from the first step of a training to its end. A framework is imported when it is asked for."""

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samestep.experiments.watch.front import Watching


def trainer(watching: "Watching") -> Any:
    """A `TrainerCallback` of transformers."""
    from transformers import TrainerCallback

    class WatchCallback(TrainerCallback):  # type: ignore[misc]  # untyped there
        def on_train_begin(self, *_: object, **__: object) -> None:
            watching.begin()

        def on_train_end(self, *_: object, **__: object) -> None:
            watching.end()

    return WatchCallback()


def lightning(watching: "Watching") -> Any:
    """A `Callback` of Lightning, under whichever of its two names it is installed."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class WatchCallback(Callback):  # type: ignore[misc]
        def on_train_start(self, *_: object, **__: object) -> None:
            watching.begin()

        def on_train_end(self, *_: object, **__: object) -> None:
            watching.end()

        def on_exception(self, trainer: object, module: object, exception: BaseException) -> None:
            watching.end(exception)

    return WatchCallback()


def accelerate(accelerator: Any, watching: "Watching") -> "Watching":
    """Begin now, and end with the accelerator's training."""
    watching.begin()
    end = accelerator.end_training

    @functools.wraps(end)
    def end_training(*args: Any, **kwargs: Any) -> Any:
        watching.end()
        return end(*args, **kwargs)

    accelerator.end_training = end_training
    return watching
