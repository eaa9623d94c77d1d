"""What stands on an instrument for the symbols of the formulas around it; `content/symbols.toml` as values."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from samestep.app.paths import folder


@dataclass(frozen=True)
class Symbol:
    """One symbol of an instrument.

    `names` are what formulas know it by (`n_r`), `places` fields of the form and dotted paths of outputs, `*` in them
    being any step, `words` what programs call it.
    """

    names: tuple[str, ...]
    places: tuple[str, ...]
    words: tuple[str, ...]


def symbols_of(name: str) -> tuple[Symbol, ...]:
    """The symbols of one calculator; none for one that the table does not have. Read again when the file is saved."""
    file = folder("content") / "symbols.toml"
    return _read(file, file.stat().st_mtime_ns).get(name, ())


def written(name: str) -> str:
    """The same for the page's script: `n_r n_rk=counts rows.*.n=n COUNTS;θ=theta`."""
    return ";".join("=".join(map(" ".join, (one.names, one.places, one.words))) for one in symbols_of(name))


@lru_cache(maxsize=1)
def _read(file: Path, saved: int) -> Mapping[str, tuple[Symbol, ...]]:
    tables = tomllib.loads(file.read_text("utf-8"))
    return {name: tuple(_symbol(names, *given) for names, given in table.items()) for name, table in tables.items()}


def _symbol(names: str, places: str, words: str = "") -> Symbol:
    return Symbol(tuple(names.split()), tuple(places.split()), tuple(words.split()))
