"""A calculator's state as a short PyTorch program: the same numbers, computed again by autograd and real optimizers.

`templates/snippets/NAME.py.jinja` is the program of the calculator NAME; it reads only the inputs of the state, never
a result, and prints lines `path value` with the dotted paths of the calculator's JSON. What a program leaves out (text,
verdicts, what only several processes can show) stands in the template's own comment.

There is none for states of more than MAX_NUMBERS numbers, for numbers whose squares leave float64, and for the few
states in `_EXCEPTIONS`. Numbers are written exactly as given: `2`, `0.1`, `1/3`, `float("inf")`.
"""

import json
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import islice
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel

from samestep.app.calculators.framework_recipe.rules import RULES, Rule
from samestep.app.calculators.info_nce.vectors import Vectors
from samestep.app.calculators.replica_ledger.inputs import completed
from samestep.app.contract.errors import InputError
from samestep.app.contract.models import Inputs
from samestep.app.contract.numbers import exact, extended
from samestep.app.paths import folder

MAX_NUMBERS = 2_000
_SMALLEST, _LARGEST = 1e-100, 1e100
_WIDTH = 84
_LARGEST_TENSOR = 1_000_000
_MANY_STEPS = 10_000
_MANY_LOCAL_STEPS = 1_000
"""Steps of all replicas: a program takes each of them with torch, by eight rules."""
_WHOLE = 2**53
"""Whole numbers beyond are written as float64 ones."""


def snippet(name: str, inputs: Inputs) -> str | None:
    """The program for a state of the calculator `name`; None where it has none (see the module's docstring)."""
    numbers = list(islice(_numbers(inputs), MAX_NUMBERS + 1))
    if len(numbers) > MAX_NUMBERS or not all(map(_is_moderate, numbers)):
        return None
    if name in _EXCEPTIONS and _EXCEPTIONS[name](inputs):
        return None
    body = {field: getattr(inputs, field) for field in type(inputs).model_fields}
    if name == "framework_recipe":
        body["rule"] = _rule(inputs)
    return _programs().get_template(f"{name}.py.jinja").render(body)


@cache
def _programs() -> Environment:
    jinja = Environment(
        loader=FileSystemLoader(folder("templates") / "snippets"),
        autoescape=False,  # Python source, not HTML: whoever shows it escapes it
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters.update(python=python, number=number, operand=operand, picked=_picked, tokens=_tokens)
    jinja.tests["list"] = lambda value: isinstance(value, list | tuple)
    jinja.tests["above"] = lambda value, bound: exact(value) > bound
    return jinja


def python(value: Any) -> str:
    """A value of a state as Python source: numbers exactly, texts quoted, lists over several lines where too long."""
    return _source(value, _text)


def number(value: Any) -> str:
    """As `python`, for numbers as typed: the text `1/3` is the number."""
    return _source(value, lambda typed: _float(typed) if isinstance(typed, float) else _typed(typed))


def operand(value: Any) -> str:
    """A number that may stand inside a product or a quotient."""
    text = number(value)
    return f"({text})" if text.startswith("-") or "/" in text else text


def _picked(nested: Any, name: str) -> Any:
    """One entry of every object in nested lists; None where one of them has none."""
    if isinstance(nested, Mapping):
        return nested.get(name)
    picked = [_picked(entry, name) for entry in nested]
    return None if None in picked else picked


def _tokens(microsteps: Any) -> list[list[list[list[Any]]]]:
    """A ledger's window as [replica][microstep][kind of token][count, gradient of each, loss of each (where known)]."""
    microsteps = completed(microsteps)
    if isinstance(microsteps, list):
        return [[_kinds(cell) for cell in row] for row in microsteps]
    columns = {name: rows for name, rows in microsteps if rows is not None}
    places = [[(r, k) for k in range(len(row))] for r, row in enumerate(microsteps.n)]
    return [[_kinds({name: rows[r][k] for name, rows in columns.items()}) for r, k in row] for row in places]


def _kinds(cell: Mapping[str, Any]) -> list[list[Any]]:
    """Sums become that many tokens of the mean; a cell of sums without tokens holds none."""
    if "items" in cell:
        return [[item.get("w", 1), item["g"], *([item["loss"]] if "loss" in item else [])] for item in cell["items"]]
    n = exact(cell["n"])

    def of_each(value: Any) -> Any:
        return [of_each(entry) for entry in value] if isinstance(value, list) else exact(value) / n if n else n

    gradient = cell["g"] if "g" in cell else of_each(cell["G"])
    loss = [cell["loss"]] if "loss" in cell else [of_each(cell["S"])] if "S" in cell else []
    return [[n, gradient, *loss]]


def _source(value: Any, leaf: Callable[[Any], str], indent: int = 0) -> str:
    if isinstance(value, Vectors):
        value = value.nested()
    if isinstance(value, Mapping):
        value = [_Pair(f"{_text(key)}: ", entry) for key, entry in value.items()]
        return _bracketed(value, "{}", leaf, indent)
    if isinstance(value, list | tuple):
        return _bracketed(value, "[]", leaf, indent)
    return "None" if value is None else str(value) if isinstance(value, bool) else leaf(value)


class _Pair:
    """An entry of a dict."""

    def __init__(self, key: str, value: Any) -> None:
        self.key, self.value = key, value


def _bracketed(entries: Sequence[Any], brackets: str, leaf: Callable[[Any], str], indent: int) -> str:
    """On one line, or one entry a line, or (plain numbers) as many as fit."""
    inner, margin = indent + 4, " " * (indent + 4)
    texts = [
        entry.key + _source(entry.value, leaf, inner) if isinstance(entry, _Pair) else _source(entry, leaf, inner)
        for entry in entries
    ]
    line = brackets[0] + ", ".join(texts) + brackets[1]
    if "\n" not in line and indent + len(line) <= _WIDTH:
        return line
    if any(isinstance(entry, list | tuple | _Pair | Vectors) for entry in entries):
        lines = [f"{margin}{text}," for text in texts]
    else:
        lines = textwrap.wrap(
            ", ".join(texts) + ",",
            _WIDTH,
            initial_indent=margin,
            subsequent_indent=margin,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join([brackets[0], *lines, " " * indent + brackets[1]])


def _text(value: Any) -> str:
    if isinstance(value, Fraction):
        return _fraction(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, int):
        return _fraction(Fraction(value))
    return json.dumps(str(value), ensure_ascii=False)


def _typed(value: Any) -> str:
    """A number as typed, `inf`, `-inf` and `nan` among them."""
    try:
        return _fraction(exact(value))
    except InputError:
        return _float(extended(value))


def _fraction(value: Fraction) -> str:
    """`2`, `0.1`, `1/3`: a decimal where the value has one."""
    if value.denominator == 1 and abs(value) <= _WHOLE:
        return str(value.numerator)
    below = value.denominator
    for prime in (2, 5):
        while below % prime == 0:
            below //= prime
    return repr(float(value)) if below == 1 else str(value)


def _float(value: float) -> str:
    if not math.isfinite(value):
        return f'float("{value}")'
    return str(int(value)) if value == int(value) and abs(value) <= _WHOLE else repr(value)


def _numbers(value: Any) -> Iterator[Any]:
    """The numbers of a state, as typed, at least so many as tell that they are too many; names are among them."""
    if isinstance(value, Vectors):
        yield from value.array.ravel()[: MAX_NUMBERS + 1].tolist()
    elif isinstance(value, BaseModel):
        for field in type(value).model_fields:
            yield from _numbers(getattr(value, field))
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _numbers(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _numbers(entry)
    elif value is not None:
        yield value


def _is_moderate(typed: Any) -> bool:
    try:
        size = abs(extended(typed)) if not isinstance(typed, bool) else 0.0
    except InputError:
        return True  # a name, not a number
    return size == 0 or not math.isfinite(size) or _SMALLEST <= size <= _LARGEST


def _tokens_of_completions(inputs: Any) -> int:
    return sum(int(exact(one["length"])) for row in inputs.completions for cell in row for one in cell)


def _has_an_idle_replica(inputs: Any) -> bool:
    """A replica without microsteps takes no part in a backward pass, so that autograd cannot tell 0/0 from nothing."""
    rows = inputs.microsteps if isinstance(inputs.microsteps, list) else inputs.microsteps.n
    return not all(rows)


_EXCEPTIONS: dict[str, Callable[[Any], bool]] = {
    "replica_ledger": _has_an_idle_replica,
    "framework_recipe": lambda inputs: sum(map(sum, inputs.counts)) > _LARGEST_TENSOR,
    "gradient_scaling": lambda i: i.batch > _LARGEST_TENSOR or i.micro_batches * i.replicas > _MANY_STEPS,
    "label_count": lambda inputs: inputs.pad_id == -100 or _tokens_of_rows(inputs) > _LARGEST_TENSOR,
    "no_sync_timeline": lambda i: i.unused != "nowhere" and not i.find_unused_parameters,
    "local_updates": lambda i: len(i.targets) * i.local_steps * i.rounds > _MANY_LOCAL_STEPS,
    "metric_ledger": lambda inputs: _items(inputs) > _LARGEST_TENSOR,
    "loss_terms": lambda i: sum(sum(map(float, row)) for t in i.terms for row in t.counts or ()) > _LARGEST_TENSOR,
    "objective_weights": lambda i: sum(sum(cell) for row in i.sequences for cell in row) > _LARGEST_TENSOR,
    "ratio_fingerprint": lambda inputs: inputs.P * inputs.K > _LARGEST_TENSOR,
    "reduction_precision": lambda inputs: inputs.dtype == "float64" and inputs.scaling != "none",
    "schedule_clock": lambda i: i.P * i.batches * i.epochs > _MANY_STEPS,
    "rl_weights": lambda inputs: not 0 < _tokens_of_completions(inputs) <= _LARGEST_TENSOR,
    "sampler_padding": lambda inputs: inputs.dataset_size * inputs.replicas > _LARGEST_TENSOR,
    "token_budget": lambda i: sum(i.lengths) > _LARGEST_TENSOR or i.epochs * len(i.lengths) > _MANY_STEPS,
    "update_rounding": lambda inputs: inputs.steps > _MANY_STEPS,
}
"""States for which no short program would do, or not in a second or two."""


def _rule(inputs: Any) -> Rule:
    """The framework's rule in the version asked for, else in the newest that was measured."""
    rules = [rule for rule in RULES if (rule.framework, rule.setting) == (inputs.framework, inputs.setting)]
    return next((rule for rule in rules if rule.release == inputs.version), rules[0])


def _tokens_of_rows(inputs: Any) -> int:
    return sum(sum(row.lengths or ()) for rank in inputs.cells for cell in rank for row in cell)


def _items(inputs: Any) -> int:
    return sum(int(exact(cell.get(name, 0))) for rank in inputs.cells for cell in rank for name in ("n", "repeated_n"))
