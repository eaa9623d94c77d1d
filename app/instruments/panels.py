"""One instrument on a page: its inputs as typed, what is wrong with them, its view, and its addresses."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment
from markupsafe import Markup

from samestep.app.calculators import Calculator, registry
from samestep.app.contract.errors import FieldError, RefusedError
from samestep.app.contract.languages import Lang
from samestep.app.contract.models import Result
from samestep.app.instruments.bench import Bench, bench_of, more_of
from samestep.app.instruments.bodies import body_fields
from samestep.app.instruments.labels import in_words, labels_in
from samestep.app.instruments.own_page import FILE
from samestep.app.instruments.states import Shown, query_of, read_from_log, view_of
from samestep.app.instruments.symbols import written
from samestep.app.rendering.environment import block


@dataclass(frozen=True)
class Panel:
    """What `templates/calculators/NAME.html` shows.

    `prefix` stands before every field's name inside a chapter, where `action` is the chapter itself; `others` are the
    fields of the chapter's other panels, kept when this form is sent. `view` is None when the inputs are refused.
    `places` says in which cell of a field, counted from 0, its error is. `bench` is what only an own page has. `read`
    are the fields that a pasted log line gave. `example` is the state, as a query, that the text around speaks of.
    `labels` are what the form calls its fields, where there are errors. `symbols` are those that formulas share.
    """

    name: str
    id: str
    prefix: str
    action: str
    values: Mapping[str, str]
    errors: Mapping[str, str]
    view: Result | None
    lang: Lang
    page_url: str
    json_url: str
    csv_url: str
    result_url: str
    title: str = ""
    others: tuple[tuple[str, str], ...] = field(default=())
    places: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bench: Bench | None = None
    read: Mapping[str, str] = field(default_factory=dict)
    example: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    symbols: str = ""

    @property
    def card_url(self) -> str:
        """The picture of the state, as links to it are shown."""
        page, mark, state = self.page_url.partition("?")
        return f"{page.rstrip('/')}/card.png{mark}{state}"

    @property
    def status(self) -> int:
        return 200 if self.view is not None else 422


class Panels:
    """Makes panels and their HTML."""

    def __init__(self, jinja: Environment, root_path: str) -> None:
        self._jinja = jinja
        self._root = root_path.rstrip("/")
        self._labels: dict[tuple[Lang, str], dict[str, str]] = {}

    def own(self, lang: Lang, shown: Shown) -> Panel:
        """The panel of an own page."""
        bench = bench_of(shown)
        state = f"?{bench.query}" if bench.query else ""
        fields = {} if shown.withheld else dict(shown.fields)
        api = f"{self._root}/api/{shown.name}"
        return replace(
            self.result_panel(lang, shown),
            values={**default_texts(registry()[shown.name]), **fields},
            page_url=f"{self._page(lang, shown.name)}{state}",
            json_url=f"{api}?{query_of(fields)}" if fields else api,
            csv_url=f"{api}?{query_of(fields | {'format': 'csv'})}",
            title=self.words(lang, shown.name, "heading"),
            symbols=written(shown.name),
            bench=bench,
        )

    def result_panel(self, lang: Lang, shown: Shown) -> Panel:
        """What the result region of an own page needs of the panel, and no more."""
        name, page = shown.name, self._page(lang, shown.name)
        errors, places, labels = self._by_field(shown.refusals, registry()[name], lang)
        return Panel(
            name=name,
            id=name,
            prefix="",
            action=page,
            values={},
            errors=errors,
            places=places,
            labels=labels,
            view=shown.view,
            read=shown.read,
            lang=lang,
            page_url=page,
            json_url="",
            csv_url="",
            result_url=f"{page}/result",
        )

    def _page(self, lang: Lang, name: str) -> str:
        return f"{self._root}/{lang}/calculators/{name}"

    def panel(
        self,
        lang: Lang,
        calculator: Calculator,
        fields: Mapping[str, str],
        *,
        refusals: Iterable[FieldError] = (),
        place: str = "",
        identity: str = "",
        others: Iterable[tuple[str, str]] = (),
        example: Mapping[str, str] | None = None,
    ) -> Panel:
        """The panel of a state inside a chapter; `place` is the chapter's address that the form leads to.

        `example` is the state that the chapter begins with.
        """
        refusals = list(refusals)
        view = None
        read = read_from_log(calculator, fields)
        fields = {**fields, **read}
        try:
            view = view_of(calculator, fields)
        except RefusedError as error:
            refusals += error.errors
        name, state = calculator.name, ("?" + urlencode(fields) if fields else "")
        errors, places, labels = self._by_field(refusals, calculator, lang)
        page = self._page(lang, name)
        api = f"{self._root}/api/{name}"
        return Panel(
            name=name,
            id=identity or name,
            prefix=f"{identity or name}." if place else "",
            action=place or page,
            values={**default_texts(calculator), **fields},
            errors=errors,
            places=places,
            labels=labels,
            view=None if refusals else view,
            read=read,
            lang=lang,
            page_url=page + state,
            json_url=api + state,
            csv_url=f"{api}?{urlencode({**fields, 'format': 'csv'})}",
            result_url=f"{page}/result",
            title=self.words(lang, name, "heading"),
            symbols=written(name),
            others=tuple(others),
            example="" if example is None else urlencode(default_texts(calculator) | dict(example)),
        )

    def words(self, lang: Lang, name: str, which: str) -> str:
        """A text of a calculator's template by itself: `heading`, `subtitle` or `summary`."""
        return str(block(self._jinja, f"calculators/{name}.html", which, {"lang": lang})).strip()

    def html(self, panel: Panel) -> Markup:
        """The whole instrument."""
        template = self._jinja.get_template(f"calculators/{panel.name}.html")
        return Markup(template.render(panel=panel, lang=panel.lang))

    def more(self, lang: Lang, shown: Shown) -> str:
        """All numbers and the snippet: what is asked for when they are opened."""
        return self._jinja.get_template("_more.html").render(more=more_of(shown), lang=lang)

    def result(self, panel: Panel, *, printed: bool = False) -> str:
        """The inside of the result region: what a form's script asks for; `printed` without anything to press."""
        if panel.view is None:
            return self._jinja.get_template("_errors.html").render(panel=panel, lang=panel.lang)
        context: dict[str, object] = {"panel": panel, "view": panel.view, "lang": panel.lang}
        if printed:
            context["printed"] = True
        note = Markup(self._jinja.get_template("_read.html").render(context) if panel.read else "")
        return note + block(self._jinja, f"calculators/{panel.name}.html", "result", context)

    def _by_field(
        self, refusals: Iterable[FieldError], calculator: Calculator, lang: Lang
    ) -> tuple[dict[str, str], dict[str, tuple[int, ...]], dict[str, str]]:
        """Messages by the field they stand beside, the cells in it that they speak of, and what the form calls fields.

        What belongs to no field of the form comes under the empty name.
        """
        messages: dict[str, str] = {}
        places: dict[str, tuple[int, ...]] = {}
        labels: dict[str, str] = {}
        for refusal in refusals:
            labels = labels or self._form_labels(lang, calculator)
            known = refusal.field in calculator.query.model_fields or refusal.field in _body_names(calculator)
            told = refusal.message(lang)
            if refusal.field in labels:  # the form of the whole body shows names
                told = in_words(told, refusal.field, labels, lang)
            name = refusal.field if known else ""
            if refusal.field == FILE:  # all that is wrong with a file, so that it is corrected at one go
                messages[FILE] = "\n".join(filter(None, [messages.get(FILE), refusal.message(lang)]))
            elif name not in messages:
                messages[name] = told if known else f"{refusal.field} {told}".strip()
                places |= {name: refusal.place} if refusal.place else {}
        return messages, places, labels

    def _form_labels(self, lang: Lang, calculator: Calculator) -> dict[str, str]:
        """What the form of the panel calls its fields."""
        key = lang, calculator.name
        if key not in self._labels:
            context = {"panel": self.panel(lang, calculator, {}), "lang": lang}
            form = block(self._jinja, f"calculators/{calculator.name}.html", "form", context)
            self._labels[key] = labels_in(form, calculator.name)
        return self._labels[key]


@cache
def _body_names(calculator: Calculator) -> frozenset[str]:
    return frozenset(field.address for field in body_fields(calculator).values())


@cache
def default_texts(calculator: Calculator) -> dict[str, str]:
    """The fields of a panel at their defaults, as one would type them."""
    return {name: field_text(info.default) for name, info in calculator.query.model_fields.items()}


def field_text(value: Any) -> str:
    """A value in the grammar of GET fields: `0.1`, `1/3`, `2,3;8,0`; blank for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ";".join(",".join(map(field_text, row)) if isinstance(row, tuple) else field_text(row) for row in value)
    if isinstance(value, Fraction):
        decimal = f"{float(value):.15g}"
        return decimal if Fraction(decimal) == value else str(value)
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value)
