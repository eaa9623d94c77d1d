"""The report of a watch as one page that needs nothing else: no server, no script, no other file.

It looks like the wiki, whose style sheets it carries, and every update links to the section and the calculator's state
that explain it, on the wiki at `wiki`. Every number is the JSON report's, under its dotted path there (`data-field`).
"""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from samestep.app.paths import folder
from samestep.app.rendering.environment import environment
from samestep.experiments.audit.telling.page import WIKI, _no_asset, styles
from samestep.experiments.watch.telling.printing import VERDICTS, Language
from samestep.experiments.watch.telling.report import CellReport, Report, as_json

LISTED = 256
"""Cells of an update that the table lists; the figure shows as many."""


def write(report: Report, path: Path, language: Language = "en", wiki: str | None = None) -> None:
    """Write the page. `wiki`: where its links begin, by default at SAMESTEP_BASE_URL or the usual address here."""
    path.write_text(page(report, language, wiki or os.environ.get("SAMESTEP_BASE_URL") or WIKI), "utf-8")


def page(report: Report, language: Language, wiki: str = WIKI) -> str:
    """The page as HTML."""
    jinja = environment(folder("templates"), _no_asset, wiki)
    return jinja.get_template("watch_report.html").render(
        lang=language,
        report=report,
        view=json.loads(as_json(report)),
        verdicts=VERDICTS,
        command=shlex.join(["samestep-lab", "watch", "--", *report.command]) if report.command else None,
        cells=[_listed(update.cells) for update in report.updates],
        reach=max((_reach(update.cells) for update in report.updates), default=1.0),
        styles=Markup("<style>{}</style>").format(Markup(styles())),
    )


def _listed(cells: Sequence[Sequence[CellReport]]) -> list[tuple[int, int, CellReport]]:
    """The first cells in rank order, with their places."""
    return [(r, k, cell) for r, rank in enumerate(cells) for k, cell in enumerate(rank)][:LISTED]


def _reach(cells: Sequence[Sequence[CellReport]]) -> float:
    """How far the figure's axis goes: the largest share, at least 1."""
    return max((abs(cell.share) for rank in cells for cell in rank if cell.share is not None), default=1.0) or 1.0
