"""The pages of the published experiments, and what other pages show of a bag."""

from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from samestep.app.evidence.bags import Bag, Library, Result, UnknownEvidenceError
from samestep.app.evidence.exhibits import Exhibit, exhibit_of, origin
from samestep.app.web.pages.layout import Layout


@dataclass(frozen=True)
class Found:
    """`bag` as it stands now, None while nothing is published; `exhibit` is None also where it is damaged."""

    name: str
    bag: Bag | None
    exhibit: Exhibit | None

    @classmethod
    def of(cls, library: Library, name: str) -> "Found":
        try:
            bag = library.bag(name)
        except UnknownEvidenceError:
            return cls(name, None, None)
        return cls(name, bag, exhibit_of(bag))

    @property
    def result(self) -> Result | None:
        return self.exhibit.result if self.exhibit else None

    def context(self) -> dict[str, object]:
        """As templates find it."""
        return {"name": self.name, "bag": self.bag, "result": self.result, "exhibit": self.exhibit}


class ExperimentPages:
    """The handlers."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._site = layout.site

    def routes(self) -> list[Route]:
        return [
            Route("/{lang:lang}/experiments", self._layout.beside(self.experiments)),
            Route("/{lang:lang}/experiments/{name}", self._layout.beside(self.experiment)),
        ]

    def experiments(self, request: Request) -> Response:
        lang, book = self._layout.open(request)
        library = self._site.evidence
        entries = [
            {"title": title, **Found.of(library, name).context()} for name, title in book.experiments(lang).items()
        ]
        title = "实验" if lang == "zh" else "Experiments"
        return self._layout.finished(request, "experiments.html", title=title, description="", experiments=entries)

    def experiment(self, request: Request) -> Response:
        lang, book = self._layout.open(request)
        name = request.path_params["name"]
        title = book.experiment(lang, name)
        if title is None:
            raise HTTPException(404)
        found = Found.of(self._site.evidence, name)
        return self._layout.finished(
            request,
            "experiment.html",
            title=title,
            description=found.result["question"][lang] if found.result else "",
            chapters=[one for one in book.chapters[lang] if any(ref.name == name for ref in one.evidence)],
            origin=origin(found.bag),
            **found.context(),
        )
