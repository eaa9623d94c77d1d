"""The guided start: from what a reader sees to the instrument that tells."""

from typing import Any
from urllib.parse import parse_qsl

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from samestep.app.calculators import registry
from samestep.app.instruments.start import Answer, Guide, load_guide
from samestep.app.instruments.states import shown
from samestep.app.paths import folder
from samestep.app.web.pages.layout import Layout, Pages


def start(layout: Layout, request: Request) -> Response:
    """From what a reader sees to the instrument that tells; `?answer=SYMPTOM.NUMBER` and its fields answer here."""
    lang, _ = layout.open(request)
    words = {
        "zh": ("从现象开始", "看到的现象、可能的原因，和一台填好了数的计算器。"),
        "en": ("Start from what you see", "What you see, what it may be, and an instrument that is filled in."),
    }
    title, description = words[lang]
    guide = load_guide(folder("content"))
    titles = {name: layout.site.panels.words(lang, name, "heading") for name in registry()}
    context: dict[str, Any] = {"guide": guide, "titles": titles, "title": title, "description": description}
    if not request.url.query:
        return layout.finished(request, "start.html", **context)
    fields = dict(parse_qsl(request.url.query, keep_blank_values=True))
    found = _answers(guide).get(fields.pop("answer", ""))
    if found is None:
        return layout.page(request, "start.html", **context)
    state = shown(registry()[found.calculator], list(fields.items()))
    panel = layout.site.panels.result_panel(lang, state)
    context |= {"asked": found, "panel": panel, "values": state.fields, "query": state.query()}
    if panel.view is not None:
        context["result"] = Markup(layout.site.panels.result(panel))
    return layout.page(request, "start.html", panel.status, **context)


PAGES: Pages = {"/{lang:lang}/start": start}


def _answers(guide: Guide) -> dict[str, Answer]:
    """Every answer under the name that a form on the page gives it."""
    return {f"{symptom.id}.{i}": answer for symptom in guide.symptom for i, answer in enumerate(symptom.answer)}
