"""Does an optimizer work on a part of a matrix where it has to see all of it? It is run on the parts, and compared.

Muon orthogonalises a matrix, LARS and LAMB scale it by its own norm, Adafactor factors it: on the rows that a rank
holds that is another update. The reader's own optimizer is given each part as a parameter of its own.

Or does it average what it makes of each rank's own gradient? It is given those one after another.
"""

import copy
from collections.abc import Iterator

import numpy as np
import torch

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.failure import ReaderError
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.running.vectors import Array, Vectors
from samestep.experiments.audit.telling.report import Finding
from samestep.experiments.audit.telling.wording import finding, listing

AXES = {0: {"en": "rows", "zh": "行"}, 1: {"en": "columns", "zh": "列"}}


def update_on_shards(case: Case) -> Finding | None:
    """A finding if the optimizer, run on each rank's part of the matrices that differ, gives what was observed."""
    if case.variations is None or case.processes == 1 or "initial" not in case.reference.vectors:
        return None
    expected, got = case.reference.parameters, case.ranks[0].parameters
    allowed = case.atol * expected.scale
    wrong = [name for name in expected if name in got and np.max(np.abs(expected[name] - got[name])) > allowed]
    if not wrong or any(len(expected.shape(name)) < 2 for name in wrong):
        return None
    for axis, word in AXES.items():
        try:
            made = dict(_stepped(case, wrong, axis))
        except ReaderError:  # an optimizer that cannot take the parts is not what made this update
            continue
        if set(made) == set(wrong) and all(np.max(np.abs(made[name] - got[name])) <= allowed for name in wrong):
            return finding(case, "update_on_shards", which=listing(wrong), parts=word)
    return None


def updates_averaged(case: Case) -> Finding | None:
    """A finding if the mean of what the optimizer makes of each rank's own gradient is what was observed."""
    if case.variations is None or not case.reduced_within or "initial" not in case.reference.vectors:
        return None
    expected, got = case.reference.parameters, case.ranks[0].parameters
    allowed = case.atol * expected.scale
    try:
        made = [_alone(case, trace.clipped_gradient) for trace in case.ranks]
    except ReaderError:  # an optimizer that cannot be run so is not known to have made this update
        return None
    for name in expected:
        mean = sum(each[name] for each in made) / len(made)
        if name not in got or np.max(np.abs(mean - got[name]), initial=0.0) > allowed:
            return None
    return finding(case, "parameters_averaged", what=WITHIN_THE_STEP)


WITHIN_THE_STEP: Text = {
    "en": "the optimizer averages, within its step, the updates that it makes of them",
    "zh": "优化器在 step 内部把由此得到的各次更新取平均",
}


def _alone(case: Case, gradient: Vectors) -> dict[str, Array]:
    """The parameters after the reader's optimizers have stepped with this gradient on one process."""
    assert case.variations is not None
    built = case.variations.built()
    initial = case.reference.vectors["initial"]
    named = dict(built.model.named_parameters())
    for name, parameter in named.items():
        parameter.data = torch.from_numpy(initial[name]).to(parameter.dtype)
        parameter.grad = torch.from_numpy(gradient[name]).to(parameter.dtype) if name in gradient else None
    for optimizer in built.optimizers:
        case.variations.step(optimizer)
    return {name: parameter.detach().double().numpy() for name, parameter in named.items()}


def _stepped(case: Case, names: list[str], axis: int) -> Iterator[tuple[str, Array]]:
    """The parameters after a step of the reader's optimizer on the parts."""
    assert case.variations is not None
    built = case.variations.built()
    named = {id(parameter): name for name, parameter in built.model.named_parameters()}
    initial, gradient = case.reference.vectors["initial"], case.ranks[0].clipped_gradient
    for optimizer in built.optimizers:
        parts: dict[str, list[torch.nn.Parameter]] = {}
        shadow = copy.copy(optimizer)
        shadow.state = type(optimizer.state)(dict)
        shadow.param_groups = []
        for group in optimizer.param_groups:
            mine = [name for parameter in group["params"] if (name := named.get(id(parameter))) in names]
            for name in mine:
                if name in gradient:
                    parts[name] = list(_parts(initial, gradient, name, case.processes, axis))
            shadow.param_groups.append({**group, "params": [part for name in mine for part in parts.get(name, [])]})
        if parts:
            case.variations.step(shadow)
        for name, found in parts.items():
            yield name, torch.cat([part.detach() for part in found], axis).double().numpy()


def _parts(initial: Vectors, gradient: Vectors, name: str, ranks: int, axis: int) -> Iterator[torch.nn.Parameter]:
    values, slopes = (torch.from_numpy(each[name]).chunk(ranks, axis) for each in (initial, gradient))
    for value, slope in zip(values, slopes, strict=True):
        part = torch.nn.Parameter(value.clone().contiguous())
        part.grad = slope.clone().contiguous()
        yield part
