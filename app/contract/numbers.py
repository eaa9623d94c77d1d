"""Numbers as they are typed: `2`, `0.1`, `1e-3`, `1/3`, `7B`. Each means exactly that value.

A number is kept as a `Fraction`, so that `0.1` is one tenth and results can be given as exact fractions beside the
float64 ones. An answer that float64 cannot hold is refused, with the number given that led there.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache, wraps
from operator import itemgetter
from typing import Any, Literal, TypeVar, cast

import numpy as np
from pydantic import BaseModel, ValidationError

from samestep.app.contract.errors import InputError

NonFinite = Literal["inf", "-inf", "nan"]
_Number = TypeVar("_Number", int, Fraction)
_Function = TypeVar("_Function", bound=Callable[..., BaseModel])

NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_NUMBER_RE = re.compile(NUMBER)
_MAGNITUDE_RE = re.compile(rf"({NUMBER}) ?([kKmMgGbBtT万亿])")
_MAGNITUDES = {"k": 3, "m": 6, "g": 9, "b": 9, "t": 12, "万": 4, "亿": 8}
"""Powers of ten behind the letters that parameters and tokens are counted with."""
_RATIO_RE = re.compile(r"([+-]?[0-9]{1,18})\s*/\s*([0-9]{1,18})")
LONGEST_NUMBER = 400
_SHORT = 24
_LONGEST_RATIO = 10**18
_EASY = 10**300
"""Whole numbers below it are within float64's range, whatever they round to."""
_LARGEST = Fraction(1.7976931348623157e308)
_SMALLEST = Fraction(5e-324)


def exact(value: object) -> Fraction:
    """The exact value of a number as typed: int, float (its shortest decimal), `"0.1"`, `"1/3"`.

    Raises InputError for anything else, and for values that float64 cannot hold.
    """
    if type(value) is str:
        return _from_short_text(value) if len(value) <= _SHORT else _from_text(value)
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool):
        raise InputError("true and false are not numbers", "true、false 不是数", code="number_type")
    if isinstance(value, int):
        return _in_range(Fraction(value))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError("must be a finite number", "必须是有限的数", code="finite_number")
        return Fraction(repr(value))
    raise InputError("must be a number", "必须是一个数", code="number_type")


@lru_cache(maxsize=16_384)
def _from_short_text(text: str) -> Fraction:
    """A dragged slider sends thousands of cells again, all but one as they were."""
    return _from_text(text)


def _from_text(text: str) -> Fraction:
    text = text.strip().replace("\N{MINUS SIGN}", "-")
    if text == "":
        raise InputError("is blank: a number is needed", "为空：这里需要一个数", code="blank")
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        raise InputError("must be a finite number", "必须是有限的数", code="finite_number")
    if len(text) <= LONGEST_NUMBER:
        if _NUMBER_RE.fullmatch(text):
            return _in_range(Fraction(text))
        ratio = _RATIO_RE.fullmatch(text)
        if ratio and int(ratio[2]) == 0:
            raise InputError("has the denominator 0", "的分母为 0", code="number_parsing")
        if ratio:
            return _in_range(Fraction(int(ratio[1]), int(ratio[2])))
        counted = _MAGNITUDE_RE.fullmatch(text)
        if counted:
            return _in_range(Fraction(counted[1]) * 10 ** _MAGNITUDES[counted[2].lower()])
    shown = text if len(text) <= 40 else text[:40] + "…"
    raise InputError(
        f"“{shown}” is not a number (write 2, 0.1, 1e-3, 1/3 or 7B)",
        f"“{shown}”不是数（可写 2、0.1、1e-3、1/3 或 7B）",
        code="number_parsing",
    )


def _in_range(value: Fraction) -> Fraction:
    if abs(value) > _LARGEST:
        raise InputError("is beyond float64's range", "超出 float64 的范围", code="number_range")
    if value and abs(value) < _SMALLEST:
        raise InputError("is too close to 0 for float64", "太接近 0，float64 无法表示", code="number_range")
    return value


def as_float(value: object) -> float:
    """The float64 nearest to `exact(value)`; a short way for what the millions of numbers of a large body are."""
    if type(value) is float and math.isfinite(value):
        return value + 0.0
    if type(value) is int and -_EASY < value < _EASY:
        return float(value)
    if type(value) is str and len(value) <= 40 and _NUMBER_RE.fullmatch(value):
        number = float(value)
        if 1e-300 < abs(number) < 1e300:  # near the ends `exact` tells what rounds into float64 from what is beyond
            return number
    return float(exact(value))


def extended(value: object) -> float:
    """A float64 that may be non-finite, written as the string `inf`, `-inf` or `nan`."""
    if isinstance(value, str) and value.strip().lower() in ("inf", "+inf", "-inf", "nan"):
        return float(value)
    return as_float(value)


def whole(value: object) -> int:
    """An integer; `2.0` and `"4/2"` are one too."""
    if type(value) is int:
        return value
    number = exact(value)
    if number.denominator != 1:
        raise InputError("must be a whole number", "应是整数", code="int_from_float")
    return number.numerator


def bounded(
    read: Callable[[object], _Number],
    *,
    low: int | None = None,
    above: int | None = None,
    high: int | None = None,
    below: int | None = None,
) -> Callable[[object], _Number]:
    """`read`, and what is told of a number that is not at least `low`, at most `high`, strictly `above` or `below`."""

    def read_within(value: object) -> _Number:
        number = read(value)
        if low is not None and number < low:
            raise InputError(f"must be {low:,} or more", f"不能小于 {low:,}", code="greater_than_equal")
        if above is not None and number <= above:
            raise InputError(f"must be greater than {above:,}", f"必须大于 {above:,}", code="greater_than")
        if high is not None and number > high:
            raise InputError(f"must be at most {high:,}", f"不能大于 {high:,}", code="less_than_equal")
        if below is not None and number >= below:
            raise InputError(f"must be below {below:,}", f"必须小于 {below:,}", code="less_than")
        return number

    return read_within


not_negative = bounded(exact, low=0)
positive = bounded(exact, above=0)


def as_json(value: Fraction) -> int | float | str:
    """A number as a body holds it; InputError where that is beyond float64."""
    if _in_range(value).denominator == 1:
        return value.numerator
    nearest = float(value)
    if Fraction(repr(nearest)) == value:
        return nearest
    return str(value) if _is_ratio(value) else _decimal(value) or str(value)


def number_text(value: object) -> str:
    """A number as one would type it in a list: `2`, `1/3`, `1e-300`; what `exact` reads as the same."""
    return str(as_json(value) if isinstance(value, Fraction) and not _is_ratio(value) else value)


def _is_ratio(value: Fraction) -> bool:
    """Whether `1/3` is read, which has at most so many digits on either side."""
    return max(abs(value.numerator), value.denominator) < _LONGEST_RATIO


def _decimal(value: Fraction) -> str | None:
    """All decimals of a fraction that has an end of them: what a ratio of so many digits could not be read as."""
    places = value.denominator.bit_length()  # at least as many as there are twos or fives in the denominator
    scaled = value * 10**places
    if scaled.denominator != 1:
        return None
    digits = str(abs(scaled.numerator)).zfill(places + 1)
    return ("-" if value < 0 else "") + f"{digits[:-places]}.{digits[-places:]}".rstrip("0")


def fraction_text(value: Fraction) -> str:
    """`2/5`, `-3`: any length (Python's own `str` refuses integers above 4,300 digits)."""
    numerator = _digits(value.numerator)
    return numerator if value.denominator == 1 else f"{numerator}/{_digits(value.denominator)}"


def _digits(value: int) -> str:
    if value.bit_length() < 14_000:  # under 4,215 digits
        return str(value)
    sign, value = ("-", -value) if value < 0 else ("", value)
    base = 10**4000
    chunks = []
    while value:
        value, chunk = divmod(value, base)
        chunks.append(str(chunk).zfill(4000))
    return sign + "".join(reversed(chunks)).lstrip("0")


def finite_or_name(value: float) -> float | NonFinite:
    """The number, or the string that stands for it in JSON."""
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def replica_name(index: int) -> str:
    """A, B, … Z, then R26, R27, …: what replicas are called in tables, figures and answers, however many there are."""
    return chr(ord("A") + index) if index < 26 else f"R{index}"


# ---- answers beyond float64


def within_float64(function: _Function) -> _Function:
    """The same function, which refuses numbers whose answer is beyond float64.

    A result that holds an infinite number or a NaN is refused by its own model, a quotient of exact numbers by Python.
    """

    @wraps(function)
    def answer(given: Any, *scheme: str | None) -> BaseModel:
        try:
            with np.errstate(all="ignore"):
                return function(given, *scheme)
        except OverflowError:
            raise _beyond_float64(given) from None
        except ValidationError as error:
            if all(details["type"] == "finite_number" for details in error.errors(include_url=False)):
                raise _beyond_float64(given) from None
            raise

    return cast(_Function, answer)


def _beyond_float64(given: BaseModel) -> InputError:
    """Names the number given whose size is the farthest from 1, the first of those that are."""
    path = max(_sizes(given, ()), key=itemgetter(0), default=(0.0, ()))[1]
    en, zh = "leads to a result beyond float64's range", "得到的结果超出 float64 的范围"
    return InputError(en, zh, field=path, code="number_range")


def _sizes(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[float, tuple[str | int, ...]]]:
    """Every number with its place: how many powers of two it is away from 1."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _sizes(getattr(value, name), (*path, name))
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _sizes(entry, (*path, name))
    elif isinstance(value, list | tuple):
        for index, entry in enumerate(value):
            yield from _sizes(entry, (*path, index))
    elif hasattr(value, "nested"):  # vectors of many ranks, in one array
        yield from _sizes(value.nested(), path)
    elif not isinstance(value, bool) and value is not None:
        yield _size(value), path


def _size(value: Any) -> float:
    try:
        number = abs(as_float(value))
    except InputError:
        return -1.0  # a word
    return abs(math.log2(number)) if number else 0.0
