"""Checked numbers: `[+0.4]{calc="replica_ledger?a=2&b=8" field="reference.grad"}`.

The author types the number; it is recomputed here, and must agree at the precision that was typed. On the page it
is a link that opens the calculator in that state (or the published experiment at that row).
"""

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import parse_qsl, urlencode

from markdown_it.token import Token

from samestep.app.book.markdown.build import Build, DamagedEvidenceError, inline_tokens
from samestep.app.book.markdown.pieces import CheckedNumber
from samestep.app.book.markdown.states import state
from samestep.app.contract.paths import NoSuchStepError, along
from samestep.app.instruments.states import named_once

_BINDING = {"calc", "evidence", "field"}
_THOUSANDS = re.compile(r"(?<=\d)[,\u202f\u2009 ](?=\d{3}(?!\d))")


class UnconfirmedError(Exception):
    """The number cannot be confirmed; says why."""


def checked_numbers(tokens: Sequence[Token], build: Build) -> None:
    """Recompute every checked number and make it a link."""
    for block in tokens:
        tags: list[str] = []
        for index, (token, line) in enumerate(inline_tokens([block])):
            if token.type == "span_open":
                if not _BINDING.isdisjoint(token.attrs):
                    _check(build, token, _content(block.children or [], index), line)
                tags.append(token.tag)
            elif token.type == "span_close":
                token.tag = tags.pop()


def _content(children: Sequence[Token], index: int) -> str:
    text = ""
    for token in children[index + 1 :]:
        if token.type == "span_close":
            return text
        text += token.content
    return text


def _check(build: Build, token: Token, text: str, line: int) -> None:
    attrs = {name: str(token.attrs.pop(name, "")) for name in ("calc", "evidence", "field")}
    token.tag = "a"
    verified = True
    try:
        if bool(attrs["calc"]) == bool(attrs["evidence"]) or not attrs["field"]:
            raise UnconfirmedError('needs calc="NAME?…" or evidence="NAME", and field="…"')
        if attrs["calc"]:
            href, result, fields = _calculated(build, attrs["calc"])
            build.quoted.append((token, attrs["calc"].partition("?")[0], fields))
        else:
            href, result = _published(build, attrs["evidence"])
            href += row_anchor(result, attrs["field"])
        compare(text, value_at(result, attrs["field"]))
    except DamagedEvidenceError:
        href, verified = f"/{build.lang}/experiments/{attrs['evidence']}", False
    except UnconfirmedError as error:
        build.wrong(line, f"the checked number “{text}” {error}")
        return
    build.checked.append(CheckedNumber(text, attrs["calc"] or attrs["evidence"], attrs["field"], line, verified))
    token.attrs = {"class": "checked", "href": build.context.link(href), "data-field": attrs["field"]}


def _calculated(build: Build, quoted: str) -> tuple[str, Any, dict[str, str]]:
    name, _, query = quoted.partition("?")
    calculator = build.context.calculators.get(name)
    if calculator is None:
        raise UnconfirmedError(f"names a calculator “{name}” that does not exist")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise UnconfirmedError(f"has a state “{query}” that is not a=1&b=2") from None
    fields, twice = named_once(pairs)
    answer = state(calculator, fields)
    for refusal in (*twice, *answer.refusals):
        raise UnconfirmedError(f"asks {name} for what it refuses: {refusal.told}")
    address = f"/{build.lang}/calculators/{name}"
    return address + ("?" + urlencode(fields, safe=";,/:") if fields else ""), answer.view, fields


def _published(build: Build, name: str) -> tuple[str, Any]:
    if name not in build.context.experiments:
        raise UnconfirmedError(f"names an experiment “{name}” that does not exist")
    result = build.context.evidence(name)
    if result is None:
        raise UnconfirmedError(f"quotes the experiment “{name}”, which is not published yet")
    return f"/{build.lang}/experiments/{name}", result


def value_at(result: Any, path: str) -> Any:
    """The value at a dotted path; in a list, a step is a position from 0 or the `id` of an entry."""
    return _values_to(result, path)[-1]


def row_anchor(result: Any, path: str) -> str:
    """`#row-ID` of the innermost object with an `id` on the way to a field of a published result, or nothing."""
    ids = [value["id"] for value in _values_to(result, path) if isinstance(value, dict) and "id" in value]
    return f"#row-{ids[-1]}" if ids else ""


def _values_to(result: Any, path: str) -> list[Any]:
    try:
        return list(along(result, path))
    except NoSuchStepError as error:
        raise UnconfirmedError(f"has a field “{path}” that does not exist (at “{error.step}”)") from None


def compare(text: str, value: Any) -> None:
    """Raise unless `value`, rounded to the digits of `text`, is `text`.

    Texts (exact fractions, `inf`, names) must be equal. The number 0 typed without decimals stands for exactly 0.
    """
    typed = text.strip().replace("\N{MINUS SIGN}", "-")
    if value is None:
        raise UnconfirmedError("is undefined there")
    if isinstance(value, (bool, str)):
        shown = str(value).lower() if isinstance(value, bool) else value
        if typed.replace("∞", "inf") not in (shown, "+" + shown):
            raise UnconfirmedError(f"is wrong: the value is {shown}")
        return
    if not isinstance(value, (int, float)):
        raise UnconfirmedError("points to a group of values, not to one")
    try:
        number = Decimal(_THOUSANDS.sub("", typed))
        exponent = number.as_tuple().exponent
        half_unit = Decimal(5).scaleb(int(exponent) - 1)
    except (InvalidOperation, ValueError):
        raise UnconfirmedError(f"is not a number (the value is {value!r})") from None
    exactly_zero = typed.strip("+-") == "0"
    if abs(Decimal(repr(value)) - number) > (0 if exactly_zero else half_unit):
        raise UnconfirmedError(f"is wrong: the value is {value!r}")
