"""Values of nested answers by their dotted path, such as `ranks.0.reference.grad`: one walker for all readers.

A step is a field of a model, a key of an object, a position in a list counted from 0, or the `id` of one of its
entries. A key that has dots itself, such as a file's name, is one step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class NoSuchStepError(LookupError):
    """A path leads nowhere from `step` on."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


@dataclass(frozen=True)
class Leaf:
    """One value of nested JSON, by its dotted path; `reason` is what the innermost object around it gives as one."""

    path: str
    value: Any
    reason: str | None = None


def along(node: Any, path: str) -> Iterator[Any]:
    """The values on the way, each step's own, the last one at the path; NoSuchStepError where there is none."""
    while path:
        step, node = _step(node, path)
        yield node
        path = path[len(step) + 1 :]


def value_at(node: Any, path: str) -> Any:
    """The value at a path; the whole for the empty one."""
    while path:
        step, node = _step(node, path)
        path = path[len(step) + 1 :]
    return node


def reason_at(node: Any, path: str) -> str | None:
    """The reason given by the innermost object around the value at a path."""
    found: str | None = None
    for holder in (node, *list(along(node, path))[:-1]):
        found = (holder.get("reason") if isinstance(holder, Mapping) else getattr(holder, "reason", None)) or found
    return found


def leaves(value: Any, path: str = "", reason: str | None = None, *, lists: bool = True) -> Iterator[Leaf]:
    """Every value of nested JSON; an empty list or object is one, and without `lists` a list that holds no object."""
    inner: Any = ()
    if isinstance(value, Mapping):
        reason = value.get("reason") or reason
        inner = value.items()
    elif isinstance(value, list) and (lists or _holds_objects(value)):
        inner = enumerate(value)
    if not inner or not value:
        yield Leaf(path, value, reason)
        return
    for name, entry in inner:
        yield from leaves(entry, f"{path}.{name}" if path else str(name), reason, lists=lists)


def _holds_objects(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and any(map(_holds_objects, value)))


def _step(node: Any, path: str) -> tuple[str, Any]:
    """The first step of a path, and the value there."""
    step = path.partition(".")[0]
    try:
        if isinstance(node, Mapping):
            step = _key(node, step, path)
            return step, node[step]
        if isinstance(node, Sequence) and not isinstance(node, str):
            return step, node[int(step)] if step.isdecimal() and len(step) < 10 else _entry(node, step)
        return step, getattr(node, step)
    except (LookupError, AttributeError, ValueError, StopIteration):
        raise NoSuchStepError(step) from None


def _key(node: Mapping[str, Any], step: str, path: str) -> str:
    if path in node:
        return path
    if step in node:
        return step
    return max((key for key in node if path.startswith(f"{key}.")), key=len, default=step)


def _entry(entries: Sequence[Any], step: str) -> Any:
    return next(entry for entry in entries if isinstance(entry, Mapping) and entry.get("id") == step)
