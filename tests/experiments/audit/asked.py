"""What the tests of this folder audit, in one launch for all of them: importing torch is what costs most.

A module asks for its files when it is imported, and looks at their reports when its tests run. Whoever looks first
starts the launch of everything that was asked for with the same number of processes. `conftest.ByFile` keeps modules
that ask together.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.experiments.audit import Report, Settings, audit_many


@dataclass(frozen=True)
class Request:
    """One file and the options that it is audited with."""

    file: Path
    options: tuple[tuple[str, Any], ...]

    @property
    def launch(self) -> tuple[int, float]:
        """Requests with the same can share a launch."""
        settings = Settings(**dict(self.options))
        return settings.ranks, settings.timeout


_WANTED: dict[Request, None] = {}
_FOUND: dict[Request, Report] = {}


class Reports(Mapping[str, Report]):
    """The reports of some files by their names."""

    def __init__(self, requests: Mapping[str, Request]) -> None:
        self._requests = requests

    def __getitem__(self, name: str) -> Report:
        request = self._requests[name]
        if request not in _FOUND:
            together = [each for each in _WANTED if each.launch == request.launch and each not in _FOUND]
            pairs = [(each.file, dict(each.options)) for each in together]
            _FOUND.update(zip(together, audit_many(pairs), strict=True))
        return _FOUND[request]

    def __or__(self, other: "Reports") -> "Reports":
        return Reports({**self._requests, **other._requests})

    def __iter__(self) -> Iterator[str]:
        return iter(self._requests)

    def __len__(self) -> int:
        return len(self._requests)


def ask(files: Mapping[str, Path], **options: Any) -> Reports:
    """Have these files audited, with these options, when a test looks at the first of their reports."""
    requests = {name: Request(file, tuple(sorted(options.items()))) for name, file in files.items()}
    _WANTED.update(dict.fromkeys(requests.values()))
    return Reports(requests)
