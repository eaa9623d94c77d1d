"""Audit files from Python: start the ranks, collect the reports."""

import pickle
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from samestep.experiments.audit.job import Job
from samestep.experiments.audit.launch import LaunchError, launch
from samestep.experiments.audit.settings import Settings, SettingsError
from samestep.experiments.audit.telling.report import Report, failed

File = str | Path
SHARED = ("ranks", "backend", "dtype", "timeout")
"""What files that are audited together have in common."""


def audit(file: File, **options: Any) -> Report:
    """Audit one file; the options are those of `Settings`.

    Whatever is wrong with the file is in the report (`verdict == "error"`, `failure`); raises SettingsError alone.
    """
    return audit_many([file], **options)[0]


def audit_many(files: Sequence[File | tuple[File, Mapping[str, Any]]], **options: Any) -> list[Report]:
    """Audit several files with one set of processes. A file that ends them costs the others another launch.

    A file that is to be audited otherwise than the rest comes with options of its own, `(file, {"plan": "all"})`.
    Raises SettingsError where that would take other processes.
    """
    pairs = [each if isinstance(each, tuple) else (each, {}) for each in files]
    settings = tuple(Settings(**{**options, **own}) for _, own in pairs)
    for name in SHARED:
        if len({getattr(each, name) for each in settings}) > 1:
            raise SettingsError(f"files that are audited together need the same {name}")
    if not pairs:
        return []
    folder = Path(tempfile.mkdtemp(prefix="samestep-audit-"))
    job = Job(tuple(Path(file).resolve() for file, _ in pairs), settings, folder)
    try:
        job.order.write_bytes(pickle.dumps(job))
        while any(not job.report(index).exists() for index in range(len(files))):
            try:
                launch(job)
            except LaunchError as error:
                _blame(job, error)
        reports: list[Report] = [pickle.loads(job.report(index).read_bytes()) for index in range(len(files))]
        return [replace(report, settings=own) for report, own in zip(reports, settings, strict=True)]
    finally:
        shutil.rmtree(folder)


def _blame(job: Job, error: LaunchError) -> None:
    """Give the file that ended the launch its report; if it has one, the first that has none."""
    open_ones = [index for index in range(len(job.files)) if not job.report(index).exists()]
    index = error.index if error.index in open_ones else open_ones[0]
    job.place(index).mkdir(exist_ok=True)
    job.report(index).write_bytes(pickle.dumps(failed(job.files[index], error.failure)))
