"""One instrument on a page: its inputs as typed, what is wrong with them, its view, and its addresses."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment
from markupsafe import Markup

from app.answers import view_of
from app.calculators import Calculator
from app.contract import Result
from app.errors import FieldError, RefusedError
from app.rendering import Lang, block


@dataclass(frozen=True)
class Panel:
    """What `templates/calculators/NAME.html` shows.

    `prefix` stands before every field's name inside a chapter, where `action` is the chapter itself; `others` are the
    fields of the chapter's other panels, kept when this form is sent. `view` is None when the inputs are refused.
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

    @property
    def status(self) -> int:
        return 200 if self.view is not None else 422


class Panels:
    """Makes panels and their HTML."""

    def __init__(self, jinja: Environment, root_path: str) -> None:
        self._jinja = jinja
        self._root = root_path.rstrip("/")

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
    ) -> Panel:
        """The panel of a state. `place` is the chapter's address that the form leads to; empty on the own page."""
        refusals = list(refusals)
        view = None
        try:
            view = view_of(calculator, fields)
        except RefusedError as error:
            refusals += error.errors
        name, state = calculator.name, ("?" + urlencode(fields) if fields else "")
        page = f"{self._root}/{lang}/calculators/{name}"
        api = f"{self._root}/api/{name}"
        return Panel(
            name=name,
            id=identity or name,
            prefix=f"{identity or name}." if place else "",
            action=place or page,
            values={**default_texts(calculator), **fields},
            errors=_by_field(refusals, calculator, lang),
            view=None if refusals else view,
            lang=lang,
            page_url=page + state,
            json_url=api + state,
            csv_url=f"{api}?{urlencode({**fields, 'format': 'csv'})}",
            result_url=f"{page}/result",
            title=self.words(lang, name, "heading"),
            others=tuple(others),
        )

    def words(self, lang: Lang, name: str, which: str) -> str:
        """A text of a calculator's template by itself: `heading`, `subtitle` or `summary`."""
        return str(block(self._jinja, f"calculators/{name}.html", which, {"lang": lang})).strip()

    def html(self, panel: Panel) -> Markup:
        """The whole instrument."""
        template = self._jinja.get_template(f"calculators/{panel.name}.html")
        return Markup(template.render(panel=panel, lang=panel.lang))

    def result(self, panel: Panel) -> str:
        """The inside of the result region: what a form's script asks for."""
        if panel.view is None:
            return self._jinja.get_template("_errors.html").render(panel=panel, lang=panel.lang)
        return block(self._jinja, f"calculators/{panel.name}.html", "result", {"panel": panel, "lang": panel.lang})


def _by_field(refusals: Iterable[FieldError], calculator: Calculator, lang: Lang) -> dict[str, str]:
    """Messages by the field they stand beside; what belongs to no field of the form comes under the empty name."""
    messages: dict[str, str] = {}
    for refusal in refusals:
        known = refusal.field in calculator.query.model_fields
        text = refusal.message(lang) if known else f"{refusal.field} {refusal.message(lang)}".strip()
        messages.setdefault(refusal.field if known else "", text)
    return messages


@cache
def default_texts(calculator: Calculator) -> dict[str, str]:
    """The fields of a panel at their defaults, as one would type them."""
    return {name: field_text(info.default) for name, info in calculator.query.model_fields.items()}


def field_text(value: Any) -> str:
    """A value in the grammar of GET fields: `0.1`, `1/3`, `2,3;8,0`; blank for None."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ";".join(",".join(map(field_text, row)) if isinstance(row, tuple) else field_text(row) for row in value)
    if isinstance(value, Fraction):
        decimal = f"{float(value):.15g}"
        return decimal if Fraction(decimal) == value else str(value)
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value)
