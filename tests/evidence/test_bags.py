"""Published bags as the wiki reads them: whole or damaged, hashed once, zipped the same everywhere."""

import base64
import hashlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from samestep.app.evidence import bags
from samestep.app.evidence.bags import DamagedError, File, Library, UnknownEvidenceError, met, repr_digest


def make_bag(folder: Path, name: str = "sample", **payload: str) -> Path:
    """A small bag with `result.json` and whatever else is given, by hand rather than by the publisher."""
    bag = folder / name
    (bag / "data").mkdir(parents=True)
    files = {"result.json": json.dumps({"name": name, "rows": []}), "numbers.csv": "a,b\n1,2\n"} | payload
    for path, text in files.items():
        (bag / "data" / path).write_text(text)
    (bag / "bagit.txt").write_text("BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n")
    (bag / "bag-info.txt").write_text("Bagging-Date: 2026-11-29\n")
    write(bag / "manifest-sha256.txt", [f"data/{path}" for path in files])
    write(bag / "tagmanifest-sha256.txt", ["bagit.txt", "bag-info.txt", "manifest-sha256.txt"])
    return bag


def write(manifest: Path, paths: list[str]) -> None:
    digests = {path: hashlib.sha256((manifest.parent / path).read_bytes()).hexdigest() for path in paths}
    manifest.write_text("".join(f"{digest}  {path}\n" for path, digest in digests.items()))


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    return make_bag(tmp_path)


@pytest.fixture
def library(bag: Path) -> Library:
    return Library(bag.parent)


def states(library: Library) -> dict[str, str]:
    return {file.path: file.state for file in library.bag("sample").files if file.state != "whole"}


def test_a_whole_bag_is_read(library: Library) -> None:
    bag = library.bag("sample")
    assert bag.whole
    assert bag.result["name"] == "sample"
    assert bag.published == "2026-11-29"
    assert [file.path for file in bag.files][:4] == [
        "bagit.txt", "bag-info.txt", "manifest-sha256.txt", "tagmanifest-sha256.txt",
    ]  # fmt: skip
    assert bag.file("data/numbers.csv").media_type == "text/csv; charset=utf-8"


def test_only_folders_with_proper_names_are_evidence(bag: Path, library: Library) -> None:
    (bag.parent / ".sample.123").mkdir()
    (bag.parent / "a file").write_text("")
    assert library.names() == ["sample"]
    assert Library(bag.parent / "nowhere").names() == []
    for name in ("nowhere", "..", "../sample", ".sample.123", ""):
        with pytest.raises(UnknownEvidenceError):
            library.bag(name)


def test_a_flipped_bit_is_damage_and_the_file_is_not_read(
    bag: Path, library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    place = bag / "data" / "result.json"
    content = bytearray(place.read_bytes())
    content[3] ^= 1
    place.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert states(library) == {"data/result.json": "changed"}
    assert "sample/data/result.json" in caplog.text
    damaged = library.bag("sample")
    with pytest.raises(DamagedError, match="promised SHA-256") as caught:
        damaged.read("data/result.json")
    assert caught.value.file.promised != caught.value.file.found
    with pytest.raises(DamagedError):
        _ = damaged.result
    assert damaged.read("data/numbers.csv") == b"a,b\n1,2\n"  # the rest still serves


def test_missing_and_extra_files_are_damage(bag: Path, library: Library) -> None:
    (bag / "data" / "numbers.csv").unlink()
    (bag / "data" / "more.csv").write_text("x")
    (bag / "note.txt").write_text("x")
    assert states(library) == {"data/numbers.csv": "missing", "data/more.csv": "extra", "note.txt": "extra"}


def test_without_a_manifest_nothing_is_promised(bag: Path, library: Library) -> None:
    (bag / "manifest-sha256.txt").unlink()
    assert states(library)["manifest-sha256.txt"] == "missing"
    assert states(library)["data/result.json"] == "extra"


def test_a_manifest_cannot_lead_out_of_the_bag(bag: Path, library: Library) -> None:
    secret = bag.parent / "secret.txt"
    secret.write_text("secret")
    digest = hashlib.sha256(b"secret").hexdigest()
    with (bag / "manifest-sha256.txt").open("a") as manifest:
        manifest.write(f"{digest}  data/../../secret.txt\n{digest}  {secret}\n")
    (bag / "data" / "link.csv").symlink_to(secret)
    assert all("secret" not in file.path for file in library.bag("sample").files)
    assert states(library)["data/link.csv"] == "extra"
    for path in ("../secret.txt", "data/../../secret.txt", str(secret), "data"):
        with pytest.raises(UnknownEvidenceError):
            library.bag("sample").file(path)


def test_a_link_to_the_promised_bytes_is_not_the_promised_file(bag: Path, library: Library) -> None:
    place = bag / "data" / "numbers.csv"
    place.rename(bag.parent / "moved.csv")
    place.symlink_to(bag.parent / "moved.csv")
    assert states(library) == {"data/numbers.csv": "changed"}


def test_files_are_hashed_again_only_when_size_or_time_changed(
    bag: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = library.bag("sample")
    hashed: list[object] = []
    real = hashlib.file_digest
    monkeypatch.setattr(bags.hashlib, "file_digest", lambda *given: hashed.append(given) or real(*given))
    assert library.bag("sample") is first
    assert hashed == []
    place = bag / "data" / "numbers.csv"
    place.write_text("a,b\n1,3\n")  # the same size
    os.utime(place, ns=(0, 123))
    assert not library.bag("sample").whole
    assert len(hashed) == 1
    place.write_text("a,b\n1,2\n")
    assert library.bag("sample").whole  # and repaired again


def test_a_replaced_bag_is_seen(bag: Path, library: Library) -> None:
    before = library.bag("sample")
    bag.rename(bag.parent / ".old")
    make_bag(bag.parent, **{"new.csv": "1\n"})
    after = library.bag("sample")
    assert after.whole
    assert after.etag != before.etag
    assert after.file("data/new.csv").size == 2


def test_a_folder_in_place_of_a_promised_file_is_damage(bag: Path, library: Library) -> None:
    (bag / "data" / "numbers.csv").unlink()
    (bag / "data" / "numbers.csv").mkdir()
    assert states(library) == {"data/numbers.csv": "changed"}


@pytest.mark.parametrize("added", ["\n", " ", "not a line of a manifest\n", "x"])
def test_any_byte_beside_the_lines_of_the_tag_manifest_is_damage(bag: Path, library: Library, added: str) -> None:
    place = bag / "tagmanifest-sha256.txt"
    place.write_text(place.read_text() + added)
    assert states(library) == {"tagmanifest-sha256.txt": "changed"}


@pytest.mark.parametrize("name", [b"data/\xff\xfe.csv", b"data/two\nlines.csv", "data/\u202eback.csv".encode()])
def test_a_file_of_any_name_is_damage_that_can_be_shown_and_logged(
    bag: Path, library: Library, caplog: pytest.LogCaptureFixture, name: bytes
) -> None:
    Path(os.fsdecode(bytes(bag) + b"/" + name)).write_text("")
    found = library.bag("sample")
    (extra,) = found.damaged
    assert extra.state == "extra"
    assert extra.path.isprintable()
    assert extra.path.encode() != name
    assert found.etag  # a digest of all names
    assert all(len(record.getMessage().splitlines()) == 1 for record in caplog.records)


def test_what_was_seen_of_a_bag_counts_how_often_it_changed(bag: Path, library: Library) -> None:
    """Damaged and put right between two looks of the server: a page made in between is old all the same."""
    place = bag / "data" / "numbers.csv"
    whole, before = library.bag("sample").etag, library.changes
    content = place.read_bytes()
    place.write_bytes(b"other")
    assert not library.bag("sample").whole
    place.write_bytes(content)
    assert library.bag("sample").etag == whole
    assert library.changes == before + 2


def test_repr_digest_is_rfc_9530() -> None:
    content = b'{"hello": "world"}\n'
    digest = hashlib.sha256(content)
    value = repr_digest(digest.hexdigest())
    assert value == f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
    assert value == "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"  # an example of the RFC


def test_a_complaint_tells_both_digests_in_both_languages() -> None:
    changed = File("data/a", 1, "1" * 64, "2" * 64).complaint
    assert all("1" * 64 in text and "2" * 64 in text for text in (changed["zh"], changed["en"]))
    assert "missing" in File("data/a", 0, "1" * 64, None).complaint["en"]
    assert "not in the manifest" in File("data/a", 0, None, "2" * 64).complaint["en"]


def test_a_row_is_met_when_every_quantity_did_what_was_expected() -> None:
    assert met({"gradient": "agrees"}, {"gradient": 2e-10})
    assert not met({"gradient": "agrees"}, {"gradient": 3e-10})
    assert met({"gradient": "differs", "loss": "agrees"}, {"gradient": 1.1e-6, "loss": 0.0})
    assert not met({"gradient": "differs"}, {"gradient": 1e-6})
    assert met({"loss": "undefined"}, {"loss": None})
    assert not met({"loss": "undefined"}, {"loss": 0.0})
    assert not met({"loss": "agrees"}, {"loss": None})
    assert not met({}, {})  # comparing nothing is no success


def test_the_reader_needs_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import samestep.app.evidence.bags\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "sys.exit(' '.join(sorted(new - set(sys.stdlib_module_names) - {'samestep'})) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


PUBLISHED = Library(Path(__file__).parents[2] / "content" / "evidence")


def test_everything_published_is_whole_and_holds() -> None:
    for bag in PUBLISHED.bags():
        assert bag.damaged == ()
        assert bag.result["verdict"] == "holds"
        assert len({row["id"] for row in bag.result["rows"]}) == len(bag.result["rows"])


def test_published_evidence_stays_small() -> None:
    assert sum(file.size for name in PUBLISHED.names() for file in PUBLISHED.bag(name).files) <= 20_000_000
