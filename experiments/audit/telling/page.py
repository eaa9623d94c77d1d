"""The report of an audit as one page that needs nothing else: no server, no script, no other file.

It looks like the wiki, whose style sheets it carries, and every finding links to the section and the calculator's state
that explain it, on the wiki at `wiki`. Every number is the JSON report's, under its dotted path there (`data-field`).
"""

import json
import os
import platform
import shlex
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from markupsafe import Markup

from samestep.app.paths import folder
from samestep.app.rendering import style_sheets
from samestep.app.rendering.environment import environment
from samestep.experiments.audit.settings import Settings
from samestep.experiments.audit.telling.printing import STAGES, STATUSES, VERDICTS, Language
from samestep.experiments.audit.telling.report import Finding, Report, as_json

WIKI = "http://127.0.0.1:8000"
"""Where `samestep` serves the wiki unless told otherwise."""


def write(report: Report, path: Path, language: Language = "en", wiki: str | None = None) -> None:
    """Write the page. `wiki`: where its links begin, by default at SAMESTEP_BASE_URL or the usual address here."""
    path.write_text(page(report, language, wiki or os.environ.get("SAMESTEP_BASE_URL") or WIKI), "utf-8")


def page(report: Report, language: Language, wiki: str = WIKI) -> str:
    """The page as HTML."""
    jinja = environment(folder("templates"), _no_asset, wiki)
    return jinja.get_template("audit_report.html").render(
        lang=language,
        report=report,
        view=json.loads(as_json(report)),
        order=_order(report),
        address=partial(_address, language),
        command=command(report),
        python=platform.python_version(),
        torch=_version("torch"),
        verdicts=VERDICTS,
        stages=STAGES,
        statuses=STATUSES,
        styles=Markup("<style>{}</style>").format(Markup(styles())),
    )


def _no_asset(name: str) -> str:
    raise LookupError(f"a page of its own has no static file “{name}”")


def styles() -> str:
    """The wiki's style sheets, those that a report needs."""
    css = folder("static") / "css"
    return style_sheets.bundle("audit", lambda name: (css / f"{name}.css").read_text("utf-8"))


def _order(report: Report) -> list[int]:
    """Positions of the plans, the one that the headline is about first."""
    return sorted(range(len(report.plans)), key=lambda i: report.plans[i] is not report.headline)


def _address(language: Language, finding: Finding, kind: str) -> str:
    """Where the wiki explains a finding, from its root on: the `chapter` with its section, or the `calculator`."""
    place = finding.chapter if kind == "chapter" else f"calculators/{finding.calculator}"
    return f"/{language}/{place}"


def command(report: Report) -> str | None:
    """The command line that repeats the audit; None for plans of one's own, which only Python can pass on."""
    if not isinstance(report.settings.plan, str):
        return None
    return shlex.join(["samestep-lab", "audit", report.file.name, *_options(report.settings)])


def _options(settings: Settings) -> Iterator[str]:
    """What differs from the usual settings, and always how many processes and microbatches, and the plan."""
    shown: dict[str, Any] = {name: getattr(settings, name) for name in ("processes", "microbatches", "plan")}
    usual = Settings()
    others = ("backend", "dtype", "atol", "timeout", "steps")
    shown |= {name: value for name in others if (value := getattr(settings, name)) != getattr(usual, name)}
    for name, value in shown.items():
        yield from (f"--{name}", f"{value:g}" if isinstance(value, float) else str(value))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"
