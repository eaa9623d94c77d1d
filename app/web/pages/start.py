"""The guided start: from what a reader sees to the instrument that tells."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from samestep.app.calculators import registry
from samestep.app.instruments.start import load_guide
from samestep.app.paths import folder
from samestep.app.web.pages.layout import Layout


class StartPages:
    """The handlers."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._site = layout.site

    def routes(self) -> list[Route]:
        return [
            Route("/{lang:lang}/start", self._layout.beside(self.start)),
        ]

    def start(self, request: Request) -> Response:
        """From what a reader sees to the instrument that tells, in at most two steps."""
        lang, _ = self._layout.open(request)
        words = {
            "zh": ("从现象开始", "看到的现象、可能的原因，和一台填好了数的计算器。"),
            "en": ("Start from what you see", "What you see, what it may be, and an instrument that is filled in."),
        }
        title, description = words[lang]
        guide = load_guide(folder("content"))
        titles = {name: self._site.panels.words(lang, name, "heading") for name in registry()}
        context = {"guide": guide, "titles": titles}
        return self._layout.finished(request, "start.html", title=title, description=description, **context)
