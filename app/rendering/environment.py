"""Turning values into HTML: the Jinja environment, how a number reads, and the hooks that outputs carry.

Templates only format: numbers come from calculators, coordinates from `scales`. A template finds

    t(zh, en)       the text in the reader's language (`lang` of its context)
    url(path)       an address below the root path;  asset(name): the address of a static file
    number(value)   6 significant digits, a true minus sign
    out(view, "reference.grad")   an output with its dotted path and its full-precision value, or why there is none
    out_cells(view, "rows.0", ["n", "+grad"])   a table's cells with the outputs of these names; `+` asks for the sign
    field.…, output.…   the macros of `_field.html` and `_output.html`
    figure.…, words.…   of a panel's calculator: the macros of `figures/NAME.svg`, the texts of `calculators/_NAME.html`
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from jinja2.runtime import Context, Macro
from jinja2.utils import missing
from markupsafe import Markup, escape

from samestep.app.contract.languages import Lang
from samestep.app.contract.limits import LONGEST_ADDRESS
from samestep.app.contract.numbers import fraction_text, replica_name
from samestep.app.contract.paths import Leaf, NoSuchStepError, reason_at, value_at
from samestep.app.contract.rows import ROW_BREAKS, VALUE_BREAKS
from samestep.app.paths import Kept
from samestep.app.rendering import scales

MINUS = "\N{MINUS SIGN}"
_FIRST = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "i")
"""What a positive number, `inf` included, begins with."""
_LISTED = 8
"""So many entries of a vector are shown; its data-value holds them all."""

REASONS: dict[str, tuple[str, str]] = {
    "empty_cell": ("没有有效计数的单元格没有均值（0/0）", "a cell without valid items has no mean (0/0)"),
    "zero_count": ("N = 0，没有可以求的均值", "N = 0, there is no mean to take"),
    "zero_reference": ("参考值为 0，比值没有定义", "the reference is 0, so there is no ratio"),
    "non_finite": ("含 inf 或 nan", "contains inf or nan"),
    "not_reached": ("训练结束前没有到达", "the run ends before"),
    "not_reduced": ("从未归约，.grad 仍是 None", "never reduced: .grad is still None"),
    "one_value": ("只有一个值，没有方差", "one value alone has no variance"),
    "zero_variance": ("方差为 0，商没有定义", "the variance is 0, so there is no quotient"),
}
"""Why a number is missing, in words, by reason code."""


_IMPORTED = {"field": "_field.html", "output": "_output.html"}
_IMPORTED_OF_A_CALCULATOR = {"figure": "figures/{}.svg", "words": "calculators/_{}.html"}
"""What templates find under these names without an import; the latter where there is a panel."""


class _Context(Context):
    """A template's context, with `t` and `out` in its language: bound once, not looked up at every call."""

    def __init__(self, environment: Environment, parent: dict[str, Any], *rest: Any, **named: Any) -> None:
        if "lang" in parent:
            parent.update(_IN_LANGUAGE[parent["lang"]])
        super().__init__(environment, parent, *rest, **named)

    def resolve_or_missing(self, key: str) -> Any:
        """The value of a name; what needs no import is imported, with context, where it is first named."""
        found = super().resolve_or_missing(key)
        if found is missing and (template := self._imported(key)):
            found = self.parent[key] = self.environment.get_template(template).make_module(self.get_all(), shared=True)
        return found

    def _imported(self, key: str) -> str | None:
        panel = self.parent.get("panel")
        if panel is not None and key in _IMPORTED_OF_A_CALCULATOR:
            return _IMPORTED_OF_A_CALCULATOR[key].format(panel.name)
        return _IMPORTED.get(key)

    def call(self, called: Any, /, *given: Any, **named: Any) -> Any:
        """Call a function or macro; without Jinja's search for its `pass_…` decorators, which none of ours has."""
        if named:
            named.pop("_block_vars", None)
            named.pop("_loop_vars", None)
        return called(self.eval_ctx, *given, **named) if type(called) is Macro else called(*given, **named)


class _Environment(Environment):
    context_class = _Context


class _KeptTemplates(BytecodeCache):
    """Compiled templates; Jinja itself sees to it that they were compiled from the same source."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def load_bytecode(self, bucket: Bucket) -> None:
        if (compiled := self._kept.read(bucket.key)) is not None:
            bucket.bytecode_from_string(compiled)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._kept.write(bucket.key, bucket.bytecode_to_string())


def environment(
    templates: Path, asset_url: Callable[[str], str], root_path: str = "", kept: Kept | None = None
) -> Environment:
    """The environment that every page and fragment is rendered in; every context needs `lang`.

    `asset_url` gives the address of a file under `static`, root path included; `kept` has templates compiled before.
    """
    jinja = _Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,
        bytecode_cache=_KeptTemplates(kept) if kept else None,
    )
    root = root_path.rstrip("/")
    jinja.globals.update(
        number=number,
        brief=brief,
        reason=reason_words,
        replica=replica_name,
        zip=zip,
        asset=asset_url,
        url=lambda path: root + path,
        position=scales.slider_position,
        longest_address=LONGEST_ADDRESS,
        row_breaks=ROW_BREAKS,
        value_breaks=VALUE_BREAKS,
        **{name: getattr(scales, name) for name in scales.FOR_TEMPLATES},
    )
    jinja.filters["number"] = number
    jinja.filters["ticked"] = ticked
    jinja.filters["sentence"] = sentence
    jinja.tests["list"] = lambda value: isinstance(value, list | tuple)
    return jinja


def block(jinja: Environment, template: str, name: str, context: Mapping[str, Any]) -> Markup:
    """One block of a template by itself: a fragment. KeyError for a block that the template does not have."""
    found = jinja.get_template(template)
    return Markup("".join(found.blocks[name](found.new_context(dict(context)))))


def sentence(text: str) -> str:
    """A name that begins a sentence."""
    return text[:1].upper() + text[1:]


def ticked(text: str) -> Markup:
    """A sentence whose `` `code` `` is set as code."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else Markup("{}").format(part) for i, part in enumerate(parts)
    )


def reason_words(code: str, lang: Lang) -> str:
    """A reason code in words; a code that is not in the list is shown as it is."""
    words = REASONS.get(code)
    return code if words is None else words[lang != "zh"]


def number(value: float | str | Fraction | None, signed: bool = False) -> str:
    """A number as a reader sees it: 6 significant digits, U+2212 for minus, `+` before positive ones if `signed`.

    Counts (`int`) are exact; exact fractions and `inf`, `nan`, which come as strings, keep their text; None is a dash.
    """
    if isinstance(value, float):
        text = f"{value:.6g}"
        if "e" in text:
            digits, power = text.split("e")
            text = f"{digits}e{int(power)}"
        elif text == "-0":
            text = "0"
    elif value is None:
        return "–"
    elif isinstance(value, Fraction):
        text = fraction_text(value)
    else:
        text = str(value)
    if signed and text[:1] in _FIRST and text != "0":
        text = "+" + text
    return text.replace("-", MINUS)


def brief(value: float) -> str:
    """A probability where there is little room: 3 decimals; `≈0` and `≈1` are not quite 0 and 1."""
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return text if text not in ("0", "1") or value == float(text) else "≈" + text


def out(lang: Lang, view: object, path: str, signed: bool = False, none: str | None = None) -> Markup:
    """An output: the value at the dotted `path` of `view`, rounded for the reader and exact for scripts.

    A missing value (None) is shown as `none`, if given; else it says so in words, with the reason that the innermost
    object on the path gives.
    """
    return _output(lang, view, path, value_at(view, path), signed, none)


def out_cells(lang: Lang, view: object, place: str, names: Iterable[str], none: str | None = None) -> Markup:
    """Cells of a table's row: the outputs of these names at `place`; a `+` before a name asks for its sign."""
    row, shown = value_at(view, place), []
    for name in names:
        field = name.removeprefix("+")
        shown.append(f"<td>{_output(lang, view, f'{place}.{field}', value_at(row, field), field != name, none)}</td>")
    return Markup("\n".join(shown))


def _output(lang: Lang, view: object, path: str, value: Any, signed: bool, none: str | None) -> Markup:
    """The value at the path of `view`."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        return _data(path, repr(value), number(value, signed))
    if value is None:
        return _missing(lang, path, reason_at(view, path)) if none is None else escape(none)
    if isinstance(value, str):
        return _data(path, escape(value), escape(number(value, signed)))
    if isinstance(value, bool):
        return _data(path, str(value).lower(), _FLAGS[lang][value])
    if isinstance(value, Fraction):
        return _data(path, fraction_text(value), number(value, signed))
    return _data(path, escape(json.dumps(value)), escape(_vector(value, signed)))


def shown_text(lang: Lang, view: object, path: str) -> str:
    """What a reader sees of the value at a path, as plain text; a `+` before the path asks for its sign."""
    try:
        value = value_at(view, path.removeprefix("+"))
    except NoSuchStepError:
        value = None  # a shorter list than the text's own example has
    if value is None:
        return _UNDEFINED[lang]
    if isinstance(value, bool):
        return _FLAGS[lang][value]
    return _vector(value, path[0] == "+") if isinstance(value, list | tuple) else number(value, path[0] == "+")


def _data(path: str, exact: str, shown: str) -> Markup:
    """`exact` and `shown` are HTML already: a number has nothing to escape, and most are numbers."""
    return Markup(f'<data data-field="{escape(path)}" data-value="{exact}" value="{exact}">{shown}</data>')


def _missing(lang: Lang, path: str, reason: str | None) -> Markup:
    why = (
        Markup("") if reason is None else Markup(' <small class="reason">{}</small>').format(reason_words(reason, lang))
    )
    return Markup('<span class="undefined" data-field="{}">{}{}</span>').format(path, _UNDEFINED[lang], why)


def number_rows(lang: Lang, numbers: Iterable[Leaf]) -> Markup:
    """Rows of a table, path and value, of any JSON values: in one go, for there are hundreds of them."""
    return Markup("\n").join(
        Markup('<tr><th scope="row"><code>{}</code></th><td>{}</td></tr>').format(leaf.path, _leaf(lang, leaf))
        for leaf in numbers
    )


def _leaf(lang: Lang, leaf: Leaf) -> Markup:
    if leaf.value is None:
        return _missing(lang, leaf.path, leaf.reason)
    text = escape(leaf.value if isinstance(leaf.value, str) else json.dumps(leaf.value))
    return _data(leaf.path, text, number(leaf.value) if isinstance(leaf.value, float) else text)


def _vector(value: Sequence[Any], signed: bool) -> str:
    shown = [_vector(entry, signed) if isinstance(entry, list | tuple) else number(entry, signed) for entry in value]
    rest = len(shown) - _LISTED
    return "[" + ", ".join(shown[:_LISTED]) + (f", … +{rest}]" if rest > 0 else "]")


_UNDEFINED: dict[Lang, str] = {"zh": "不可用", "en": "undefined"}
_FLAGS: dict[Lang, tuple[str, str]] = {"zh": ("否", "是"), "en": ("no", "yes")}

_IN_LANGUAGE: dict[Lang, dict[str, Any]] = {
    "zh": {"t": lambda zh, en: zh},
    "en": {"t": lambda zh, en: en},
}
for _lang, _names in _IN_LANGUAGE.items():
    _names.update({function.__name__: partial(function, _lang) for function in (out, out_cells, number_rows)})
"""What templates find under these names, by language."""
