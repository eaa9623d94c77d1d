"""The math font: STIX Two Math from ziamath's wheel, cut down to what formulas use and packed as WOFF2.

Packing takes seconds and a hundred megabytes, so it happens once, in a process of its own (`python -m app.web.fonts
SOURCE TARGET`), and its result stays in the user's cache folder under a name made from everything it depends on.
"""

import hashlib
import importlib.metadata
import logging
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from samestep.app.paths import IMPORTED_FROM, cache_folder
from samestep.app.rendering.packaged_fonts import source_font

if TYPE_CHECKING:
    from fontTools.ttLib import TTFont

log = logging.getLogger("samestep.fonts")

_FEATURES = ["ssty", "dtls", "flac", "ccmp", "mark", "mkmk"]
_RANGES = (
    "20-7e a0 ac af b1 b7 d7 2c6 2dc 391-3c9 3f5 2009 2016 2026 2032 203e 2061-2063 210e 2112-2113 212c 2130 2133 "
    "2190-2194 21d2 21d4 2200-2203 2205 2207-220b 220f 2211-2213 2217 221a 221d-221e 2220 2223 2225-222b 223c 2248 "
    "2260-2265 226a-226b 2282 2286 2295 2297 2299 22a4-22a5 22c5-22c6 22ee-22ef 2308-230b 23de-23df 27e8-27e9 "
    "27f6-27fa 1d400-1d467 1d49c-1d4b5 1d538-1d54f 1d5a0-1d5b9 1d6e2-1d71b 1d7ce-1d7d7 fe00"
)
"""Code points, hexadecimal: what the book's formulas use and its neighbours. Each sign brings its larger forms, so that
whole blocks would be twice as much for every reader; a test names the sign that a new formula lacks.

What a page's text contains is not enough: the browser itself picks italic letters, radicals and accents.
"""
_PRIMES = (0x2032, 0x2033, 0x2034)
_PATIENCE = 60
"""Seconds for the packing process."""


@dataclass(frozen=True)
class MathFont:
    """A font file to serve; `format` is its name in CSS."""

    path: Path
    format: Literal["woff2", "truetype"]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def data(self) -> bytes:
        return self.path.read_bytes()


def math_font() -> MathFont | None:
    """The font: WOFF2 from the cache, made now if need be; the original TTF if that fails.

    None when the font is not installed. Each failure leaves one line in the log that says what to do.
    """
    source = source_font()
    if source is None:
        log.warning(
            "math font missing: formulas fall back to the reader's own fonts. Put it back with: %s -m pip install "
            "--force-reinstall --no-deps ziamath",
            sys.executable,
        )
        return None
    target = cache_folder() / "fonts" / f"stix-two-math-{_key(source)}.woff2"
    if _is_woff2(target):
        return MathFont(target, "woff2")
    try:
        _pack_elsewhere(source, target)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", "") or str(error)
        log.warning(
            "math font not packed, pages carry 1.5 MB instead of 0.1 MB: %s. It is kept in %s; SAMESTEP_CACHE_DIR "
            "names another folder",
            reason.strip().rpartition("\n")[2],
            target.parent,
        )
        return MathFont(source, "truetype")
    return MathFont(target, "woff2")


def _key(source: Path) -> str:
    """Names the result by all that goes into it: the font, this file, the packers' versions."""
    digest = hashlib.sha256(source.read_bytes())
    digest.update(Path(__file__).read_bytes())
    for package in ("fonttools", "brotli"):
        digest.update(importlib.metadata.version(package).encode())
    return digest.hexdigest()[:16]


def _is_woff2(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"wOF2"
    except OSError:
        return False


def _pack_elsewhere(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "samestep.app.web.fonts", str(source), str(target)]
    paths = os.pathsep.join(filter(None, [str(IMPORTED_FROM), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": paths}
    subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=_PATIENCE)


def pack(source: Path, target: Path) -> None:
    """Write `source`, cut down, as WOFF2. Others may do the same at the same time: the last one wins, all are equal."""
    from fontTools import subset

    options = subset.Options(hinting=False, glyph_names=False, layout_features=_FEATURES)
    options.flavor = "woff2"
    font = subset.load_font(str(source), options)
    _use_large_primes(font)
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=[code for first, last in _ranges() for code in range(first, last + 1)])
    subsetter.subset(font)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.stem, suffix=".part")
    os.close(handle)
    try:
        subset.save_font(font, temporary, options)
        Path(temporary).replace(target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _ranges() -> list[tuple[int, int]]:
    pairs = [item.split("-") for item in _RANGES.split()]
    return [(int(pair[0], 16), int(pair[-1], 16)) for pair in pairs]


def _use_large_primes(font: "TTFont") -> None:
    """Point the primes at their script alternates: Chromium ignores `ssty`, and g′ would be tiny and too high."""
    substitutions = font["GSUB"].table
    features = [r.Feature for r in substitutions.FeatureList.FeatureRecord if r.FeatureTag == "ssty"]
    lookups = [substitutions.LookupList.Lookup[i] for feature in features for i in feature.LookupListIndex]
    alternates = {g: found[0] for lookup in lookups for t in lookup.SubTable for g, found in t.alternates.items()}
    for table in font["cmap"].tables:
        for prime in _PRIMES:
            if table.isUnicode() and prime in table.cmap:
                glyph = table.cmap[prime]  # tables may share one mapping
                table.cmap[prime] = alternates.get(glyph, glyph)


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
