"""Binary floating-point formats, and rounding to them: to nearest, ties to even, once.

A format has `digits` significant bits p, and normal numbers from 2^e_min up to (2 - 2^(1-p))·2^e_max; below 2^e_min its
numbers are evenly spaced by 2^(e_min-p+1), the smallest of them (IEEE 754-2019, section 3.3; bfloat16 is float32 with
16 bits cut off). What rounds beyond the largest number becomes infinite. float8_e4m3fn has no infinity: it gives its
last bit pattern to NaN, so that its largest number is one spacing below what its digits would allow, and what rounds
beyond becomes that number, as torch 2.13 casts.

A sum or square root of two numbers of a format of up to 24 bits, taken in float64 and then rounded to the format, is as
if rounded once, for 53 ≥ 2·24 + 2 (Figueroa, "When is double rounding innocuous?", 1995). A quotient by any fraction
has no such guarantee, so it is rounded from its exact value.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Literal

FormatName = Literal["float16", "bfloat16", "float32", "float64"]
Float8Name = Literal["float8_e4m3fn", "float8_e5m2"]


@dataclass(frozen=True)
class FloatFormat:
    digits: int
    least_exponent: int
    greatest_exponent: int
    last_is_nan: bool = False
    saturates: bool = False

    @cached_property
    def largest(self) -> float:
        return math.ldexp(2**self.digits - 1 - self.last_is_nan, self.greatest_exponent + 1 - self.digits)

    @cached_property
    def beyond(self) -> float:
        """What stands for all that rounds beyond the largest number."""
        return self.largest if self.saturates else math.inf

    @cached_property
    def with_infinity(self) -> "FloatFormat":
        """The same numbers, and an infinity in which an overflow shows."""
        return replace(self, saturates=False)

    @cached_property
    def smallest_normal(self) -> float:
        return math.ldexp(1.0, self.least_exponent)

    @cached_property
    def smallest(self) -> float:
        return math.ldexp(1.0, self.least_exponent + 1 - self.digits)

    @cached_property
    def spacing_at_one(self) -> float:
        return math.ldexp(1.0, 1 - self.digits)

    def spacing(self, value: Fraction) -> Fraction:
        """The distance between neighbours of the format round `value`."""
        return Fraction(2) ** (max(_exponent(value), self.least_exponent) + 1 - self.digits)

    def nearest(self, value: Fraction) -> float:
        """The number of the format nearest to an exact value."""
        unit = self.spacing(value)
        rounded = round(value / unit) * unit
        if abs(rounded) > self.largest:
            return self.beyond if value > 0 else -self.beyond
        return float(rounded)

    def rounded(self, value: float) -> float:
        """The number of the format nearest to a float64, which may be non-finite; a zero keeps its sign."""
        if self.digits == 53 or value == 0 or not math.isfinite(value):
            return value
        exponent = math.frexp(value)[1] - 1
        if exponent > self.greatest_exponent:
            return math.copysign(self.beyond, value)
        place = max(exponent, self.least_exponent) + 1 - self.digits
        rounded = math.ldexp(round(math.ldexp(value, -place)), place)
        return math.copysign(rounded if abs(rounded) <= self.largest else self.beyond, value)


def _exponent(value: Fraction) -> int:
    """The e with 2^e ≤ |value| < 2^(e+1); of zero that of the smallest float64."""
    if not value:
        return -1074
    numerator, denominator = abs(value.numerator), value.denominator
    guess = numerator.bit_length() - denominator.bit_length()
    whole = numerator >= denominator << guess if guess >= 0 else numerator << -guess >= denominator
    return guess if whole else guess - 1


FORMATS: dict[FormatName, FloatFormat] = {
    "float16": FloatFormat(11, -14, 15),
    "bfloat16": FloatFormat(8, -126, 127),
    "float32": FloatFormat(24, -126, 127),
    "float64": FloatFormat(53, -1022, 1023),
}

FLOAT8: dict[Float8Name, FloatFormat] = {
    "float8_e4m3fn": FloatFormat(4, -6, 8, last_is_nan=True, saturates=True),
    "float8_e5m2": FloatFormat(3, -14, 15),
}
"""As torch 2.13 casts; whoever wants both to saturate takes the smaller of a value and `largest` first."""
