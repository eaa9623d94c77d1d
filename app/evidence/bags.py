"""Published evidence: what a bag holds, whether it is still whole, and its files as they may be served.

The writer (`experiments.commands.publish`) imports the schema from here, so that it exists once.

A bag is a folder `content/evidence/NAME/` in BagIt 1.0 layout (RFC 8493):

    bagit.txt  bag-info.txt  manifest-sha256.txt  tagmanifest-sha256.txt  data/{result.json, provenance.json, …}

`manifest-sha256.txt` promises the digest of every file in `data/`, `tagmanifest-sha256.txt` those of the other three;
both are also what `sha256sum -c` reads. A file is `whole` when it has the promised digest, else `changed`, `missing`
or `extra` (nobody promised it). Digests prove integrity, not authorship: nothing here is signed.

`data/result.json` is a `Result`. Its `rows` hold one comparison each: one path (a way to compute the update) in one
case (a fixture), right and wrong ones side by side. A number is found by a dotted path: `rows.ID.values.loss`, where
ID is a row's id or its position. Undefined numbers are null; non-finite ones the strings "inf", "-inf" and "nan".
"""

import base64
import hashlib
import json
import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast

from samestep.app.contract.languages import Text as Text

SCHEMA = "samestep.result.1"
AGREES = 2e-10
"""Right paths differ from their reference by at most this much, over all elements (they reach about 1e-15)."""
DIFFERS = 1e-6
"""Wrong paths differ by more than this, so that no rounding can pass for a wrong rule or hide one."""
MANIFEST = "manifest-sha256.txt"
TAG_MANIFEST = "tagmanifest-sha256.txt"
TAG_FILES = ("bagit.txt", "bag-info.txt", MANIFEST, TAG_MANIFEST)
RESULT = "data/result.json"
PROVENANCE = "data/provenance.json"

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Expectation = Literal["agrees", "differs", "undefined"]
State = Literal["whole", "changed", "missing", "extra"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9_./-]+)")
_MEDIA_TYPES = {
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/markdown; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".safetensors": "application/octet-stream",
}

log = logging.getLogger("samestep.evidence")


class Tolerance(TypedDict):
    """Largest absolute differences: `agrees` at most, `differs` more than, `rerun` at most between two runs."""

    agrees: float
    differs: float
    rerun: float


class Row(TypedDict):
    """One path in one case, compared with its reference.

    `max_abs_difference[quantity]` is the largest absolute difference over all elements, null when undefined (the path
    gave NaN). `expected[quantity]` says what each of them had to do, `expectation` sums the row up (a path that
    must go wrong `differs` although, say, its loss agrees), and `met` is whether all of it came true. `agrees` takes
    the place of AGREES where a path computes in another precision than float64.
    """

    id: str
    case: str
    path: str
    optimizer: NotRequired[str]
    title: Text
    note: NotRequired[Text]
    expectation: Expectation
    expected: dict[str, Expectation]
    max_abs_difference: dict[str, float | None]
    values: dict[str, Json]
    agrees: NotRequired[float]
    met: bool


class ConformanceRow(Row):
    """What one setting of a framework did in one scenario (`experiments.conformance`); `case` is the scenario.

    `kind` says what was measured: `coefficients` of tokens, `state` before and after, `clipping`, a `contrastive` or a
    `sharded` gradient, or `counters`; `values` has the numbers, of several sequences a micro-batch each one's too.
    `coefficients[r][k]` is that of a token in micro-batch k of rank r, null without tokens; null as a whole for other
    kinds. `candidates` lists every rule that gives these numbers in this scenario, `verdict` what is left in the light
    of the setting's other scenarios. `packages` are the versions it ran with.
    """

    framework: str
    setting: str
    version: str
    scenario: str
    kind: Literal["coefficients", "state", "clipping", "contrastive", "sharded", "counters"]
    coefficients: list[list[float | None]] | None
    residual: float | None
    verdict: str
    candidates: list[str]
    packages: dict[str, str]
    labels: list[str]


class NotMeasured(TypedDict):
    """What could not be looked at on the machine of the run, and why; `setting` is "" for a whole framework."""

    framework: str
    version: str
    setting: str
    reason: str


class Control(TypedDict):
    """A guard against a check that could pass for the wrong reason (nothing moved, nothing was reduced)."""

    id: str
    title: Text
    values: dict[str, Json]
    met: bool


class TensorSet(TypedDict):
    """Digests of the tensors in one file: of their raw bytes, and of their values rounded to a multiple of 2^-20."""

    raw_sha256: str
    canonical_sha256: str
    tensors: int
    elements: int


class Result(TypedDict):
    """`data/result.json`. `cases` and `paths` name what the rows' `case` and `path` stand for."""

    schema: str
    name: str
    question: Text
    scope: Text
    command: str
    processes: int
    setup: dict[str, Json]
    tolerance: Tolerance
    cases: dict[str, Text]
    paths: dict[str, Text]
    rows: list[Row]
    controls: list[Control]
    tensors: dict[str, TensorSet]
    curve: NotRequired[dict[str, list[list[float]]]]
    not_measured: NotRequired[list[NotMeasured]]
    environment: dict[str, Json]
    verdict: Literal["holds", "fails"]


def met(expected: Mapping[str, Expectation], differences: Mapping[str, float | None], agrees: float = AGREES) -> bool:
    """Whether every quantity did what was expected of it; a row that compares nothing meets nothing."""
    return bool(expected) and all(_meets(expected[quantity], differences[quantity], agrees) for quantity in expected)


def _meets(expected: Expectation, largest: float | None, agrees: float) -> bool:
    if expected == "undefined" or largest is None:
        return expected == "undefined" and largest is None
    return largest <= agrees if expected == "agrees" else largest > max(DIFFERS, agrees)


class UnknownEvidenceError(LookupError):
    """No bag of that name, or no file of that name in it."""


class DamagedError(ValueError):
    """Bytes that are not what the manifest promises; `file` says which."""

    def __init__(self, name: str, file: "File") -> None:
        super().__init__(f"{name}/{file.path}: {file.complaint['en']}")
        self.name = name
        self.file = file


@dataclass(frozen=True)
class File:
    """A file of a bag. `path` is relative to the bag, `promised` and `found` are SHA-256 in hexadecimal digits."""

    path: str
    size: int
    promised: str | None
    found: str | None

    @property
    def state(self) -> State:
        if self.found is None:
            return "missing"
        if self.promised is None:
            return "extra"
        return "whole" if self.found == self.promised else "changed"

    @property
    def media_type(self) -> str:
        return _MEDIA_TYPES.get(os.path.splitext(self.path)[1], "application/octet-stream")

    @property
    def complaint(self) -> Text:
        """Why the file is not served: what was promised and what was found."""
        if self.state == "missing":
            return {
                "zh": f"文件缺失（应有 SHA-256 {self.promised}）",
                "en": f"missing (promised SHA-256 {self.promised})",
            }
        if self.state == "extra":
            return {
                "zh": f"清单之外的文件（SHA-256 {self.found}）",
                "en": f"not in the manifest (SHA-256 {self.found})",
            }
        return {
            "zh": f"内容已改变：应有 SHA-256 {self.promised}，实为 {self.found}",
            "en": f"changed: promised SHA-256 {self.promised}, found {self.found}",
        }


@dataclass(frozen=True)
class Bag:
    """A published experiment as it is on disk now."""

    name: str
    folder: Path
    files: tuple[File, ...]
    info: Mapping[str, str]

    @property
    def damaged(self) -> tuple[File, ...]:
        return tuple(file for file in self.files if file.state != "whole")

    @property
    def whole(self) -> bool:
        return not self.damaged

    @property
    def published(self) -> str:
        """The day of publication, `2026-11-29`, or "" when `bag-info.txt` does not tell."""
        return self.info.get("Bagging-Date", "")

    def file(self, path: str) -> File:
        """The file at `path` (`data/result.json`). Raises UnknownEvidenceError; never leaves the bag."""
        for file in self.files:
            if file.path == path:
                return file
        raise UnknownEvidenceError(f"{self.name} has no file {path}")

    def read(self, path: str) -> bytes:
        """The bytes of a whole file; raises DamagedError for any other."""
        file = self.file(path)
        if file.state != "whole":
            raise DamagedError(self.name, file)
        content = (self.folder / path).read_bytes()
        found = hashlib.sha256(content).hexdigest()
        if found != file.found:
            raise DamagedError(self.name, File(path, len(content), file.promised, found))
        return content

    @cached_property
    def result(self) -> Result:
        """The parsed `data/result.json`; raises UnknownEvidenceError or DamagedError when it cannot be trusted."""
        return cast(Result, json.loads(self.read(RESULT)))

    @property
    def etag(self) -> str:
        """One digest for the whole bag: it changes with any of its files."""
        lines = "".join(f"{file.found}  {file.path}\n" for file in self.files)
        return hashlib.sha256(lines.encode()).hexdigest()


class Library:
    """The bags of one folder. Files are hashed once and again only when their size, time or inode changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes = 0
        """How often a bag was found to be another one than before: what was made of an earlier state is old."""
        self._digests: dict[Path, tuple[tuple[int, int, int], str]] = {}
        self._bags: dict[str, Bag] = {}

    def names(self) -> list[str]:
        """Names of the published experiments, in alphabetical order."""
        if not self.folder.is_dir():
            return []
        return sorted(place.name for place in self.folder.iterdir() if _NAME.fullmatch(place.name) and place.is_dir())

    def bags(self) -> list[Bag]:
        return [self.bag(name) for name in self.names()]

    def bag(self, name: str) -> Bag:
        """The bag as it is on disk now; new damage is logged with the file's name. Raises UnknownEvidenceError."""
        folder = self.folder / name
        if not _NAME.fullmatch(name) or not folder.is_dir():
            raise UnknownEvidenceError(f"no evidence is published under the name {name}")
        files = tuple(self._files(folder))
        known = self._bags.get(name)
        if known is not None and known.files == files:
            return known
        bag = Bag(name, folder, files, _info(folder))
        if bag.damaged:  # or it was replaced while it was read: a second look tells
            bag = Bag(name, folder, tuple(self._files(folder)), _info(folder))
        self._bags[name] = bag
        self.changes += 1
        for file in bag.damaged:
            log.warning("evidence %s/%s: %s", name, file.path, file.complaint["en"])
        return bag

    def _files(self, folder: Path) -> Iterator[File]:
        tags = _promises(folder / TAG_MANIFEST)
        promised = tags | _promises(folder / MANIFEST) | {TAG_MANIFEST: _sealed(tags)}
        present = {place.relative_to(folder).as_posix(): place for place in sorted(folder.rglob("*"))}
        wanted = dict.fromkeys((*TAG_FILES, *promised))
        for path in (*wanted, *(path for path in present if path not in wanted)):
            place = folder / path
            if path not in wanted and place.is_dir() and not place.is_symlink():
                continue
            digest, size = self._digest(place)
            yield File(_printable(path), size, promised.get(path), digest)

    def _digest(self, place: Path) -> tuple[str | None, int]:
        try:
            status = place.lstat()
        except FileNotFoundError:
            return None, 0
        if not stat.S_ISREG(status.st_mode):  # a link may lead anywhere, a pipe never end: not what was promised
            return hashlib.sha256(b"not a regular file").hexdigest(), 0
        identity = (status.st_size, status.st_mtime_ns, status.st_ino)
        if place not in self._digests or self._digests[place][0] != identity:
            with place.open("rb") as stream:
                self._digests[place] = (identity, hashlib.file_digest(stream, "sha256").hexdigest())
        return self._digests[place][1], status.st_size


def _promises(manifest: Path) -> dict[str, str]:
    """Path to digest, from a manifest; lines that are none promise nothing, so that their files count as extra."""
    if not manifest.is_file():
        return {}
    lines = manifest.read_text("utf-8", errors="replace").splitlines()
    matches = [match for line in lines if (match := _LINE.fullmatch(line))]
    return {match[2]: match[1] for match in matches if ".." not in match[2].split("/") and not match[2].startswith("/")}


def _sealed(tags: Mapping[str, str]) -> str:
    """SHA-256 of the only text that the manifest of the tag files may have: its own promises, one line each."""
    lines = "".join(f"{tags.get(name)}  {name}\n" for name in TAG_FILES if name != TAG_MANIFEST)
    return hashlib.sha256(lines.encode()).hexdigest()


def _printable(path: str) -> str:
    """A path as it can be shown, logged and digested, whatever bytes a file is named with."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _info(folder: Path) -> dict[str, str]:
    place = folder / "bag-info.txt"
    if not place.is_file():
        return {}
    pairs = (line.partition(": ") for line in place.read_text("utf-8", errors="replace").splitlines())
    return {key: value for key, _, value in pairs}


def sha256_of(place: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with place.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def repr_digest(sha256: str) -> str:
    """The value of a `Repr-Digest` header (RFC 9530) for a digest in hexadecimal digits."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"
