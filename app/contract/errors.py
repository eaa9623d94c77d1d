"""What is wrong with an input, said once for all doors: pydantic's errors and the calculators' own, bilingually."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails


class InputError(ValueError):
    """A value that cannot be used: which field, why, in both languages of the wiki.

    `field` is the name of the input (a path such as `("ranks", 0, 1, "grad")` for nested ones), empty where
    the caller knows it (inside a field's own validator). `cell` is the place, (row, column) counted from 0, in a field
    of rows whose text the message is about.
    """

    def __init__(
        self,
        en: str,
        zh: str,
        field: str | Sequence[str | int] = (),
        code: str = "value_error",
        cell: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(en)
        self.en = en
        self.zh = zh
        self.field: tuple[str | int, ...] = (field,) if isinstance(field, str) else tuple(field)
        self.code = code
        self.cell = cell


@dataclass(frozen=True)
class FieldError:
    """One refused value: the path of its field, a code, and the message in both languages.

    `place` is where in a field of rows or of JSON it stands, counted from 0: the path's own numbers, or those that a
    message about a text of rows speaks of.
    """

    path: tuple[str | int, ...]
    code: str
    en: str
    zh: str
    value: Any = None
    place: tuple[int, ...] = ()

    @property
    def field(self) -> str:
        """The name of the input that a form shows the message beside."""
        return str(self.path[0]) if self.path else ""

    @property
    def told(self) -> str:
        """Path and message in one line, for authors and logs."""
        return f"{'.'.join(map(str, self.path))} {self.en}".strip()

    def message(self, lang: str) -> str:
        """What is wrong, for a reader: with the place in words where the path has one that the message leaves out."""
        steps = self.path[1:]
        first = next((i for i, step in enumerate(steps) if isinstance(step, int)), None)
        if first is None:
            return self.zh if lang == "zh" else self.en
        inner = steps[first:]
        numbers = [step + 1 for step in inner if isinstance(step, int)]
        words = _PLACES[lang == "zh"] if len(numbers) > 1 else _ENTRY[lang == "zh"]
        where = [words[min(i, len(words) - 1)].format(number) for i, number in enumerate(numbers)]
        where += [str(step) for step in inner if not isinstance(step, int)]
        return "，".join(where) + "：" + self.zh if lang == "zh" else ", ".join(where) + ": " + self.en


class RefusedError(Exception):
    """An input that no calculator can use; carries every FieldError."""

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(f"{error.field}: {error.en}" for error in self.errors))

    def as_json(self, door: str) -> bytes:
        """FastAPI's error list; `door` is query or body."""
        detail = [
            {"type": error.code, "loc": [door, *error.path], "msg": error.en, "input": _shown(error.value)}
            for error in self.errors[:_LISTED]
        ]
        return json.dumps({"detail": detail}, ensure_ascii=False, allow_nan=False).encode()


_LISTED = 100
_ENTRY = (("entry {}",), ("第 {} 项",))
_PLACES = (("row {}", "column {}", "value {}"), ("第 {} 行", "第 {} 列", "第 {} 个值"))


def _shown(value: Any) -> str | int | float | bool | None:
    """The refused value where it is a plain one; a whole list or body is not sent back."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return value if len(value) <= 200 else value[:200] + "…"
    return value if isinstance(value, int | float) else None


_Words = Callable[[dict[str, Any]], tuple[str, str]]

_MESSAGES: dict[str, _Words] = {
    "missing": lambda _: ("is missing", "缺失"),
    "extra_forbidden": lambda _: ("is not a field of this calculator", "不是这个计算器的字段"),
    "literal_error": lambda ctx: (f"must be {ctx['expected']}", f"应为 {ctx['expected'].replace(' or ', ' 或 ')}"),
    "enum": lambda ctx: (f"must be {ctx['expected']}", f"应为 {ctx['expected'].replace(' or ', ' 或 ')}"),
    "number_type": lambda _: ("must be a finite number, or its text", "应为有限的数，或写成文本的数"),
    "json_invalid": lambda ctx: not_json(ctx["error"]),
    "too_long": lambda ctx: (f"has more than {ctx['max_length']:,} entries", f"超过 {ctx['max_length']:,} 项"),
    "too_short": lambda ctx: (f"needs at least {ctx['min_length']} entries", f"至少要有 {ctx['min_length']} 项"),
    "string_too_long": lambda ctx: (f"is longer than {ctx['max_length']} characters", f"超过 {ctx['max_length']} 字"),
    "string_too_short": lambda _: ("is blank", "为空"),
    "greater_than": lambda ctx: (f"must be greater than {ctx['gt']}", f"必须大于 {ctx['gt']}"),
    "greater_than_equal": lambda ctx: (f"must be {ctx['ge']} or more", f"不能小于 {ctx['ge']}"),
    "less_than_equal": lambda ctx: (f"must be {ctx['le']} or less", f"不能大于 {ctx['le']}"),
    "recursion_loop": lambda _: ("is nested too deeply", "嵌套过深"),
}
_TYPES = (
    ("must be a list", "应为列表", ("list_type", "tuple_type")),
    ("must be an object", "应为对象", ("dict_type", "model_type", "model_attributes_type")),
    ("must be a text", "应为文本", ("string_type",)),
    ("must be true or false", "应为 true 或 false", ("bool_type", "bool_parsing")),
    ("must be a whole number", "应为整数", ("int_type", "int_parsing", "int_from_float")),
)
_OF_TYPES = {code: (en, zh) for en, zh, codes in _TYPES for code in codes}


def refused(error: ValidationError | InputError) -> RefusedError:
    """The errors of a body or query, ready for every door."""
    if isinstance(error, InputError):
        return RefusedError([_placed(error.field, error.code, error.en, error.zh, cell=error.cell)])
    return RefusedError(map(_from_pydantic, error.errors(include_url=False)))


def _from_pydantic(details: ErrorDetails) -> FieldError:
    ctx = details.get("ctx", {})
    cause = ctx.get("error")
    if isinstance(cause, InputError):
        path = (*details["loc"], *cause.field)
        return _placed(path, cause.code, cause.en, cause.zh, details["input"], cell=cause.cell)
    words = _MESSAGES.get(details["type"])
    otherwise = (details["msg"], f"不合要求：{details['msg']}")
    en, zh = words(ctx) if words else _OF_TYPES.get(details["type"], otherwise)
    return _placed(details["loc"], details["type"], en, zh, details["input"])


def _placed(
    path: tuple[str | int, ...],
    code: str,
    en: str,
    zh: str,
    value: Any = None,
    *,
    cell: tuple[int, int] | None = None,
) -> FieldError:
    numbers = tuple(step for step in path[1:] if isinstance(step, int))
    return FieldError(path, code, en, zh, value, numbers or cell or ())


_JSON_FAULTS = {
    "trailing comma": "末尾多一个逗号",
    "expected value": "这里应是一个值（JSON 没有 NaN 和 Infinity）",
    "expected ident": "这里应是 true、false 或 null",
    "expected `:`": "这里应是冒号",
    "expected `,` or `]`": "这里应是逗号或 ]",
    "expected `,` or `}`": "这里应是逗号或 }",
    "key must be a string": "键要写在双引号里",
    "invalid number": "数的写法不对",
    "number out of range": "数超出范围",
    "invalid escape": "转义的写法不对",
    "trailing characters": "结束之后还有内容",
    "recursion limit exceeded": "嵌套过深",
}
"""What the JSON parser complains of, in Chinese; anything else it says is that the text ends too early or is broken."""


def not_json(error: object) -> tuple[str, str]:
    """What is wrong with a text that should be JSON, and where, in both languages."""
    fault, _, place = str(error).partition(" at line ")
    line, _, column = place.partition(" column ")
    short = "还没有写完" if fault.startswith("EOF") else "写法不对"
    where = f"第 {line} 行第 {column} 个字符处，" if column else ""
    return f"is not JSON: {error}", f"不是合法的 JSON：{where}{_JSON_FAULTS.get(fault, short)}"
