"""The figures' style sheet for a renderer of plain SVG: variables, light-dark(), color-mix() and :is() written out.

What the site's own sheets say of figures is said once; here it is only flattened, in the light colours.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

SHEETS = ("figures", "first")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_VARIABLE = re.compile(r"(--[\w-]+)\s*:\s*([^;]+)")
_REFERENCE = re.compile(r"var\((--[\w-]+)\)")
_LIGHT = re.compile(r"light-dark\(\s*([^,()]+(?:\([^()]*\))?)\s*,[^()]*(?:\([^()]*\))?[^()]*\)")
_MIX = re.compile(r"color-mix\(in oklab,\s*(#[0-9a-f]{6})\s+([\d.]+)%,\s*(#[0-9a-f]{6})\s*\)", re.IGNORECASE)
_REM = re.compile(r"([\d.]+)rem\b")
_ANY_OF = re.compile(r":is\(([^()]*)\)")
_PIXELS = 16


@lru_cache(maxsize=1)
def figure_style(css: Path) -> str:
    """The rules of `SHEETS` in the folder `css`, flattened."""
    colours = variables(css)
    return "\n".join(rule for name in SHEETS for rule in flattened((css / f"{name}.css").read_text("utf-8"), colours))


def variables(css: Path) -> dict[str, str]:
    """The custom properties of `tokens.css`, in the light colours."""
    text = _COMMENT.sub("", (css / "tokens.css").read_text("utf-8"))
    found: dict[str, str] = {}
    for name, value in _VARIABLE.findall(text):
        found.setdefault(name, _LIGHT.sub(r"\1", value).strip())
    return found


def flattened(text: str, known: Mapping[str, str]) -> Iterator[str]:
    """The rules of a sheet one by one; what stands inside an at-rule, or cannot be said plainly, is left out."""
    for selectors, body in _RULE.findall(_without_at_rules(_COMMENT.sub("", text))):
        body = _REM.sub(lambda found: f"{float(found[1]) * _PIXELS:g}px", _colours(body, known))
        plain = [one.strip() for group in _selectors(selectors) for one in group.split(",")]
        plain = [one for one in plain if ":" not in one]
        if plain and "(" not in body:
            yield f"{', '.join(plain)} {{{' '.join(body.split())}}}"


def _without_at_rules(text: str) -> str:
    """The sheet without `@media …{…}`."""
    kept, depth, skipping = [], 0, False
    for piece in re.split(r"([{}]|@[^{;]+)", text):
        if piece.startswith("@"):
            skipping, depth = True, 0
        elif not skipping:
            kept.append(piece)
        elif piece in ("{", "}"):
            depth += 1 if piece == "{" else -1
            skipping = depth > 0
    return "".join(kept)


def _colours(body: str, known: Mapping[str, str]) -> str:
    while found := _REFERENCE.search(body):
        body = body.replace(found[0], known.get(found[1], "none"))
    body = _LIGHT.sub(r"\1", body)
    return _MIX.sub(lambda found: mixed(found[1], found[3], float(found[2]) / 100), body)


def _selectors(text: str) -> Iterator[str]:
    """Every way to read a selector list whose `:is()` are written out."""
    found = _ANY_OF.search(text)
    if found is None:
        yield text
        return
    for one in found[1].split(","):
        yield from _selectors(text[: found.start()] + one.strip() + text[found.end() :])


def mixed(one: str, other: str, share: float) -> str:
    """`color-mix(in oklab, one share, other)` of two colours like #0f5a70 (CSS Color 5; Ottosson's Oklab)."""
    pair = zip(_oklab(one), _oklab(other), strict=True)
    lightness, a, b = (share * first + (1 - share) * second for first, second in pair)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{_encoded(value):02x}" for value in linear)


def _oklab(colour: str) -> tuple[float, float, float]:
    red, green, blue = (_decoded(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    medium = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def _decoded(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def _encoded(value: float) -> int:
    value = min(max(value, 0.0), 1.0)
    return round(255 * (12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055))
