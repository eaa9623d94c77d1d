"""What a hit shows: the piece of its text round the densest words that were looked for, these marked."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup, escape

REACH = 60
"""Characters shown on each side of the middle of the densest group of hits."""

HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WIDE = HAN + "\u3000-\u303f\uff00-\uffef"
_INSIDE_WORD = re.compile(rf"[^\W{HAN}]{{2}}")


@dataclass(frozen=True, slots=True)
class Term:
    """One thing looked for: its FTS5 expression, and what it lights up: literal strings, stems, or words so begun."""

    match: str
    literal: tuple[str, ...] = ()
    stems: frozenset[str] = frozenset()
    prefix: str = ""


class _Span(NamedTuple):
    start: int
    end: int
    term: int


def spans(folded: str, terms: Sequence[Term], stems: Mapping[str, str]) -> list[_Span]:
    """Where the terms stand in a folded text, in order of their beginnings; spans may overlap."""
    found_spans: list[_Span] = []
    roots: set[str] = set()
    for number, term in enumerate(terms):
        for literal in term.literal:
            start = folded.find(literal)
            while start >= 0:
                found_spans.append(_Span(start, start + len(literal), number))
                start = folded.find(literal, start + 1)
        # Porter changes at most the last letter of what it leaves (happy, happi; scaling, scale).
        roots.update(stem[:-1] if len(stem) > 2 else stem for stem in term.stems)
        if term.prefix:
            roots.add(term.prefix)
    if roots:
        begun = "|".join(map(re.escape, sorted(roots)))
        for found in re.finditer(rf"(?:{begun})[^\W{HAN}]*", folded):
            word = found[0]
            if found.start() and _INSIDE_WORD.match(folded, found.start() - 1):
                continue  # cheaper here than as a look-behind, which is tried at every character
            stem = stems[word]
            for number, term in enumerate(terms):
                if stem in term.stems or (term.prefix and word.startswith(term.prefix)):
                    found_spans.append(_Span(found.start(), found.end(), number))
    return sorted(found_spans)


def excerpt(text: str, spans: Sequence[_Span]) -> Markup:
    """Escaped text round the densest hits, these in `<mark>`; the beginning of the text if there are none."""
    start, end = _window(text, spans)
    parts = ["…" if start > 0 else ""]
    position = start
    for low, high in _merged(span for span in spans if start <= span.start and span.end <= end):
        parts += [escape(text[position:low]), "<mark>", escape(text[low:high]), "</mark>"]
        position = high
    parts += [escape(text[position:end].rstrip()), "…" if end < len(text) else ""]
    return Markup("".join(parts))  # safe: every piece of text above is escaped


def _window(text: str, spans: Sequence[_Span]) -> tuple[int, int]:
    """The cut of about 2 · REACH characters with the most different terms, then the most hits, then the first."""
    first, last = _densest(spans) if spans else (0, 0)
    end = min(max((first + last) // 2, REACH) + REACH, len(text))
    start = max(min((first + last) // 2, len(text) - REACH) - REACH, 0)
    start, end = min(start, first), max(end, last)
    while 0 < start < first and _INSIDE_WORD.match(text, start - 1):
        start += 1
    while last < end < len(text) and _INSIDE_WORD.match(text, end - 1):
        end -= 1
    while start < first and text[start] == " ":
        start += 1
    return start, end


def _densest(spans: Sequence[_Span]) -> tuple[int, int]:
    best, place = (0, 0), (0, 0)
    counts: Counter[int] = Counter()
    end = 0
    for number, span in enumerate(spans):
        while end < len(spans) and (spans[end].end <= span.start + 2 * REACH or end == number):
            counts[spans[end].term] += 1
            end += 1
        if (len(counts), end - number) > best:
            best, place = (len(counts), end - number), (span.start, max(inner.end for inner in spans[number:end]))
        counts[span.term] -= 1
        if not counts[span.term]:
            del counts[span.term]
    return place


def _merged(spans: Iterable[_Span]) -> list[tuple[int, int]]:
    """Ordered spans with overlapping and touching ones joined."""
    joined: list[tuple[int, int]] = []
    for span in spans:
        if joined and span.start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], span.end)
        else:
            joined.append((span.start, span.end))
    return joined
