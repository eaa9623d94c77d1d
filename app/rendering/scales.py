"""Scales and ticks for the server's own SVG figures: from numbers of any magnitude to coordinates.

A scale never leaves its range (a value beyond the domain is drawn at the edge, a non-finite one at the edge of its
sign, `nan` at the start) and never overflows, so that a figure of 1e308 is as safe as one of 3. Coordinates are
rounded to 1/100 unit: nobody sees more, and the picture stays small.
"""

import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from samestep.app.contract.errors import InputError
from samestep.app.contract.numbers import extended

FOR_TEMPLATES = (
    "as_float",
    "is_finite",
    "linear",
    "log",
    "band",
    "fitted",
    "boxes",
    "reach",
    "extent",
    "ratio_extent",
    "ticks",
    "powers",
    "polyline",
    "shade",
    "stops",
    "nearest",
)
"""Functions that templates know by the same names."""

Value = int | float | str | Fraction | None

_LARGEST = sys.float_info.max
_SMALLEST_STEP = 1e-290
_HTML_NUMBER = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


def as_float(value: Value) -> float:
    """The float of a number, of a text such as `"1/8"`, `"7B"` or `"inf"`; `nan` where there is none."""
    if isinstance(value, str):
        try:
            return extended(value)
        except InputError:
            return math.nan
    if value is None:
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def is_finite(value: Value) -> bool:
    """Whether `value` can be drawn: a number, not `nan`, not infinite, not missing."""
    return math.isfinite(as_float(value))


@dataclass(frozen=True)
class Scale:
    """A map from the domain [low, high] to the range [start, end]; `log` takes the domain's logarithm first."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: Value) -> float:
        return round(self.start + self.share(value) * (self.end - self.start), 2)

    def share(self, value: Value) -> float:
        """Where `value` lies in the domain, from 0 to 1."""
        number = as_float(value)
        if math.isnan(number):
            return 0.0
        number = min(max(number, self.low), self.high)
        if self.log:
            return _share(math.log(number), math.log(self.low), math.log(self.high))
        return _share(number, self.low, self.high)

    def span(self, first: Value, second: Value) -> float:
        """The distance between two values in the range: the width of a bar."""
        return round(abs(self(second) - self(first)), 2)

    def left(self, first: Value, second: Value) -> float:
        """The smaller coordinate of two values: where a bar begins."""
        return min(self(first), self(second))


def _share(number: float, low: float, high: float) -> float:
    size = max(abs(low), abs(high)) or 1.0
    length = high / size - low / size
    return (number / size - low / size) / length if length else 0.0


def linear(low: Value, high: Value, start: float, end: float) -> Scale:
    return Scale(as_float(low), as_float(high), start, end)


def log(low: Value, high: Value, start: float, end: float) -> Scale:
    """A logarithmic scale; both ends of its domain must be greater than 0."""
    return Scale(as_float(low), as_float(high), start, end, log=True)


@dataclass(frozen=True)
class Band:
    """`count` equal places between `start` and `end`, each `step` long, of which `size` is filled."""

    count: int
    start: float
    step: float
    size: float

    def __call__(self, index: int) -> float:
        """Where place `index` begins."""
        return round(self.start + index * self.step, 2)

    def middle(self, index: int) -> float:
        return round(self.start + index * self.step + self.size / 2, 2)

    @property
    def end(self) -> float:
        return round(self.start + self.count * self.step, 2)


def band(count: int, start: float, step: float, gap: float = 0) -> Band:
    """Places of a fixed length: rows of a figure that grows with its number of rows."""
    return Band(count, start, step, round(step - gap, 2))


def fitted(count: int, start: float, end: float, largest: float, gap: float = 0) -> Band:
    """Places that share the room between `start` and `end`, none longer than `largest`."""
    step = min(largest, (end - start) / max(count, 1))
    return Band(count, start, round(step, 3), round(step * (1 - gap), 2))


def extent(values: Iterable[Value], pad: float = 0.0, zero: bool = False) -> tuple[float, float]:
    """The smallest and largest finite value, widened by the share `pad` of their distance on both sides.

    With `zero` the interval holds 0. Equal values give an interval round them, no values give (0, 1).
    """
    finite = [number for number in map(as_float, values) if math.isfinite(number)]
    finite += [0.0] if zero else []
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    room = abs(low) / 2 or 1.0
    if low != high:
        room = (high / 2 - low / 2) * pad * 2
    return max(low - room, -_LARGEST), min(high + room, _LARGEST)


def ratio_extent(values: Iterable[Value]) -> tuple[float, float]:
    """An interval round 1, equally far on both sides by ratio, that holds all positive finite values."""
    distances = [abs(math.log(n)) for n in map(as_float, values) if 0 < n < math.inf]
    reach = min(max([*distances, math.log(2)]) * 1.08, 700.0)
    return math.exp(-reach), math.exp(reach)


def ticks(low: Value, high: Value, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`."""
    first, last = as_float(low), as_float(high)
    reach = last / count - first / count
    if not _SMALLEST_STEP < reach < _LARGEST:
        return [first] if math.isfinite(first) else []
    power = math.floor(math.log10(reach))
    step = next(step for factor in (1, 2, 5, 10) if (step := factor * 10.0**power) >= reach * 0.999)
    begin = math.ceil(first / step - 1e-9)
    found = [(begin + i) * step for i in range(2 * count + 2)]
    return [round(tick, min(max(-power, 0) + 1, 300)) for tick in found if tick <= min(last + step * 1e-9, _LARGEST)]


def decades(values: Iterable[Value], low: float, high: float) -> tuple[float, float]:
    """The smallest interval of whole powers of ten that holds [low, high] and every positive finite value."""
    found = [number for number in map(as_float, values) if 0 < number < math.inf]
    first, last = (math.log10(bound) for bound in (min([low, *found]), max([high, *found])))
    return 10.0 ** max(math.floor(first + 1e-9), -300), 10.0 ** min(math.ceil(last - 1e-9), 300)


def powers(low: Value, high: Value, every: int = 4) -> list[float]:
    """The powers of ten from `low` to `high` whose exponent `every` divides: ticks of a logarithmic axis."""
    first, last = math.log10(as_float(low)), math.log10(as_float(high))
    return [float(f"1e{power}") for power in range(math.ceil(first), math.floor(last) + 1) if power % every == 0]


def polyline(points: Iterable[Sequence[Value]], x: Scale, y: Scale) -> str:
    """A path through points (x, y) in the order given; those that cannot be drawn are left out."""
    drawn = [f"{x(one[0])} {y(one[1])}" for one in points if is_finite(one[0]) and is_finite(one[1])]
    return "M" + "L".join(drawn) if drawn else ""


def shade(value: Value, classes: int = 9, largest: Value = 1.0) -> int:
    """The class, from 0 to `classes` − 1, that colours a cell of `value` in a map whose darkest cell is `largest`."""
    top = as_float(largest)
    number = as_float(value)
    if not math.isfinite(number) or top <= 0:
        return 0
    return min(classes - 1, max(0, int(number / top * classes)))


SERIES = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
"""Round numbers, nearly even on a logarithmic scale, that the stops of a logarithmic slider run through."""


def stops(first_power: int, last_power: int, text: str = "") -> list[str]:
    """The decimal texts that a logarithmic slider stops at, from 10^first_power to 10^last_power.

    They go on until they hold the number in `text`.
    """
    number = as_float(text)
    if math.isfinite(number) and number > 0:
        last_power = max(last_power, min(math.ceil(math.log10(number)), sys.float_info.max_10_exp))
    return [_plain(factor, power) for power in range(first_power, last_power) for factor in SERIES] + [
        _plain(1, last_power)
    ]


def _plain(factor: float, power: int) -> str:
    value = Fraction(str(factor)) * Fraction(10) ** power
    return f"{float(value):.12f}".rstrip("0").rstrip(".")


def reach(limit: float, text: str) -> str:
    """The end of a slider's range that holds the number in `text`: its limit, doubled as often as it takes."""
    number, limit = as_float(text), float(limit)
    while math.isfinite(number) and 0 < limit < number:
        limit = min(limit * 2, sys.float_info.max)
    return format(limit, ".12g") if limit < sys.float_info.max else repr(limit)


def nearest(choices: Sequence[str], text: str) -> int:
    """The index of the first stop that is not below the number in `text`; the last one above all of them."""
    number = as_float(text)
    return next((i for i, choice in enumerate(choices) if float(choice) >= number * (1 - 1e-12)), len(choices) - 1)


def boxes(sizes: Iterable[Value], width: float, tallest: float, gap: float) -> list[tuple[float, float]]:
    """Squares side by side, as (x, side): sides in proportion to `sizes`, as large as `width` and `tallest` allow."""
    sides = [max(0.0, n) if math.isfinite(n := as_float(size)) else 0.0 for size in sizes]
    top = max(sides, default=0.0)
    shares = [side / top if top else 0.0 for side in sides]
    unit = min(tallest, (width - gap * (len(sides) - 1)) / (sum(shares) or 1.0))
    placed, x = [], 0.0
    for share in shares:
        placed.append((round(x, 2), round(share * unit, 2)))
        x += share * unit + gap
    return placed


def slider_position(text: str, otherwise: float) -> str:
    """Where a slider stands for the number typed beside it; `otherwise` where that is not a number."""
    return text if _HTML_NUMBER.fullmatch(text) else format(as_float(text) if is_finite(text) else otherwise, ".12g")
