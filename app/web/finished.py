"""Pages without a state: in memory as soon as they are made, and in the cache folder for the next start.

What a page shows of the evidence holds as long as no bag changes. A page that was made while one did is shown to who
asked for it, and made again.
"""

from dataclasses import dataclass, field

from samestep.app.evidence.bags import Library
from samestep.app.paths import Kept
from samestep.app.web.ready import Ready, security_headers


@dataclass(frozen=True)
class EvidenceState:
    """The digests of all bags, and how often one of them had changed: a page may have been made between two looks."""

    changes: int
    bags: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, library: Library) -> "EvidenceState":
        bags = tuple((bag.name, bag.etag) for bag in library.bags())
        return cls(library.changes, bags)


@dataclass(frozen=True)
class Finished:
    """The pages of one state of the evidence.

    `ready` maps a path to the answer that is sent without asking anybody; `kept` has the pages of earlier starts.
    """

    ready: dict[str, Ready]
    library: Library
    state: EvidenceState
    kept: Kept | None
    _new: dict[str, Ready] = field(default_factory=dict)

    def found(self, path: str) -> Ready | None:
        """A page of an earlier start."""
        entry = self.kept.read(path) if self.kept else None
        if entry is None:
            return None
        ready = self.ready[path] = Ready.kept(entry, page_headers())
        return ready

    def add(self, path: str, page: Ready) -> None:
        """Take a page, unless a bag was found to have changed since this state was seen."""
        if self.library.changes == self.state.changes:
            self.ready[path] = self._new[path] = page

    def settle(self) -> None:
        """Keep what is new for the next start: the evidence was just seen to be as it was."""
        while self._new and self.kept:
            path, page = self._new.popitem()
            self.kept.write(path, page.entry())


def page_headers() -> list[tuple[bytes, bytes]]:
    """What every page is sent with."""
    return [(b"cache-control", b"no-cache"), *security_headers()]
