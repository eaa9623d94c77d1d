"""Numbers in the text that speak of a panel's own example follow the panel: what the page's script needs for that.

A number follows the first panel of its calculator whose starting state is the number's own, choices aside. Choices (a
scheme, a kind of reduction) are what the sentence names: the number keeps its own, and only the rest follows.
"""

from functools import cache
from urllib.parse import urlencode

from samestep.app.book.markdown.build import Build
from samestep.app.book.markdown.pieces import CalculatorRef
from samestep.app.calculators import Calculator
from samestep.app.contract.forms import form_of
from samestep.app.instruments.panels import default_texts


def following_numbers(build: Build) -> None:
    """Mark the checked numbers of every panel's example: `data-follows` its id, `data-choices` those of the number."""
    panels = [ref for ref in build.refs if isinstance(ref, CalculatorRef)]
    for token, name, fields in build.quoted:
        calculator = build.context.calculators[name]
        state, choices = default_texts(calculator) | fields, choices_of(calculator)
        for panel in panels:
            if panel.name == name and _differing(state, default_texts(calculator) | panel.fields) <= choices:
                token.attrs["data-follows"] = panel.id
                token.attrs["data-choices"] = urlencode({choice: state[choice] for choice in sorted(choices)})
                break


def _differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {name for name in one if one[name] != other[name]}


@cache
def choices_of(calculator: Calculator) -> frozenset[str]:
    """The fields of a panel that are one of several words."""
    return frozenset(name for name, info in calculator.query.model_fields.items() if form_of(info).words)
