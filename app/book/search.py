"""Full-text search over the sections of all chapters, Chinese and English in one index.

SQLite's FTS5 splits Chinese nowhere, so a run of Han characters is indexed as its overlapping pairs: 梯度裁剪 becomes
梯度 度裁 裁剪 剪, and a query of two or more characters is a phrase of pairs, which finds exactly the literal
substring. The last pair of a run is a single character, so that a query of one character is a prefix query. Every
other word is indexed by its Porter stem. The same `_fold` and `_PIECE` read sections, queries and snippets, so what
is found is what is highlighted.

A query finds the sections that hold all its terms; words that mean the same stand for each other. If no section does,
Han runs are broken into the longest pieces that the index knows: all of them, then any of them, those first that hold
most. A query as long as a sentence goes on to these also when only a few sections hold it all. Sections in the reader's
language come first, and of these the ones whose title or heading holds the words; public reports come last.
"""

import re
import sqlite3
import unicodedata
import weakref
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from math import log
from threading import Lock
from typing import Any, Literal

import snowballstemmer
from markupsafe import Markup

from samestep.app.book.excerpts import HAN, WIDE, Term, excerpt, spans
from samestep.app.contract.languages import Lang

MAX_QUERY = 200
"""Characters of a query that are read; the rest is ignored."""
MAX_TERMS = 24
"""Words and pairs that one query may look for, and completions of an unfinished word."""
SENTENCE = 3
"""From so many terms on, sections that hold all of them are followed by those that hold most, if they are few:"""
ENOUGH = 5
"""fewer than these."""
LITERAL = 3
"""How much more a section counts in which the query stands word by word."""
Kind = Literal["chapter", "calculator", "start", "framework", "experiment", "term", "report"]

_PIECE = re.compile(rf"(?P<han>[{HAN}]+)|(?P<word>[^\W{HAN}]+)")
_HAN_RUN = re.compile(rf"[{HAN}]+")
_BROKEN_LINE = re.compile(rf"(?<=[{WIDE}])[^\S\n]*\n[^\S\n]*(?=[{WIDE}])")
"""A line that ends in the middle of a Chinese sentence; what a blank line divides are two sentences or cells."""
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
_HOLDING = "select rowid from entries where entries match ?"
_EXISTS = "select 1 from entries where entries match ? limit 1"


@dataclass(frozen=True, slots=True)
class Section:
    """What is found: the text under one heading of one page, at `/{lang}/{slug}#{anchor}`.

    `heading` is empty for the opening of a chapter and for pages of another `kind`. `text` is plain text without TeX;
    `formulas` holds names by which the section's formulas may be found (symbols, labels) or their TeX source, of which
    Greek letters (as τ and as tau) and plain words count.
    """

    lang: Lang
    slug: str
    chapter_title: str
    heading: str
    anchor: str
    text: str
    formulas: tuple[str, ...] = ()
    kind: Kind = "chapter"


@dataclass(frozen=True, slots=True)
class Hit:
    """A section that answers a query. `snippet` is safe HTML: escaped text whose only element is `<mark>`."""

    lang: Lang
    slug: str
    anchor: str
    chapter_title: str
    heading: str
    snippet: Markup
    kind: Kind = "chapter"


class SearchIndex:
    """An index in memory over a fixed set of sections; `search` may be called from any thread.

    `synonyms` are groups of words and phrases, of either language, that stand for each other in a query. Raises
    RuntimeError if this Python's SQLite has no FTS5.
    """

    def __init__(self, sections: Iterable[Section], synonyms: Iterable[Iterable[str]] = ()) -> None:
        given = tuple(sections)
        self._sections = tuple(replace(section, text="", formulas=()) for section in given)  # their texts are below
        self._texts = tuple(_tidy(section.text) for section in given)
        self._folded = tuple(_fold(text) for text in self._texts)
        self._stems: dict[str, str] = {}
        self._open()
        _create_table(self._connection)
        with self._connection:
            self._connection.executemany(
                "insert into entries (rowid, title, heading, body, formulas) values (?, ?, ?, ?, ?)", self._rows(given)
            )
        self._words = sorted(self._stems)
        self._known_stems = frozenset(self._stems.values())
        self._synonyms = self._known_synonyms(synonyms)
        phrases = sorted(self._synonyms, key=len, reverse=True)
        self._phrase = re.compile("|".join(map(_whole, phrases)) or "(?!)")

    def _open(self) -> None:
        self._lock = Lock()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self._connection.close)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the tables as SQLite would write them into a file."""
        state = dict(vars(self), _connection=self._connection.serialize())
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        tables = state.pop("_connection")
        vars(self).update(state)
        self._open()
        self._connection.deserialize(tables)

    def search(self, query: str, lang: Lang, limit: int = 30) -> list[Hit]:
        """The best sections of both languages, best first, at most `limit`; any text is a valid query."""
        found: dict[int, list[Term]] = {}
        literal = self._holding_literally(query)
        for operator, terms in self._attempts(query):
            scores = self._match(operator.join(term.match for term in terms))
            if operator == " OR ":
                scores = self._by_coverage(scores, terms)
            for number in set(scores).intersection(literal):
                scores[number] *= LITERAL
            for number in sorted(scores, key=lambda number: self._place(number, scores[number], lang)):
                found.setdefault(number, terms)
            if len(found) >= ENOUGH or (found and len(terms) < SENTENCE):
                break
        return [self._hit(number, terms) for number, terms in list(found.items())[: max(limit, 0)]]

    def unknown(self, query: str) -> list[str]:
        """The words of a query, as typed, that stand nowhere in the index."""
        first = next(self._attempts(query), ("", []))[1]
        pieces = self._pieces(query)
        return [piece for piece, term in zip(pieces, first, strict=False) if not self._is_known(term.match)]

    def _known_synonyms(self, groups: Iterable[Iterable[str]]) -> dict[str, Term]:
        """What each phrase of a group looks for: every phrase of its group."""
        found: dict[str, Term] = {}
        for group in groups:
            phrases = list(dict.fromkeys(_fold(unicodedata.normalize("NFKC", phrase)) for phrase in group))
            terms = [self._phrase_term(phrase) for phrase in phrases]
            literal = tuple(one for term in terms for one in term.literal)
            stems = frozenset(stem for term in terms for stem in term.stems)
            joined = Term("(" + " OR ".join(term.match for term in terms) + ")", literal, stems)
            found |= dict.fromkeys(phrases, joined)
        return found

    def _phrase_term(self, phrase: str) -> Term:
        """A word by its stem; several words, or Chinese, as they stand."""
        pieces = [(piece["han"] or "", piece["word"] or "") for piece in _PIECE.finditer(phrase)]
        if len(pieces) == 1:
            han, word = pieces[0]
            return _han_term(han) if han else Term(f'"{_stem(word)}"', stems=frozenset({_stem(word)}))
        tokens: list[str] = []
        for han, word in pieces:
            tokens += [han[i : i + 2] for i in range(len(han))] or [_stem(word)]
        if len(pieces[-1][0]) > 1:
            tokens.pop()  # the run may go on
        return Term('"' + " ".join(tokens) + '"', (phrase,))

    def _is_known(self, expression: str) -> bool:
        with self._lock, closing(self._connection.execute(_EXISTS, (expression,))) as cursor:
            return cursor.fetchone() is not None

    def _rows(self, sections: Sequence[Section]) -> Iterator[tuple[int, str, str, str, str]]:
        for number, section in enumerate(sections):
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

    def _attempts(self, query: str) -> Iterator[tuple[str, list[Term]]]:
        """How to join which terms, from strict to lenient."""
        pieces = self._pieces(query)
        words = [piece for piece in pieces if piece not in self._synonyms and not _HAN_RUN.fullmatch(piece)]
        last = words[-1] if words else ""
        terms = [self._term(piece, unfinished=piece == last) for piece in pieces]
        if not terms:
            return
        yield " AND ", terms[:MAX_TERMS]
        lenient: list[Term] = []
        for piece, term in zip(pieces, terms, strict=True):
            if _HAN_RUN.fullmatch(piece) and piece not in self._synonyms:
                lenient += map(_han_term, self._broken(piece))
            elif piece == last and len(piece) <= 2:
                lenient.append(Term(f'("{piece}" OR "{piece}"*)', stems=term.stems))
            else:
                lenient.append(term)
        lenient = list(dict.fromkeys(lenient))[:MAX_TERMS]
        if lenient:
            yield " AND ", lenient
            yield " OR ", lenient

    def _pieces(self, query: str) -> list[str]:
        """Phrases with synonyms, runs of Chinese and words, in their order, each once; common words only if alone."""
        text = _fold(unicodedata.normalize("NFKC", query[:MAX_QUERY])[:MAX_QUERY])
        pieces: list[str] = []
        position = 0
        for found in self._phrase.finditer(text):
            pieces += (piece[0] for piece in _PIECE.finditer(text, position, found.start()))
            pieces.append(found[0])
            position = found.end()
        pieces += (piece[0] for piece in _PIECE.finditer(text, position))
        telling = [piece for piece in pieces if not _COMMON_WORD.fullmatch(piece)]
        return list(dict.fromkeys(telling or pieces))

    def _term(self, piece: str, *, unfinished: bool) -> Term:
        if piece in self._synonyms:
            return self._synonyms[piece]
        return _han_term(piece) if _HAN_RUN.fullmatch(piece) else self._word_term(piece, unfinished=unfinished)

    def _broken(self, run: str) -> list[str]:
        """The longest pieces of a run that the index knows, from left to right; single characters only if alone."""
        pieces: list[str] = []
        start = 0
        while start < len(run):
            end = next((e for e in range(len(run), start, -1) if self._is_known(_han_term(run[start:e]).match)), 0)
            if end:
                pieces.append(run[start:end])
            start = max(end, start + 1)
        return [piece for piece in pieces if len(piece) > 1] or pieces

    def _word_term(self, word: str, *, unfinished: bool) -> Term:
        """A word by its stem. The last one may be unfinished, unless it is so short that it would match everything."""
        stem = _stem(word)
        if not unfinished or len(word) <= 2:
            return Term(f'"{stem}"', stems=frozenset({stem}))
        if stem in self._known_stems:
            return Term(f'("{stem}" OR "{word}"*)', stems=frozenset({stem}), prefix=word)
        # The index holds stems, which an unfinished word need not begin: `normaliz`, but `normal`.
        begun = takewhile(lambda known: known.startswith(word), self._words[bisect_left(self._words, word) :])
        stems = list(dict.fromkeys([stem, *(self._stems[known] for known in begun)]))[:MAX_TERMS]
        return Term("(" + " OR ".join(f'"{one}"' for one in stems) + ")", stems=frozenset(stems), prefix=word)

    def _match(self, expression: str) -> dict[int, float]:
        with self._lock, closing(self._connection.execute(_FIND, (expression,))) as cursor:
            return dict(cursor.fetchall())

    def _by_coverage(self, scores: dict[int, float], terms: Sequence[Term]) -> dict[int, float]:
        """Scores by how much of the query a section holds, rare terms above all: one common word in a short title says
        little."""
        held = dict.fromkeys(scores, 0.0)
        for term in terms:
            found = self._holding(term.match)
            for number in found:
                held[number] += log(len(self._sections) / len(found))
        return {number: score * held[number] ** 2 for number, score in scores.items()}

    def _holding(self, expression: str) -> list[int]:
        with self._lock, closing(self._connection.execute(_HOLDING, (expression,))) as cursor:
            return [number for (number,) in cursor]

    def _holding_literally(self, query: str) -> list[int]:
        """The sections in which a query of some words stands as it was typed, common words included."""
        text = _fold(unicodedata.normalize("NFKC", query[:MAX_QUERY])[:MAX_QUERY])
        words = len(_PIECE.findall(text))
        return self._holding(self._phrase_term(text).match) if SENTENCE <= words <= MAX_TERMS else []

    def _place(self, number: int, score: float, lang: Lang) -> tuple[bool, bool, float, int]:
        """Reports last: they are nothing but a title, so that a hit in one says less."""
        section = self._sections[number]
        return section.kind == "report", section.lang != lang, -score, number

    def _hit(self, number: int, terms: Sequence[Term]) -> Hit:
        section = self._sections[number]
        shown = excerpt(self._texts[number], spans(self._folded[number], terms, self._stems))
        return Hit(
            section.lang, section.slug, section.anchor, section.chapter_title, section.heading, shown, section.kind
        )


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


def _han_term(run: str) -> Term:
    if len(run) == 1:
        return Term(f'"{run}"*', (run,))
    return Term('"' + " ".join(run[i : i + 2] for i in range(len(run) - 1)) + '"', (run,))


def _whole(phrase: str) -> str:
    """A pattern of a phrase that stands by itself: Latin letters at its ends do not go on."""
    before = r"(?<![a-z0-9_])" if phrase[:1].isascii() else ""
    after = r"(?![a-z0-9_])" if phrase[-1:].isascii() else ""
    return before + re.escape(phrase) + after
