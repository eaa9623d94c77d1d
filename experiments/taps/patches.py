"""Replace attributes so that they can be put back, and wait for modules that may be imported later."""

import functools
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

Function = Callable[..., Any]
Wrapper = Callable[..., Any]
"""Called with the original function first, then with what the caller gave."""


class Patches:
    """What has been replaced so far; `undo` puts it back, the last one first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, wrapper: Wrapper, *, everywhere: bool = True) -> None:
        """Have `wrapper(original, *args, **kwargs)` run in place of `owner.name`.

        everywhere   also in modules that have imported the function by its name; False: in `owner` alone, so that a
                     library's own calls of it are left as they are
        """
        original = getattr(owner, name)

        def replacement(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        wrapped = functools.wraps(original)(replacement)
        self.put(owner, name, wrapped)
        if everywhere and isinstance(owner, types.ModuleType):
            for module in list(sys.modules.values()):  # whoever has imported the function by its name
                if getattr(module, "__dict__", {}).get(name) is original:
                    self.put(module, name, wrapped)

    def wrap_in_place(self, owner: types.ModuleType, name: str, after: Callable[[Any], None]) -> None:
        """Have `after(result)` run after a function that may also be compiled, from source or by tracing.

        The replacement has the globals of the original: TorchScript reads the original's source, but resolves names
        in what it was given. While a compiler traces, it is the original alone.
        """
        original, compiling = getattr(owner, name), _compiling

        def replacement(*args, **kwargs):  # type: ignore[no-untyped-def]  # copied below, annotations would not follow
            result = original(*args, **kwargs)
            if not compiling():
                after(result)
            return result

        copied = types.FunctionType(
            replacement.__code__, original.__globals__, name, replacement.__defaults__, replacement.__closure__
        )
        self.put(owner, name, functools.update_wrapper(copied, original))

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Set the attribute, and remember what was there."""
        original = owner.__dict__.get(name, getattr(owner, name))
        setattr(owner, name, replacement)

        def undo() -> None:
            if owner.__dict__.get(name) is replacement:  # somebody else may have wrapped it since
                setattr(owner, name, original)

        self._undo.append(undo)

    def later(self, undo: Callable[[], None]) -> None:
        """Something else that `undo` has to do."""
        self._undo.append(undo)

    def when_imported(self, module: str, do: Callable[[types.ModuleType], None]) -> None:
        """Call `do(module)` now if it is there, else right after it has been executed."""
        if (found := sys.modules.get(module)) is not None:
            do(found)
            return
        finder = _After(module, do)
        sys.meta_path.insert(0, finder)
        self.later(finder.withdraw)

    def undo(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()


def _compiling() -> bool:
    import torch

    return torch.compiler.is_compiling()


class _After:
    """A finder that finds one module as the others do, and acts once it has been executed."""

    def __init__(self, module: str, do: Callable[[types.ModuleType], None]) -> None:
        self.module, self.do = module, do

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.module:
            return None
        self.withdraw()
        spec = next(
            (
                found
                for finder in sys.meta_path
                if (find := getattr(finder, "find_spec", None)) and (found := find(name, path, target))
            ),
            None,
        ) or PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        execute = spec.loader.exec_module

        def execute_then_act(module: types.ModuleType) -> None:
            execute(module)
            self.do(module)

        spec.loader.exec_module = execute_then_act  # type: ignore[method-assign]
        return spec

    def withdraw(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
