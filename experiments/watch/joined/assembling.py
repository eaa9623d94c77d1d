"""From the folder that the ranks wrote into to the report of the run."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.failure import Failure
from samestep.experiments.watch import records
from samestep.experiments.watch.joined import judgement
from samestep.experiments.watch.records import RankLog
from samestep.experiments.watch.telling import causes
from samestep.experiments.watch.telling.causes import NOTES, filled
from samestep.experiments.watch.telling.report import Report, UpdateReport

PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed", "recv error")
"""What a rank says whose peer has failed before it."""
GONE = "ended without an exception, as a process that is killed or out of memory does: its peers lost their connection"
RECIPES = {
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "trl": "trl",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
}
"""Frameworks with a page of their own on what they divide by; the outermost first, as they import each other."""
_SILENT = ("compiled_loss", "collectives_in_step")
"""Notices that are said in an update's sentence."""


def assemble(folder: Path, objective: str, command: Sequence[str] = (), failure: Failure | None = None) -> Report:
    """The report of what is in the folder. `failure`: how the run ended, where no rank says it better."""
    logs = records.ranks(folder)
    failed = _failure(logs, failure) or failure
    refused = next((notice.code for log in logs.values() for notice in log.notices if notice.fatal), None)
    faults = [fault.message for log in logs.values() for fault in log.faults]
    refusal = causes.REFUSALS[refused] if refused else None
    if refusal is None and failed is None and _apart(logs):
        refusal = filled(causes.REFUSALS["apart"], size=len(logs), script=next(iter(logs.values())).header.script)
    found = judgement.updates(logs, objective) if logs and refusal is None else []
    if failed is None and refusal is None and not logs:
        refusal = causes.REFUSALS["nothing"]
    if faults and not found:
        refusal = filled(causes.REASONS["fault"], fault=faults[0])
    first = next(iter(logs.values())).header if logs else None
    return Report(
        script=first.script if first else (Path(command[0]).name if command else ""),
        command=tuple(command),
        environment=first.environment if first else {},
        updates=tuple(found),
        failure=failed,
        refusal=refusal,
        empty=causes.EMPTY["no_step"],
        notes=tuple(_notes(logs, found, faults)),
        recipes=tuple(_recipes(first.environment)) if first else (),
        objective=objective,
    )


def _apart(logs: Mapping[int, RankLog]) -> bool:
    """Several processes were started as ranks, and none joined a process group: each trained by itself."""
    return len(logs) > 1 and not any("backend" in log.header.environment for log in logs.values())


def _failure(logs: Mapping[int, RankLog], ended: Failure | None) -> Failure | None:
    """The exception that came first. One that only says that a peer is gone comes last, after who is gone.

    ended   what the launcher says of the process that ended first
    """
    failures = [(_lost_a_peer(f.message), f.at, rank, f) for rank, log in logs.items() for f in log.failures]
    if not failures:
        return None
    lost, _, rank, first = min(failures, key=lambda each: each[:3])
    if lost and (gone := _gone(logs, ended)) is not None:
        return gone
    return Failure(first.message, rank if first.rank is None else first.rank, own_traceback=first.traceback)


def _lost_a_peer(message: str) -> bool:
    return any(each in message for each in PEER_GONE)


def _gone(logs: Mapping[int, RankLog], ended: Failure | None) -> Failure | None:
    """The rank that the others have lost: the one that was killed, or the only one that has not told of its end."""
    if ended is not None and ended.rank is not None and "killed" in ended.message:
        return ended
    size = max((log.header.world_size for log in logs.values()), default=0)
    silent = [r for r in range(size) if r not in logs or not (logs[r].ended or logs[r].failures)]
    return Failure(GONE, silent[0]) if len(silent) == 1 else None


def _notes(logs: Mapping[int, RankLog], found: Sequence[UpdateReport], faults: Sequence[str]) -> Iterator[Text]:
    told = dict.fromkeys(
        (notice.code, notice.where) for log in logs.values() for notice in log.notices if not notice.fatal
    )
    for code, where in told:
        if code not in _SILENT:
            yield filled(NOTES[code], where=where)
    if len({len(log.updates) for log in logs.values()}) > 1 and found:
        yield NOTES["faster_ranks"]
    size = max((log.header.world_size for log in logs.values()), default=0)
    if len(logs) < size:
        yield filled(NOTES["missing_ranks"], size=size, seen=len(logs))
    if faults and found:
        yield filled(causes.NOTES["fault"], fault=faults[0])


def _recipes(environment: Mapping[str, str]) -> Iterator[str]:
    """Addresses of frameworks' pages, below the language."""
    present = [page for name, page in RECIPES.items() if name in environment]
    if present:
        yield f"conformance/{present[0]}"


def complete(folder: Path) -> bool:
    """Every rank of the run has seen what it was asked to see, and none has failed."""
    logs = records.ranks(folder)
    size = max((log.header.world_size for log in logs.values()), default=0)
    return bool(logs) and len(logs) >= size and all(log.done and not log.failures for log in logs.values())
