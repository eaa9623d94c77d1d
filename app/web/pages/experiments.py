"""The pages of the published experiments, and what other pages show of a bag."""

from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from samestep.app.evidence.bags import Bag, Library, Result, UnknownEvidenceError
from samestep.app.evidence.exhibits import Exhibit, exhibit_of, origin
from samestep.app.web.pages.layout import Layout, Pages


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


def experiments(layout: Layout, request: Request) -> Response:
    lang, book = layout.open(request)
    library = layout.site.evidence
    entries = [{"title": title, **Found.of(library, name).context()} for name, title in book.experiments(lang).items()]
    title = "实验" if lang == "zh" else "Experiments"
    return layout.finished(request, "experiments.html", title=title, description="", experiments=entries)


def experiment(layout: Layout, request: Request) -> Response:
    lang, book = layout.open(request)
    name = request.path_params["name"]
    title = book.experiment(lang, name)
    if title is None:
        raise HTTPException(404)
    found = Found.of(layout.site.evidence, name)
    return layout.finished(
        request,
        "experiment.html",
        title=title,
        description=found.result["question"][lang] if found.result else "",
        chapters=[one for one in book.chapters[lang] if any(ref.name == name for ref in one.evidence)],
        origin=origin(found.bag),
        **found.context(),
    )


PAGES: Pages = {
    "/{lang:lang}/experiments": experiments,
    "/{lang:lang}/experiments/{name}": experiment,
}
