"""Found by every Python that the launcher's environment reaches: have the run watched once torch has been imported.

It imports nothing of ours before that, runs the sitecustomize that it hides, and keeps its own mistakes to itself.
"""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def _hidden() -> None:
    """The environment's own sitecustomize, if it has one."""
    elsewhere = [place for place in sys.path if os.path.abspath(place or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


class _AfterTorch:
    """A finder that finds torch as the others do, and begins to watch once it has been executed."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]  # runs before anything else
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_then_watch(module):  # type: ignore[no-untyped-def]
            execute(module)
            _watch()

        spec.loader.exec_module = execute_then_watch  # type: ignore[method-assign]
        return spec


class _OnlyOurs:
    """A finder for the one package that this file is part of, where the environment has none of that name."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "samestep":
            return None
        return importlib.machinery.PathFinder.find_spec(name, [os.path.abspath(os.path.join(HERE, *[os.pardir] * 4))])


def _watch() -> None:
    sys.meta_path.append(_OnlyOurs())
    try:
        from samestep.experiments.watch import session

        session.from_environment()
    except Exception as error:  # the reader's training goes on unwatched
        print(f"samestep-lab: this process is not watched: {error!r}", file=sys.stderr)


if os.environ.get("SAMESTEP_WATCH"):
    sys.meta_path.insert(0, _AfterTorch())
_hidden()
