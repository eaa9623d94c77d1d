"""Between two starts: what was made before is used again where it is whole and still true, and made again elsewhere."""

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

from samestep.app.book.search import SearchIndex, Section
from samestep.app.evidence.bags import Library
from samestep.app.paths import Kept
from samestep.app.rendering.environment import environment
from samestep.app.web import ahead
from samestep.app.web.finished import EvidenceState, Finished, page_headers
from samestep.app.web.ready import Ready, coding_for
from tests.kit import the_book

HTML = "text/html; charset=utf-8"


def files(folder: Path) -> list[Path]:
    return [place for place in folder.rglob("*") if place.is_file()]


def sent(page: Ready, coding: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """Headers and body of the answer to who accepts that coding."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "headers": [(b"accept-encoding", coding)]}
    asyncio.run(page(scope, receive, send))
    return dict(messages[0]["headers"]), messages[1]["body"]


def test_an_entry_is_read_as_it_was_written_and_by_its_state_alone(tmp_path: Path) -> None:
    Kept(tmp_path, "made of this").write("name", b"entry")
    assert Kept(tmp_path, "made of this").read("name") == b"entry"
    assert Kept(tmp_path, "made of this").read("other") is None
    assert Kept(tmp_path, "made of that").read("name") is None


@pytest.mark.parametrize("spoiled", [b"", b"half", b"\xff" * 400])
def test_a_damaged_entry_is_none(tmp_path: Path, spoiled: bytes) -> None:
    kept = Kept(tmp_path)
    kept.write("name", b"entry")
    (place,) = files(tmp_path)
    place.write_bytes(spoiled)
    assert kept.read("name") is None


def test_a_folder_that_takes_nothing_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    kept = Kept(tmp_path / "file", "state")
    kept.write("name", b"entry")
    assert kept.read("name") is None


def test_the_last_four_states_stay(tmp_path: Path) -> None:
    for state in "abcdef":
        Kept(tmp_path, state).write("name", state.encode())
    left = {state for state in "abcdef" if Kept(tmp_path, state).read("name")}
    assert len(left) == 4
    assert "f" in left


def test_a_kept_page_is_sent_as_it_was_made(tmp_path: Path) -> None:
    made = Ready(b"<p>page</p>" * 500, HTML, page_headers())
    again = Ready.kept(made.entry(), page_headers())
    for coding in (b"br", b"gzip", b""):
        assert sent(again, coding) == sent(made, coding)
    assert sent(again, b"")[1] == b"<p>page</p>" * 500


def test_a_kept_search_index_finds_what_it_found(tmp_path: Path) -> None:
    sections = [Section("en", "a", "Clipping", "Norm", "x", "the global norm of a gradient"),
                Section("zh", "b", "裁剪", "范数", "y", "梯度的全局范数")]  # fmt: skip
    index = SearchIndex(sections, [("norm", "范数")])
    again = pickle.loads(pickle.dumps(index))
    for query in ("norm", "范数", "gradien", "nothing"):
        assert again.search(query, "en") == index.search(query, "en")
        assert again.unknown(query) == index.unknown(query)


def test_a_kept_template_is_used_again_until_its_source_changes(tmp_path: Path) -> None:
    templates, cache = tmp_path / "templates", tmp_path / "cache"
    templates.mkdir()

    def rendered(text: str) -> str:
        (templates / "page.html").write_text(text)
        return environment(templates, str, kept=Kept(cache)).get_template("page.html").render(lang="en")

    assert [rendered("one"), rendered("one"), rendered("two")] == ["one", "one", "two"]
    (kept,) = files(cache)
    kept.write_bytes(kept.read_bytes()[:-1] + b"\xff")
    assert rendered("two") == "two"


@pytest.fixture
def library(tmp_path: Path) -> Library:
    (tmp_path / "evidence" / "bag").mkdir(parents=True)
    return Library(tmp_path / "evidence")


def finished(library: Library, tmp_path: Path) -> Finished:
    state = EvidenceState.of(library)
    return Finished({}, library, state, Kept(tmp_path / "pages", str(state.bags)))


def test_a_page_is_found_at_the_next_start_once_the_evidence_was_seen_again(library: Library, tmp_path: Path) -> None:
    page = Ready(b"page", HTML, page_headers())
    first = finished(library, tmp_path)
    first.add("/en/a", page)
    assert finished(library, tmp_path).found("/en/a") is None
    first.settle()
    found = finished(library, tmp_path).found("/en/a")
    assert found is not None
    assert found.entry() == page.entry()


def test_a_page_that_was_made_while_a_bag_changed_is_not_kept(library: Library, tmp_path: Path) -> None:
    pages = finished(library, tmp_path)
    (library.folder / "bag" / "extra").write_text("x")
    library.bags()
    pages.add("/en/a", Ready(b"page", HTML, page_headers()))
    pages.settle()
    assert pages.ready == {}
    assert finished(library, tmp_path).found("/en/a") is None


def test_a_page_of_another_state_of_the_evidence_is_not_found(library: Library, tmp_path: Path) -> None:
    pages = finished(library, tmp_path)
    pages.add("/en/a", Ready(b"page", HTML, page_headers()))
    pages.settle()
    (library.folder / "bag" / "extra").write_text("x")
    assert finished(library, tmp_path).found("/en/a") is None


def test_a_server_makes_every_page_by_itself_the_shelf_and_the_chapters_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    forms: set[str | None] = set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        forms.add(coding_for(scope))

    monkeypatch.setattr(ahead, "_PAUSE", 0)
    asyncio.run(ahead.make_ahead(app, the_book()))
    assert forms == {"br"}  # as it is held: another form would be kept beside it
    assert asked[:2] == ["/zh/", "/en/"]
    chapters = [chapter.path for lang in ("zh", "en") for chapter in the_book().chapters[lang]]
    assert set(asked[2 : 2 + len(chapters)]) == set(chapters)
    assert {"/en/start", "/zh/conformance", "/en/calculators/replica_ledger", "/openapi.json"} <= set(asked)
