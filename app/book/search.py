"""Full-text search over the sections of all chapters, Chinese and English in one index.

SQLite's FTS5 splits Chinese nowhere, so a run of Han characters is indexed as its overlapping pairs: 梯度裁剪 becomes
梯度 度裁 裁剪 剪, and a query of two or more characters is a phrase of pairs, which finds exactly the literal
substring. The last pair of a run is a single character, so that a query of one character is a prefix query. Every
other word is indexed by its Porter stem. The same `_fold` and `_PIECE` read sections, queries and snippets, so what
is found is what is highlighted.

A query finds the sections that hold all its terms. If none does, Han runs are broken into pairs: all of them, then
any of them.
"""

import re
import sqlite3
import unicodedata
import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from threading import Lock
from typing import NamedTuple

import snowballstemmer
from markupsafe import Markup, escape

MAX_QUERY = 200
"""Characters of a query that are read; the rest is ignored."""
MAX_TERMS = 24
"""Words and pairs that one query may look for, and completions of an unfinished word."""
REACH = 60
"""Characters shown on each side of the middle of the densest group of hits."""
OWN_LANGUAGE = 1.2
"""Factor on the score of sections in the reader's language: settles near ties, too small to pass a heading."""

_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WIDE = _HAN + "\u3000-\u303f\uff00-\uffef"
_PIECE = re.compile(rf"(?P<han>[{_HAN}]+)|(?P<word>[^\W{_HAN}]+)")
_INSIDE_WORD = re.compile(rf"[^\W{_HAN}]{{2}}")
_BROKEN_LINE = re.compile(rf"(?<=[{_WIDE}])\s*\n\s*(?=[{_WIDE}])")
_TEX = re.compile(r"\\(?:begin|end)\s*\{[^}]*\}|\\(?P<command>[A-Za-z]+)")
_GREEK = re.compile("[Α-ΡΣ-Ωα-ω]")
_COMMON_WORD = re.compile(
    r"a|an|and|are|as|at|be|by|can|do|does|for|from|how|i|in|is|it|its|my|of|on|or|s|t|that|the|their|this|"
    r"to|was|what|when|where|which|why|will|with|you|your"
)
"""Left out of a query that has other words."""

# One bm25 a field, added: in a single weighted bm25 saturation lets a body full of the word pass a heading.
_FIND = """
    select rowid, -8 * bm25(entries, 0, 1, 0, 0) - 4 * bm25(entries, 1, 0, 0, 0) - bm25(entries, 0, 0, 1, 1)
    from entries where entries match ?
"""


@dataclass(frozen=True, slots=True)
class Section:
    """What is found: the text under one heading of one chapter.

    `heading` is empty for the opening of a chapter. `text` is plain text without TeX; `formulas` holds names by which
    the section's formulas may be found (symbols, labels) or their TeX source, of which Greek letters (as τ and as
    tau) and plain words count.
    """

    lang: str
    slug: str
    chapter_title: str
    heading: str
    anchor: str
    text: str
    formulas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hit:
    """A section that answers a query. `snippet` is safe HTML: escaped text whose only element is `<mark>`."""

    lang: str
    slug: str
    anchor: str
    chapter_title: str
    heading: str
    snippet: Markup


@dataclass(frozen=True, slots=True)
class _Term:
    """One thing looked for: its FTS5 expression, and what it lights up: a Han string, stems, or words so begun."""

    match: str
    han: str = ""
    stems: frozenset[str] = frozenset()
    prefix: str = ""


class _Span(NamedTuple):
    start: int
    end: int
    term: int


class SearchIndex:
    """An index in memory over a fixed set of sections; `search` may be called from any thread.

    Raises RuntimeError if this Python's SQLite has no FTS5.
    """

    def __init__(self, sections: Iterable[Section]) -> None:
        self._sections = tuple(sections)
        self._texts = tuple(_tidy(section.text) for section in self._sections)
        self._folded = tuple(_fold(text) for text in self._texts)
        self._stems: dict[str, str] = {}
        self._lock = Lock()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self._connection.close)
        _create_table(self._connection)
        with self._connection:
            self._connection.executemany(
                "insert into entries (rowid, title, heading, body, formulas) values (?, ?, ?, ?, ?)", self._rows()
            )
        self._words = sorted(self._stems)
        self._known_stems = frozenset(self._stems.values())

    def search(self, query: str, lang: str, limit: int = 30) -> list[Hit]:
        """The best sections of both languages, best first, at most `limit`; any text is a valid query."""
        for operator, terms in self._attempts(query):
            scores = self._match(operator.join(term.match for term in terms))
            if scores:
                best = sorted(scores, key=lambda number: self._place(number, scores[number], lang))
                return [self._hit(number, terms) for number in best[: max(limit, 0)]]
        return []

    def _rows(self) -> Iterator[tuple[int, str, str, str, str]]:
        for number, section in enumerate(self._sections):
            title = self._entry(_fold(_tidy(section.chapter_title)))
            heading = self._entry(_fold(_tidy(section.heading))) if section.heading else title
            formulas = self._entry(_fold(_tidy(" ".join(map(_formula_names, section.formulas)))))
            yield number, title, heading, self._entry(self._folded[number]), formulas

    def _entry(self, folded: str) -> str:
        """Index text: pairs of Han characters, stems of words."""
        tokens: list[str] = []
        for piece in _PIECE.finditer(folded):
            if run := piece["han"]:
                tokens += (run[i : i + 2] for i in range(len(run)))
            else:
                word = piece["word"]
                if word not in self._stems:
                    self._stems[word] = _stem(word)
                tokens.append(self._stems[word])
        return " ".join(tokens)

    def _attempts(self, query: str) -> Iterator[tuple[str, list[_Term]]]:
        """How to join which terms, from strict to lenient."""
        text = _fold(unicodedata.normalize("NFKC", query[:MAX_QUERY])[:MAX_QUERY])
        pieces = [(piece["han"] or "", piece["word"] or "") for piece in _PIECE.finditer(text)]
        telling = [(han, word) for han, word in pieces if not _COMMON_WORD.fullmatch(word)]
        pieces = list(dict.fromkeys(telling or pieces))
        last = next((word for _, word in reversed(pieces) if word), "")
        terms = [_han_term(han) if han else self._word_term(word, unfinished=word == last) for han, word in pieces]
        if not terms:
            return
        yield " AND ", terms[:MAX_TERMS]
        lenient: list[_Term] = []
        for (han, word), term in zip(pieces, terms, strict=True):
            if len(han) > 2:
                lenient += (_han_term(han[i : i + 2]) for i in range(len(han) - 1))
            elif word and word == last and len(word) <= 2:
                lenient.append(_Term(f'("{word}" OR "{word}"*)', stems=term.stems))
            else:
                lenient.append(term)
        lenient = list(dict.fromkeys(lenient))[:MAX_TERMS]
        yield " AND ", lenient
        yield " OR ", lenient

    def _word_term(self, word: str, *, unfinished: bool) -> _Term:
        """A word by its stem. The last one may be unfinished, unless it is so short that it would match everything."""
        stem = _stem(word)
        if not unfinished or len(word) <= 2:
            return _Term(f'"{stem}"', stems=frozenset({stem}))
        if stem in self._known_stems:
            return _Term(f'("{stem}" OR "{word}"*)', stems=frozenset({stem}), prefix=word)
        # The index holds stems, which an unfinished word need not begin: `normaliz`, but `normal`.
        begun = takewhile(lambda known: known.startswith(word), self._words[bisect_left(self._words, word) :])
        stems = list(dict.fromkeys([stem, *(self._stems[known] for known in begun)]))[:MAX_TERMS]
        return _Term("(" + " OR ".join(f'"{one}"' for one in stems) + ")", stems=frozenset(stems), prefix=word)

    def _match(self, expression: str) -> dict[int, float]:
        with self._lock, closing(self._connection.execute(_FIND, (expression,))) as cursor:
            return dict(cursor.fetchall())

    def _place(self, number: int, score: float, lang: str) -> tuple[float, bool, int]:
        own = self._sections[number].lang == lang
        return -score * (OWN_LANGUAGE if own else 1.0), not own, number

    def _hit(self, number: int, terms: Sequence[_Term]) -> Hit:
        section = self._sections[number]
        snippet = _snippet(self._texts[number], _spans(self._folded[number], terms, self._stems))
        return Hit(section.lang, section.slug, section.anchor, section.chapter_title, section.heading, snippet)


def _create_table(connection: sqlite3.Connection) -> None:
    try:
        connection.execute(
            "create virtual table entries using fts5(title, heading, body, formulas, content='', prefix='1',"
            " tokenize=\"unicode61 tokenchars '_'\")"
        )
    except sqlite3.OperationalError as error:
        if "fts5" not in str(error):
            raise
        raise RuntimeError(
            f"search needs SQLite with FTS5, and this Python's SQLite {sqlite3.sqlite_version} was built without it:"
            " use a Python from python.org, conda or a current Linux distribution"
        ) from error


def _tidy(text: str) -> str:
    """Text as a snippet shows it: one line, and no gap where a line broke between Chinese characters."""
    return re.sub(r"\s+", " ", _BROKEN_LINE.sub("", unicodedata.normalize("NFC", text))).strip()


def _fold(text: str) -> str:
    """Half-width, without case and accents, one character for one: places in the result are places in `text`."""
    return "".join(map(_fold_character, text))


@lru_cache(maxsize=8192)
def _fold_character(character: str) -> str:
    folded = unicodedata.normalize("NFKD", character).casefold()
    base = "".join(one for one in folded if not unicodedata.combining(one))
    return base if len(base) == 1 else character


def _stem(word: str) -> str:
    if len(word) <= 2 or not (word.isascii() and word.isalpha()):
        return word
    return str(snowballstemmer.stemmer("porter").stemWord(word))  # a stemmer keeps state: one a call, it costs 0.5 µs


def _formula_names(text: str) -> str:
    text = unicodedata.normalize("NFKC", text)
    return _GREEK.sub(_named, _TEX.sub(lambda found: _greek(found["command"] or ""), text))


def _named(letter: re.Match[str]) -> str:
    """`θ` as "θ theta"."""
    name = unicodedata.name(letter[0]).split()[3]
    return f" {letter[0]} {name.lower().replace('lamda', 'lambda')} "


def _greek(command: str) -> str:
    """`\\varepsilon` as "ε epsilon"; nothing for commands that are not Greek letters."""
    name = command.removeprefix("var").lower()
    try:
        letter = unicodedata.lookup("GREEK SMALL LETTER " + name.replace("lambda", "lamda"))
    except KeyError:
        return " "
    return f" {letter} {name} "


def _han_term(run: str) -> _Term:
    if len(run) == 1:
        return _Term(f'"{run}"*', han=run)
    return _Term('"' + " ".join(run[i : i + 2] for i in range(len(run) - 1)) + '"', han=run)


def _spans(folded: str, terms: Sequence[_Term], stems: Mapping[str, str]) -> list[_Span]:
    """Where the terms stand in a folded text, in order of their beginnings; spans may overlap."""
    spans: list[_Span] = []
    roots: set[str] = set()
    for number, term in enumerate(terms):
        start = folded.find(term.han) if term.han else -1
        while start >= 0:
            spans.append(_Span(start, start + len(term.han), number))
            start = folded.find(term.han, start + 1)
        # Porter changes at most the last letter of what it leaves (happy, happi; scaling, scale).
        roots.update(stem[:-1] if len(stem) > 2 else stem for stem in term.stems)
        if term.prefix:
            roots.add(term.prefix)
    if roots:
        begun = "|".join(map(re.escape, sorted(roots)))
        for found in re.finditer(rf"(?:{begun})[^\W{_HAN}]*", folded):
            word = found[0]
            if found.start() and _INSIDE_WORD.match(folded, found.start() - 1):
                continue  # cheaper here than as a look-behind, which is tried at every character
            stem = stems[word]
            for number, term in enumerate(terms):
                if stem in term.stems or (term.prefix and word.startswith(term.prefix)):
                    spans.append(_Span(found.start(), found.end(), number))
    return sorted(spans)


def _snippet(text: str, spans: Sequence[_Span]) -> Markup:
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
