"""Work on converted formulas: accents that Chromium draws wrongly, anchors of rows, words for search, width."""

import re
import unicodedata
from xml.etree.ElementTree import Element, SubElement

_ROW_NUMBER = "width: 50%;text-align: right;justify-items: end;"
"""The style by which the converter marks the cell that holds a row's number."""
_NARROW = set("()[]{}|,.;!\u2061\u2062\u2063\u2032")


def mend_accents(tree: Element) -> None:
    """Combining marks stand off-centre in Chromium; their spacing twins do not."""
    for over in tree.iter("mover"):
        mark = over[-1]
        if mark.tag == "mo" and mark.text:
            mark.text = mark.text.replace("\u0332", "\u203e").replace("\u0302", "^")


def link_rows(tree: Element) -> tuple[str, ...]:
    """Give the numbers of an align's rows their anchors; returns the ids."""
    ids = []
    for cell in tree.iter("mtd"):
        if cell.get("style") == _ROW_NUMBER and len(cell) == 1 and cell[0].text:
            number, cell[0].text = cell[0].text, None
            identifier = cell.get("id") or equation_id(number.strip("()"))
            cell.set("id", identifier)
            SubElement(cell[0], "a", {"class": "eqno", "href": f"#{identifier}"}).text = number
            ids.append(identifier)
    return tuple(ids)


def equation_id(tag: str) -> str:
    """`1` → `eq-1`; characters that do not belong in an address become hyphens."""
    return "eq-" + re.sub(r"[^\w.-]+", "-", tag).strip("-")


def plain(text: str) -> str:
    """Characters without their mathematical styles: 𝐠 → g, ℒ → L."""
    visible = "".join(c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c) not in ("Cf", "Mn"))
    return re.sub(r"\s+", " ", visible).strip()


def names(tree: Element) -> str:
    """The symbols and indexed names of a formula, each once: `L_global L global`."""
    found: dict[str, None] = {}
    for node in tree.iter():
        if node.tag in ("mi", "mtext") and node.text:
            found[plain(node.text)] = None
        elif node.tag in ("msub", "msubsup") and len(node) > 1:
            base, sub = (plain("".join(part.itertext())) for part in node[:2])
            found[f"{base}_{sub}".replace(" ", "")] = None
    return " ".join(filter(None, found))


def width(node: Element) -> float:
    """A rough upper estimate of a formula's width in em."""
    parts = [width(child) for child in node]
    if node.tag in ("mfrac", "munder", "mover", "munderover", "mtable"):
        return max(parts, default=0.0) + 0.2
    if node.tag in ("msub", "msup"):
        return parts[0] + 0.71 * parts[1]
    if node.tag == "msubsup":
        return parts[0] + 0.71 * max(parts[1:])
    if node.tag == "mtr":
        return sum(parts) + 0.8 * max(len(parts) - 1, 0)
    if parts:
        return sum(parts) + (1.0 if node.tag == "msqrt" else 0.0)
    return _leaf_width(node)


def _leaf_width(node: Element) -> float:
    text = node.text or ""
    if node.tag == "mo":
        return 0.4 if text in _NARROW else 1.2
    if node.tag == "mspace":
        return float(node.get("width", "0em").removesuffix("em") or 0)
    return sum(1.0 if unicodedata.east_asian_width(c) in "WF" else 0.56 for c in text)
