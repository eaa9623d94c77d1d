"""Real situations that a calculator opens with one click; `content/presets.toml` as values."""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from samestep.app.contract.texts import Named
from samestep.app.instruments.start import Expectation


class Preset(Named):
    """A state of a calculator and the public report or document that the situation stems from."""

    calculator: str
    source: str
    fields: Mapping[str, str]
    says: Expectation | None = None

    @property
    def state(self) -> str:
        """The query of the calculator's address, with its question mark."""
        return f"?{urlencode(self.fields)}"

    @property
    def report(self) -> str:
        """The source's short name: `owner/name#number` of a report, else the page's host."""
        address = urlsplit(self.source)
        parts = address.path.strip("/").split("/")
        if address.netloc == "github.com" and len(parts) == 4 and parts[3].isdigit():
            return f"{parts[0]}/{parts[1]}#{parts[3]}"
        return address.netloc


def load_presets(content: Path) -> dict[str, list[Preset]]:
    """The presets by calculator; pydantic's ValidationError names what is wrong with the file.

    Every view of an instrument asks for them, so they are read again only when the file was saved since.
    """
    file = content / "presets.toml"
    return _read(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _read(file: Path, saved: int) -> dict[str, list[Preset]]:
    presets: dict[str, list[Preset]] = {}
    for table in tomllib.loads(file.read_text("utf-8"))["preset"]:
        preset = Preset.model_validate(table)
        presets.setdefault(preset.calculator, []).append(preset)
    return presets
