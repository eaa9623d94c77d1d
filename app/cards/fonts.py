"""The fonts that a card is written with: a Chinese one of the system's where there is one, else the packaged Latin one.

Chinese fonts are tens of megabytes, more than the whole wiki, so none is a dependency: where the server has none, a
card of a Chinese page leaves its words out and keeps its figure and numbers, rather than showing empty boxes.
"""

import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from samestep.app.rendering.packaged_fonts import source_font

_CHINESE = (
    ("NotoSansCJK-Regular.ttc", "Noto Sans CJK SC"),
    ("NotoSansCJK-Bold.ttc", "Noto Sans CJK SC"),
    ("NotoSansCJKsc-Regular.otf", "Noto Sans CJK SC"),
    ("NotoSansCJKsc-Bold.otf", "Noto Sans CJK SC"),
    ("SourceHanSansSC-Regular.otf", "Source Han Sans SC"),
    ("SourceHanSansSC-Bold.otf", "Source Han Sans SC"),
    ("PingFang.ttc", "PingFang SC"),
    ("Hiragino Sans GB.ttc", "Hiragino Sans GB"),
    ("msyh.ttc", "Microsoft YaHei"),
    ("msyhbd.ttc", "Microsoft YaHei"),
    ("wqy-microhei.ttc", "WenQuanYi Micro Hei"),
    ("wqy-zenhei.ttc", "WenQuanYi Zen Hei"),
    ("DroidSansFallbackFull.ttf", "Droid Sans Fallback"),
)
"""File and family, the preferred ones first."""
_LATIN = "STIX Two Math"


@dataclass(frozen=True)
class Fonts:
    """Files, and the family that they are asked for by; `chinese` says whether it has Chinese glyphs."""

    files: tuple[str, ...]
    family: str
    chinese: bool


@cache
def card_fonts() -> Fonts:
    """What this machine has; looked for once."""
    packaged = source_font()
    latin = () if packaged is None else (str(packaged),)
    found = {name: path for folder in _folders() for name, path in _files(folder)}
    for name, family in _CHINESE:
        if name in found:
            files = [found[file] for file, of in _CHINESE if of == family and file in found]
            return Fonts((*files, *latin), family, chinese=True)
    return Fonts(latin, _LATIN, chinese=False)


def _folders() -> list[Path]:
    home = Path.home()
    if sys.platform == "win32":
        return [Path(os.environ.get("WINDIR", r"C:\Windows")) / "Fonts"]
    if sys.platform == "darwin":
        return [Path("/System/Library/Fonts"), Path("/Library/Fonts"), home / "Library/Fonts"]
    return [Path("/usr/share/fonts"), Path("/usr/local/share/fonts"), home / ".local/share/fonts", home / ".fonts"]


def _files(folder: Path) -> list[tuple[str, str]]:
    return [(name, os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names]
