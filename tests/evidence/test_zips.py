"""Whole bags as zip files: the same everywhere, checked before they are served again, made without a disk."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from samestep.app.evidence.bags import DamagedError, Library
from samestep.app.evidence.zips import Zips
from tests.evidence.test_bags import make_bag


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(make_bag(tmp_path / "bags").parent)


def test_the_zip_is_the_same_bytes_every_time(library: Library, tmp_path: Path) -> None:
    zips = Zips(tmp_path / "cache")
    one = zips.of(library.bag("sample"))
    assert one.place is not None
    assert hashlib.sha256(one.place.read_bytes()).hexdigest() == one.digest
    assert zips.of(library.bag("sample")) == one
    for place in library.folder.rglob("*"):
        os.utime(place, (1, 1))
    other = Zips(tmp_path / "elsewhere").of(Library(library.folder).bag("sample"))
    assert other.place is not None
    assert (other.place.read_bytes(), other.digest) == (one.place.read_bytes(), one.digest)
    with zipfile.ZipFile(one.place) as archive:
        assert archive.testzip() is None
        assert archive.read("sample/data/numbers.csv") == b"a,b\n1,2\n"
        assert {name.partition("/")[0] for name in archive.namelist()} == {"sample"}
    assert list((tmp_path / "cache").iterdir()) == [one.place]  # nothing half-made is left


def test_a_damaged_bag_has_no_zip(library: Library, tmp_path: Path) -> None:
    (library.folder / "sample" / "data" / "numbers.csv").unlink()
    with pytest.raises(DamagedError, match=r"data/numbers.csv: missing"):
        Zips(tmp_path / "cache").of(library.bag("sample"))


@pytest.mark.parametrize("again", [False, True], ids=["same server", "next start"])
def test_a_changed_byte_in_a_kept_zip_is_never_served(library: Library, tmp_path: Path, again: bool) -> None:
    zips = Zips(tmp_path / "cache")
    made = zips.of(library.bag("sample"))
    assert made.place is not None
    content = bytearray(made.place.read_bytes())
    content[len(content) // 2] ^= 1
    made.place.write_bytes(content)
    served = (Zips(tmp_path / "cache") if again else zips).of(library.bag("sample"))
    assert served.place is not None
    assert served.digest == made.digest == hashlib.sha256(served.place.read_bytes()).hexdigest()


def test_without_a_usable_folder_the_zip_is_made_in_memory(library: Library, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    made = Zips(tmp_path / "cache").of(library.bag("sample"))
    assert made.place is None
    assert hashlib.sha256(made.content).hexdigest() == made.digest


def test_a_full_disk_leaves_no_half_written_zip(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    made = Zips(tmp_path / "cache").of(library.bag("sample"))
    assert made.place is None
    assert made.content
    assert list((tmp_path / "cache").iterdir()) == []
