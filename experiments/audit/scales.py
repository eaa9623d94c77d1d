"""Name a factor: k as an expression in P (processes), K (microbatches), N (weight of the batch), S (the loss scale).

With coprime P and K the names can be told apart; where several expressions have the same value all of them are said.
"""

from dataclasses import dataclass

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
) -> Factor:
    """The factor with every expression that has its value."""
    candidates = expressions(processes, microbatches, weight, loss_scale)
    fitting = [each for each, number in candidates.items() if abs(value / number - 1) < relative]
    simplest = min((_symbols(each) for each in fitting), default=0)
    return Factor(value, tuple(each for each in fitting if _symbols(each) == simplest))


def _symbols(expression: str) -> int:
    return sum(character.isalpha() for character in expression) + expression.count("^")
