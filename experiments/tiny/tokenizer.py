"""A byte-level BPE of exactly 387 tokens: 3 specials, 256 bytes, 128 merges. No torch, no other package.

Ids: 0 to 2 are `<pad>`, `<bos>`, `<eos>`; 3 + b is the byte b; 259 + k is the k-th merge. Any text is some sequence of
bytes, so nothing is unknown and decoding gives back exactly what was encoded.

Training (Sennrich, Haddow, Birch 2016, arXiv 1508.07909, on bytes): cut the text into pieces (words, numbers, runs of
other characters, white space; merges never cross them), then 128 times merge the most frequent pair of neighbours. Of
pairs with the same count the one with the smaller ids is taken, so that the result depends on the text alone.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise

SPECIALS = ("<pad>", "<bos>", "<eos>")
PAD, BOS, EOS = range(3)
FIRST_BYTE = len(SPECIALS)
FIRST_MERGE = FIRST_BYTE + 256
MERGES = 128
VOCABULARY = FIRST_MERGE + MERGES

Pair = tuple[int, int]

_PIECE = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+")


class Tokenizer:
    """Text to ids and back. `merges[k]` is the pair that became the token `FIRST_MERGE + k`."""

    def __init__(self, merges: Sequence[Pair]) -> None:
        self.merges = tuple(merges)
        self._rank = {pair: rank for rank, pair in enumerate(self.merges)}
        self._encode_piece = lru_cache(maxsize=65536)(self._merged)

    def __len__(self) -> int:
        return FIRST_MERGE + len(self.merges)

    def encode(self, text: str) -> list[int]:
        """Ids of the text, without specials."""
        return [token for piece in _PIECE.findall(text) for token in self._encode_piece(piece)]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of the ids; specials are left out, and bytes that are no whole character become U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", errors="replace")

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        return b"".join(self.bytes_of[token] for token in tokens)

    @cached_property
    def bytes_of(self) -> list[bytes]:
        """The bytes that each id stands for; none for specials."""
        known = [b"" for _ in SPECIALS] + [bytes([value]) for value in range(256)]
        for left, right in self.merges:
            known.append(known[left] + known[right])
        return known

    def _merged(self, piece: str) -> tuple[int, ...]:
        tokens = [FIRST_BYTE + value for value in piece.encode()]
        while len(tokens) > 1:
            best = min(pairwise(tokens), key=lambda pair: self._rank.get(pair, MERGES))
            if best not in self._rank:
                break
            tokens = _replace(tokens, best, FIRST_MERGE + self._rank[best])
        return tuple(tokens)

    def to_json(self) -> str:
        return json.dumps({"kind": "byte-level BPE", "specials": SPECIALS, "merges": self.merges}) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """Raises ValueError for a file that is not of this kind."""
        content = json.loads(text)
        if content.get("kind") != "byte-level BPE" or tuple(content.get("specials", ())) != SPECIALS:
            raise ValueError("this is no tokenizer of this project")
        return cls([(left, right) for left, right in content["merges"]])


def train(texts: Iterable[str]) -> Tokenizer:
    """Learn the merges; raises ValueError when the texts are too short for all of them."""
    counts = Counter(piece for text in texts for piece in _PIECE.findall(text))
    words = [[FIRST_BYTE + value for value in piece.encode()] for piece in counts]
    times = list(counts.values())
    pairs: Counter[Pair] = Counter()
    places: defaultdict[Pair, set[int]] = defaultdict(set)
    for index, word in enumerate(words):
        _count(word, times[index], index, pairs, places)
    merges: list[Pair] = []
    while len(merges) < MERGES:
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < 2:
            raise ValueError(f"the text has only {len(merges)} pairs to merge, {MERGES} are needed")
        for index in sorted(places[best]):
            _count(words[index], -times[index], index, pairs, places)
            words[index] = _replace(words[index], best, FIRST_MERGE + len(merges))
            _count(words[index], times[index], index, pairs, places)
        merges.append(best)
        pairs.pop(best, None)
    return Tokenizer(merges)


def _count(word: list[int], times: int, index: int, pairs: Counter[Pair], places: defaultdict[Pair, set[int]]) -> None:
    for pair in pairwise(word):
        pairs[pair] += times
        places[pair].add(index)


def _replace(tokens: list[int], pair: Pair, token: int) -> list[int]:
    """The tokens with every occurrence of the pair, from the left, replaced by one token."""
    merged: list[int] = []
    position = 0
    while position < len(tokens):
        if tuple(tokens[position : position + 2]) == pair:
            merged.append(token)
            position += 2
        else:
            merged.append(tokens[position])
            position += 1
    return merged
