"""Which of the two languages a page is in: the one of its address, else the one that the browser likes best."""

from typing import cast

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request

from samestep.app.contract.languages import LANGUAGES, Lang


class _LangConvertor(StringConvertor):
    regex = "|".join(LANGUAGES)


register_url_convertor("lang", _LangConvertor())


def other(lang: Lang) -> Lang:
    return "en" if lang == "zh" else "zh"


def preferred(accept_language: str) -> Lang:
    """The language of the book that a browser's Accept-Language likes best; English when it likes neither."""
    best: tuple[float, Lang] = (0.0, "en")
    for part in accept_language.lower().split(","):
        tag, _, parameter = part.strip().partition(";")
        lang = tag.split("-")[0]
        try:
            weight = float(parameter.strip().removeprefix("q=") or 1)
        except ValueError:
            continue
        if lang in LANGUAGES and weight > best[0]:
            best = weight, lang
    return best[1]


def of_path(request: Request) -> Lang:
    """The language that a path begins with; for any other path the browser's."""
    first = request.scope["path"].split("/")[1]
    return cast(Lang, first) if first in LANGUAGES else preferred(request.headers.get("accept-language", ""))
