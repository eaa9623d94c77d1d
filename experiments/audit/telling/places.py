"""Where in the reader's files a finding is about, and what to write there."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from samestep.experiments.audit.running.trace import Trace
from samestep.experiments.audit.telling.edits import EDITS
from samestep.experiments.audit.telling.report import Finding, Site

EVENTS: dict[str, tuple[str, ...]] = {
    "scale": ("backward",),
    "replica_equal": ("backward",),
    "microbatch_equal": ("backward",),
    "sample_share": ("backward",),
    "dropped_microbatch": ("zero_grad", "backward"),
    "duplicated_samples": ("backward",),
    "not_reduced": ("collective all_reduce", "backward", "step"),
    "reduced_repeatedly": ("collective all_reduce",),
    "not_handed_on": ("step",),
    "scaled_by_rank": ("collective all_reduce", "step"),
    "skipped_alone": ("skip", "step"),
    "moved_inside_window": ("backward",),
    "carried_over": ("backward",),
    "changed_after_step": ("step",),
    "parameters_averaged": ("step",),
    "parts_alone": ("backward",),
    "missing_negatives": ("backward",),
    "batch_statistics": ("backward",),
    "regulariser": ("backward", "step"),
    "lossy_reduction": ("collective all_reduce", "step"),
    "local_norm": ("clip", "note norm", "step"),
    "per_rank_clip": ("clip", "note norm", "step"),
    "copies_counted": ("clip", "note norm", "step"),
    "clip_before_unscale": ("clip",),
    "clip_before_division": ("clip",),
    "per_microbatch_clip": ("clip",),
    "step_inside_window": ("step",),
    "stale_gradient": ("backward", "step"),
    "stepped_on_empty": ("step",),
    "zero_for_none": ("step",),
    "optimizer_state": ("step",),
    "update_on_shards": ("step",),
    "settings": ("scheduler", "step"),
    "precision": ("backward",),
    "random_numbers": ("backward",),
    "unknown": ("backward", "step"),
}
"""For each cause, the calls that it is about."""


def placed(finding: Finding, traces: Sequence[Trace], file: Path) -> Finding:
    """The finding with lines of the reader's files, as the first run that has one says, and with its edit."""
    sites = []
    detached = next((place for trace in traces for place in trace.detached.values()), None)
    if finding.cause == "detached_remote" and detached:
        sites.append(_site("collective", detached, file))
    for event in EVENTS.get(finding.cause, ()):
        place = next((trace.sites[event] for trace in traces if event in trace.sites), None)
        if place:
            sites.append(_site(event, place, file))
    by_hand = finding.cause == "settings" and not any("scheduler" in trace.sites for trace in traces)
    edit = EDITS.get("settings by hand" if by_hand else finding.cause)
    of_the_loss = None if finding.only else EDITS.get(finding.factor or "")
    return replace(finding, sites=tuple(sites), edit=of_the_loss or edit)


def _site(event: str, place: str, file: Path) -> Site:
    name, _, number = place.rpartition(":")
    source = file.parent / name
    lines = source.read_text("utf-8", errors="replace").splitlines() if source.is_file() else []
    line = lines[int(number) - 1].partition("  #")[0].strip() if 0 < int(number) <= len(lines) else ""
    return Site(event, place, line)
