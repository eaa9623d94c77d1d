"""The chain of divisions that a rule makes of a window, and what it leaves of a token's weight."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from samestep.app.calculators.framework_recipe.inputs import Inputs
from samestep.app.calculators.framework_recipe.results import Objective, Step
from samestep.app.calculators.framework_recipe.rules import RULES, Division, Rule
from samestep.app.contract.numbers import fraction_text


class Window:
    """The window's counts: what a division by each of them is, in each cell."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.total = sum(map(sum, inputs.counts))
        self.longest = max(map(len, inputs.counts))
        self.accumulation = inputs.accumulation or self.longest

    def shared(self, by: str) -> Fraction | None:
        """A count that all cells have in common; None for one of the cell's own."""
        ranks = len(self.inputs.counts)
        common: dict[str, Fraction | int | None] = {
            "N": self.total,
            "P": ranks,
            "K": self.accumulation,
            "K_r": self.longest,
            "P/C": Fraction(ranks, self.inputs.context_parallel),
            "denominator": self.inputs.denominator,
            "loss_factor": self.inputs.loss_factor,
        }
        found = common.get(by)
        return None if found is None else Fraction(found)

    def count(self, by: str, r: int, k: int) -> Fraction:
        shared = self.shared(by)
        if shared is not None:
            return shared
        if by == "n_k":
            return Fraction(sum(row[k] for row in self.inputs.counts if k < len(row)))
        row = self.inputs.counts[r]
        return Fraction(row[k] if by == "n_rk" else sum(row))

    def weight(self, steps: Iterable[Division], r: int, k: int) -> Fraction | None:
        """The weight of a token of the cell, None where somebody divides by 0."""
        weight = Fraction(1)
        for step in steps:
            count = self.count(step.by, r, k)
            if not count:
                return None
            weight = weight * count if step.multiplies else weight / count
        return weight


def rule_of(inputs: Inputs) -> Rule:
    """The rule of the asked version, else that of the newest release."""
    rules = [rule for rule in RULES if (rule.framework, rule.setting) == (inputs.framework, inputs.setting)]
    return next((rule for rule in rules if rule.release == inputs.version), rules[0])


def steps_of(inputs: Inputs, rule: Rule) -> list[Division]:
    """First what the reader's loss does, if it is the reader's, then the framework's divisions."""
    steps = []
    if rule.yours and inputs.loss_reduction == "mean":
        steps.append(Division("loss", "n_rk", "forward"))
    if rule.yours and inputs.loss_reduction == "custom":
        steps.append(Division("loss", "denominator", "forward"))
    if inputs.loss_factor != 1:
        steps.append(Division("loss", "loss_factor", "forward", multiplies=True))
    for division in rule.divisions:
        summed = division.when == "all_reduce" and inputs.context_reduction == "sum" and inputs.context_parallel > 1
        steps.append(replace(division, by="P/C") if summed and division.by == "P" else division)
    return steps


def shown(step: Division, window: Window) -> Step:
    value = window.shared(step.by)
    text = None if value is None else fraction_text(value)
    return Step(who=step.who, by=step.by, value=text, when=step.when, multiplies=step.multiplies)


def objective_of(steps: Iterable[Division], window: Window) -> Objective:
    """What the divisions by a cell's own counts make of the mean, whatever constant factor is left."""
    own = {step.by for step in steps if not step.multiplies}
    if "n_k" in own and window.longest > 1:
        return "micro_step_equal"
    return "microbatch_equal" if "n_rk" in own else "replica_equal" if "n_r" in own else "global_token_mean"


def expression_of(steps: Iterable[Division]) -> str:
    """1/(N·w) in the names of the counts, with what cancels left out."""
    powers = Counter({"N": -1})
    for step in steps:
        powers[step.by] += -1 if step.multiplies else 1
    above = [name for name, power in powers.items() for _ in range(power)]
    below = [name for name, power in powers.items() for _ in range(-power)]
    order = ["n_rk", "n_r", "n_k", "K", "K_r", "P", "P/C", "denominator", "N", "loss_factor"]
    top = "*".join(f"({name})" if "/" in name else name for name in sorted(above, key=order.index)) or "1"
    bottom = "*".join(f"({name})" if "/" in name else name for name in sorted(below, key=order.index))
    return top if not bottom else f"{top}/({bottom})" if len(below) > 1 else f"{top}/{bottom}"
