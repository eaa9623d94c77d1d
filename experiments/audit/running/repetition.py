"""Can step() be called a second time on the same model? A training step can; one that also sets things up may not.

What it set up in the first call would be there twice: shards of shards, hooks that fire again, a process group that is
gone. Then one update is audited, and the report says why there was no second.
"""

from torch import nn

from samestep.experiments.audit.running.reader import Built
from samestep.experiments.audit.running.recorder import Recorder


class Repetition:
    """Remembers what the model was like before the first call."""

    def __init__(self, built: Built) -> None:
        self._built = built
        self._parameters = _identities(built.model)
        self._hooks = _hooks(built.model)

    def hindrance(self, recorder: Recorder) -> str:
        """Why another call would be something else than another update; "" if nothing is in its way."""
        stepped = [each for each in recorder.stepped if each not in self._built.optimizers]
        events = {event for update in recorder.run.updates for event in update.events}
        if any(event.startswith("point-to-point") for event in events):
            return "its ranks send to each other point to point, as the stages of a pipeline do"
        if "process group destroyed" in events:
            return "step() destroys its process group"
        if _identities(self._built.model) != self._parameters:
            return "step() shards or replaces the model's parameters"
        if stepped:
            return "step() makes an optimizer of its own"
        if _hooks(self._built.model) != self._hooks:
            return "step() registers hooks"
        if not recorder.stepped:
            return "no optimizer stepped"
        return ""


def _identities(model: nn.Module) -> list[tuple[str, int]]:
    return [(name, id(parameter)) for name, parameter in model.named_parameters()]


def _hooks(model: nn.Module) -> int:
    """How many hooks there are on modules and parameters."""
    of_modules = sum(
        len(getattr(module, kind) or ())
        for module in model.modules()
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    )
    of_parameters = sum(
        len(getattr(parameter, kind, None) or ())
        for parameter in model.parameters()
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")
    )
    return of_modules + of_parameters
