"""From the runs of a file to its report: compare every plan, update by update, and explain the first that differs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging import compare, lints, noise, precision, selfcheck, stages
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.judging.explanation import explain, explain_events
from samestep.experiments.audit.judging.selfcheck import SelfCheck
from samestep.experiments.audit.judging.vacuity import vacuous
from samestep.experiments.audit.running import joining, perform, staging
from samestep.experiments.audit.running.limits import limits
from samestep.experiments.audit.running.plans import Plan
from samestep.experiments.audit.running.reader import ReaderFile, load
from samestep.experiments.audit.running.rows import Rows
from samestep.experiments.audit.running.trace import Run, Trace, merged
from samestep.experiments.audit.running.variations import Variations
from samestep.experiments.audit.settings import Settings
from samestep.experiments.audit.telling import remarks
from samestep.experiments.audit.telling.places import placed
from samestep.experiments.audit.telling.report import Finding, PlanReport, RankLog, Report, Verdict
from samestep.experiments.audit.telling.wording import finding, listing


def diagnose(place: Path, folder: Path, plans: Sequence[Plan], settings: Settings, device: torch.device) -> Report:
    """The report of one file whose runs are in the folder. May run variations of the reference, in a world of one."""
    dtype: torch.dtype = getattr(torch, settings.dtype)
    file = load(place, dtype)
    reference = perform.loaded(folder / "reference")
    subject = Subject(place, folder, settings, device, file, reference)
    reports = tuple(subject.plan_report(plan) for plan in plans)
    return Report(
        place,
        reports,
        settings=settings,
        samples=len(subject.weights),
        weight=sum(subject.weights),
        parameters=reference.updates[-1].parameters.numel,
    )


@dataclass(frozen=True)
class Pair:
    """One update: the reference's and every rank's. `alone`: it is the first of its call, so that it can be varied."""

    call: int
    reference: Trace
    ranks: list[Trace]
    alone: bool


class Subject:
    """One file with its reference: what all plans share."""

    def __init__(
        self, place: Path, folder: Path, settings: Settings, device: torch.device, file: ReaderFile, reference: Run
    ) -> None:
        self.place, self.folder, self.settings, self.device = place, folder, settings, device
        self.reference = reference
        data = file.data()
        self.weights = file.weights(data)
        self.numbers = Rows(data).numbers
        self.sizes = {name: tensor.numel() for name, tensor in data.items() if tensor.dim() > 1}
        self._dtype: torch.dtype = getattr(torch, settings.dtype)
        self._variations: dict[int, Variations] = {}
        self._check: SelfCheck | None = None

    def variations(self, call: int) -> Variations:
        """Runs on one process that begin where this call of step() began."""
        if call not in self._variations:
            begin = None
            if call:
                before = self.reference.of_call(call - 1)[-1]
                begin = replace(before, vectors={"initial": before.parameters, "buffers": before.vectors["buffers"]})
            place = self.folder / f"call{call}"
            self._variations[call] = Variations(self.place, place, self._dtype, self.device, begin)
        return self._variations[call]

    @property
    def check(self) -> SelfCheck:
        """Whether the reference's gradient is the derivative of its loss."""
        if self._check is None:
            if len(self.reference.of_call(0)) > 1:
                self._check = SelfCheck(reason="step() makes several updates")
            else:
                self._check = selfcheck.check(self.reference.updates[0], self.variations(0))
        return self._check

    def plan_report(self, plan: Plan) -> PlanReport:
        """Compare the updates in order, up to the first that differs."""
        runs = [perform.loaded(self.folder / plan.name / f"rank{rank}") for rank in range(len(plan.cells))]
        pairs = list(_pairs(self.reference, runs))
        reports: list[PlanReport] = []
        comparable = len(pairs)
        for number, pair in enumerate(pairs, 1):
            case = self._case(plan, pair)
            if number > comparable:
                if (fault := stale(case)) is None:
                    continue
                return self._report(case, runs, number, len(pairs), fault)
            reports.append(self._report(case, runs, number, len(pairs)))
            if reports[-1].verdict != "same":
                return reports[-1]
            if not self._agrees(pair):
                comparable = number
        return replace(reports[0], updates=comparable, notes=(*reports[0].notes, *_rounded(comparable, len(pairs))))

    def _agrees(self, pair: Pair) -> bool:
        """Without any allowance for rounding, so that the next update begins with the same parameters."""
        known = pair.reference.parameters, pair.ranks[0].parameters
        return not compare.vectors(*known, self.settings.tolerance).there

    def _case(self, plan: Plan, pair: Pair) -> Case:
        first = self.variations(pair.call)
        level = noise.floor(self.reference.updates[0], plan, self.weights, self.variations(0), self.settings.tolerance)
        place = self.folder / plan.name
        staged = staging.is_staged(pair.reference, pair.ranks)
        ranks = pair.ranks
        if staged:
            ranks = staging.whole(ranks, place)
        elif staging.shares_the_steps(pair.reference, ranks):
            ranks = staging.whole(ranks, place, staging.GRADIENTS)
        known = joining.joined(pair.reference, ranks, place)
        return Case(
            plan,
            known.reference,
            known.ranks,
            self.weights,
            self.numbers,
            level.level,
            place,
            first if pair.alone else None,
            self.sizes,
            staged,
            level.type,
            max(self.settings.tolerance, 2 * precision.UNITS.get(pair.reference.stored, 0.0)),
            known.pieces,
        )

    def _report(
        self, case: Case, runs: Sequence[Run], number: int, updates: int, fault: Finding | None = None
    ) -> PlanReport:
        """`fault`: one that is known already."""
        found = stages.compared(case)
        first = stages.first(found)
        verdict, reason = ("different", fault) if fault else self._verdict(case, found, first)
        gradient = found["gradient"]
        notes = remarks.remarks(case, found, first, [self.reference, *runs])
        if not case.drawn:
            notes += lints.remarks(self.reference, runs, self.check)
        return PlanReport(
            case.plan.name,
            tuple(tuple(row) for row in case.plan.counts),
            tuple(tuple(case.count(cell) for cell in row) for row in case.plan.cells),
            verdict,
            stages.listed(found, first),
            first,
            placed(reason, [*case.ranks, case.reference], self.place) if reason else None,
            case.rows() if gradient is not None and case.gradient is not None else (),
            _log(case.reference),
            tuple(_log(trace) for trace in case.ranks),
            limits(case),
            tuple(notes),
            number,
            updates,
        )

    def _verdict(self, case: Case, found: stages.Found, first: str | None) -> tuple[Verdict, Finding | None]:
        if nothing := vacuous(case, first):
            return "vacuous", nothing
        if first is None:
            fault = lints.linted(case, None if case.drawn else self.check)
            return ("different", fault) if fault else ("same", None)
        if case.drawn and first not in ("samples", "replicas") and explain_events(case) is None:
            return "vacuous", finding(case, "random_numbers", drawn=listing(case.drawn))
        return "different", explain(case, found, first)


def _pairs(reference: Run, runs: Sequence[Run]) -> Iterator[Pair]:
    """Update by update. Calls in which ranks and reference make different numbers of updates are one each, the last."""
    for call in range(min(run.calls for run in (reference, *runs))):
        mine, theirs = reference.of_call(call), [run.of_call(call) for run in runs]
        if all(len(each) == len(mine) for each in theirs):
            for i, update in enumerate(mine):
                yield Pair(call, update, [each[i] for each in theirs], alone=i == 0)
            continue
        yield Pair(call, merged(mine), [merged(each) for each in theirs], alone=len(mine) == 1)
        return


def stale(case: Case) -> Finding | None:
    """Gradients that were there before the first backward: whatever else rounds, they are added to."""
    leftover = max(trace.leftover for trace in case.ranks)
    return finding(case, "stale_gradient", leftover=leftover) if leftover > 0 else None


def _rounded(comparable: int, updates: int) -> tuple[Text, ...]:
    if comparable == updates:
        return ()
    return (
        {
            "en": f"of {updates} updates {comparable} was compared number by number: then what was rounded goes on",
            "zh": f"{updates} 次更新中逐数比较了 {comparable} 次：之后舍入的差异会延续下去",
        },
    )


def _log(trace: Trace) -> RankLog:
    return RankLog(
        trace.rank,
        tuple(trace.events),
        tuple(trace.losses),
        tuple(trace.norms),
        trace.collectives,
        trace.leftover,
    )
