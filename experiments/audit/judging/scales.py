"""Name a factor: k as an expression in P (processes), K (microbatches), N (weight of the batch), S (the loss scale).

The square roots of P are those of a norm that counts copies, or of a learning-rate rule; T is the number of elements
of a field of data(), padding included; fractions such as 3/4 come last.

With coprime P and K the names can be told apart; where several expressions have the same value all of them are said.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

LARGEST = 9
"""Greatest number in a fraction's denominator."""
MINUS = "-1"
RELATIVE = 1e-7
"""Two factors that agree this well are the same: gradients of one scale differ by a hundred million times less."""


@dataclass(frozen=True)
class Factor:
    """`value` with the names that fit, the simplest first; none where nothing fits."""

    value: float
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The simplest name, or the number."""
        return self.names[0] if self.names else f"{self.value:.6g}"

    @property
    def ambiguous(self) -> bool:
        """Several expressions have this value here."""
        return len(self.names) > 1


def expressions(processes: int, microbatches: int, weight: float, loss_scale: float | None = None) -> dict[str, float]:
    """All names in order of simplicity, with their values. Symbols that are 1 are left out."""
    known = {"P": float(processes), "K": float(microbatches), "N": float(weight)}
    if loss_scale:
        known["S"] = loss_scale
    symbols = {name: value for name, value in known.items() if value not in (0.0, 1.0)}
    found = dict(symbols)
    found |= {f"1/{name}": 1 / value for name, value in symbols.items()}
    pairs = [(a, b) for i, a in enumerate(symbols) for b in list(symbols)[i + 1 :]]
    found |= {f"{a}*{b}": symbols[a] * symbols[b] for a, b in pairs}
    found |= {f"{b}/{a}": symbols[b] / symbols[a] for a, b in pairs}
    found |= {f"{a}/{b}": symbols[a] / symbols[b] for a, b in pairs}
    found |= {f"1/({a}*{b})": 1 / (symbols[a] * symbols[b]) for a, b in pairs}
    found |= {f"{a}^2": symbols[a] ** 2 for a in symbols} | {f"1/{a}^2": symbols[a] ** -2 for a in symbols}
    if {"P", "K", "N"} <= set(symbols):
        product = symbols["P"] * symbols["K"]
        found |= {"N/(P*K)": symbols["N"] / product, "P*K/N": product / symbols["N"]}
    return found


def name(
    value: float,
    processes: int,
    microbatches: int,
    weight: float,
    loss_scale: float | None = None,
    relative: float = RELATIVE,
    sizes: Mapping[str, float] | None = None,
) -> Factor:
    """The factor with every expression that has its value. Rarer expressions are tried only where no other fits."""
    if value < 0:
        turned = name(-value, processes, microbatches, weight, loss_scale, relative, sizes)
        return Factor(value, (MINUS,) if abs(value + 1) < relative else tuple(f"-{each}" for each in turned.names))
    for candidates in (
        expressions(processes, microbatches, weight, loss_scale),
        rarer(processes, weight, sizes or {}),
        fractions(),
    ):
        fitting = [each for each, number in candidates.items() if abs(value / number - 1) < relative]
        if fitting:
            simplest = min(_symbols(each) for each in fitting)
            return Factor(value, tuple(each for each in fitting if _symbols(each) == simplest))
    return Factor(value, ())


def rarer(processes: int, weight: float, sizes: Mapping[str, float]) -> dict[str, float]:
    """Square roots of P, and the batch's weight against the number of elements of a field, `T(labels)`."""
    found = {"sqrt(P)": processes**0.5, "1/sqrt(P)": processes**-0.5} if processes > 1 else {}
    for field, size in sizes.items():
        if size and weight and size != weight:
            found |= {f"N/T({field})": weight / size, f"T({field})/N": size / weight, f"1/T({field})": 1 / size}
            if processes > 1:
                found |= {f"N/(P*T({field}))": weight / size / processes}
    return found


def fractions() -> dict[str, float]:
    """Small ones, such as a constant of the window makes; none that is a power of two or three by itself."""
    return {
        str(each): float(each)
        for below in range(2, LARGEST + 1)
        for above in range(1, 2 * LARGEST + 1)
        if (each := Fraction(above, below)).denominator == below and above != below
    } | {f"{whole}": float(whole) for whole in range(2, LARGEST + 1)}


def _symbols(expression: str) -> int:
    return sum(character.isalpha() for character in expression) + expression.count("^")
