"""Published experiments in the browser: their list, their pages, the fences of chapters, the files, and damage.

The bags are small and made here, with the publisher's own manifests; nothing is run and torch is not imported.
"""

import hashlib
import itertools
import json
import re
import shutil
import subprocess
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import html5lib
import pytest
from playwright.sync_api import sync_playwright
from starlette.testclient import TestClient

from samestep.app.book.chapters import load_book
from samestep.app.book.markdown.pieces import EvidenceRef
from samestep.app.contract.paths import value_at
from samestep.app.evidence.bags import AGREES, DIFFERS, SCHEMA, Library, met, repr_digest
from samestep.app.evidence.exhibits import SUMMARY, Exhibit, measured
from samestep.app.main import create_app
from samestep.app.rendering import scales
from samestep.app.web.pages.chapters import evidence_of
from samestep.app.web.site import Settings, Site
from samestep.experiments.commands.publish import write_tags
from tests.browser.axe import violations
from tests.chromium import launched
from tests.kit import by_id, text_of

ROOT = Path(__file__).parents[3]
LANGS = ("zh", "en")
RIGHT, WRONG = 1.8448246580536993, 0.9224123290268496
"""∂L/∂w_d of the page's two pairs: kept, and with the remote document cut off."""


def said(words: str) -> dict[str, str]:
    """The same in both languages, told apart by a letter that is Chinese in one of them."""
    return {"zh": f"{words}·中", "en": f"{words}·en"}


def row(case: str, path: str, expectation: str, far: dict[str, Any], **rest: Any) -> dict[str, Any]:
    expected = dict.fromkeys(far, expectation) | rest.pop("expected", {})
    made = {
        "id": f"{case}-{path}".replace("_", "-"),
        "case": case,
        "path": path,
        "title": said(path),
        "expectation": expectation,
        "expected": expected,
        "max_abs_difference": far,
        "values": rest.pop("values", {}),
        "met": met(expected, far),  # type: ignore[arg-type]
    }
    return made | rest


def result(name: str, rows: list[dict[str, Any]], **rest: Any) -> dict[str, Any]:
    holds = all(each["met"] for each in rows)
    return {
        "schema": SCHEMA,
        "name": name,
        "question": said(f"question of {name} & <more>"),
        "scope": said("CPU only"),
        "command": f"python -m experiments run {name} --processes 2",
        "processes": 2,
        "setup": {"learning_rate": 0.1, "fixtures": [{"q": [[1.0], [2.0]], "note": "a < b"}]},
        "tolerance": {"agrees": AGREES, "differs": DIFFERS, "rerun": 1e-10},
        "cases": {each["case"]: said(each["case"]) for each in rows},
        "paths": {each["path"]: said(each["path"]) for each in rows},
        "rows": rows,
        "controls": [{"id": "moves", "title": said("it moves"), "values": {"smallest": 1.5}, "met": True}],
        "tensors": {},
        "environment": {"torch": "2.13.0+cpu", "python": "3.11.7", "threads": 1, "deterministic_algorithms": True},
        "verdict": "holds" if holds else "fails",
    } | rest


def info_nce() -> dict[str, Any]:
    ranks = [{"loss": 0.1269280110429726, "wd_before": [-0.1192]}, {"loss": 4.0181499279178094, "wd_before": [1.964]}]
    rows = [
        row("page", "gather", "agrees", {"loss": 0.0, "wd": 2.220446049250313e-16},
            values={"wd_gradient": [RIGHT], "wd": [0.8155175341946301], "replicas_agree": True, "ranks": ranks}),
        row("page", "detached", "differs", {"loss": 0.0, "wd": WRONG}, expected={"loss": "agrees"},
            values={"wd_gradient": [WRONG], "wd": [0.9077587670973151], "replicas_agree": True, "ranks": ranks}),
        row("page", "empty_mean", "undefined", {"loss": None, "wd": None}, note=said("a mean over nothing"),
            values={"wd_gradient": None, "wd": "nan", "replicas_agree": False, "ranks": ranks}),
        row("other", "gather", "agrees", {"loss": 0.0}, optimizer="adamw", values={"weights_raw_sha256": "ab" * 32}),
    ]  # fmt: skip
    return result("info_nce", rows)


def gradient_scaling() -> dict[str, Any]:
    """More rows than a fence lists one by one."""
    cases = [f"m{count}" for count in range(1, 9)]
    rows = [row(case, "mean", "agrees" if case == "m1" else "differs", {"gradient": 0.0 if case == "m1" else float(i)})
            for i, case in enumerate(cases)]  # fmt: skip
    rows += [row(case, "scaled", "agrees", {"gradient": 10.0 ** -(16 + i)}) for i, case in enumerate(cases)]
    return result("gradient_scaling", rows)


def train_tiny() -> dict[str, Any]:
    curve = {"train": [[i, 6 - i / 20] for i in range(1, 60)], "validation": [[0, 5.9862], [30, 4.5], [60, 3.11]]}
    tensors = {"weights.safetensors": {"raw_sha256": "1" * 64, "canonical_sha256": "2" * 64} | TENSOR_SIZES}
    return result("train_tiny", [row("all", "again", "agrees", {"weights": 0.0})], curve=curve, tensors=tensors)


TENSOR_SIZES = {"tensors": 28, "elements": 298176}
RESULTS: dict[str, Callable[[], dict[str, Any]]] = {
    "info_nce": info_nce,
    "gradient_scaling": gradient_scaling,
    "train_tiny": train_tiny,
}
UNPUBLISHED = "clip_ownership"


def publish(folder: Path, name: str, found: dict[str, Any]) -> Path:
    bag = folder / name
    (bag / "data").mkdir(parents=True)
    (bag / "data" / "result.json").write_text(json.dumps(found, ensure_ascii=False), "utf-8")
    times = {"startedOn": "2026-11-29T10:00:00Z", "finishedOn": "2026-11-29T10:01:00Z"}
    definition = {"resolvedDependencies": [{"name": "commit", "digest": {"gitCommit": "c0ffee" * 6}}]}
    predicate = {"buildDefinition": definition, "runDetails": {"metadata": times}}
    (bag / "data" / "provenance.json").write_text(json.dumps({"predicate": predicate}), "utf-8")
    for tensors in found["tensors"]:
        (bag / "data" / tensors).write_bytes(bytes(range(256)) * 40)
    write_tags(bag, "for a test")
    return bag


def write_chapter(content: Path) -> None:
    """A book of one chapter with four fences, three of which show the same experiment."""
    head = {"title": "T", "summary": "S", "part": "A", "topic": "gradient-scaling"}
    head |= {"level": "intro", "kind": "experiment"}
    lines = "".join(f'{key} = "{value}"\n' for key, value in head.items())
    fences = [f'info_nce\nid = "{name}"\nrows = ["page-gather"]' for name in "ab"]
    body = "".join(f"```{{evidence}} {fence}\n```\n\n" for fence in [*fences, "info_nce", UNPUBLISHED])
    for lang in LANGS:
        (content / lang).mkdir(parents=True)
        (content / lang / "10-fences.md").write_text(f"+++\n{lines}+++\n\n{{#sec-one}}\n## One\n\n{body}", "utf-8")
    for name in ("planned.toml", "tags.toml"):
        shutil.copy(ROOT / "content" / name, content)


# ---- a wiki with these bags -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Site:
    content = tmp_path_factory.mktemp("book") / "content"
    write_chapter(content)
    return replace(Site.build(Settings()), book=load_book(content), made_of="")


class Wiki:
    """The application in this process; `folder` holds the bags of one test."""

    def __init__(self, client: TestClient, site: Site, folder: Path) -> None:
        self.client, self.site, self.folder = client, site, folder

    def get(self, path: str, **headers: str) -> Any:
        return self.client.get(path, headers=headers)

    def page(self, path: str) -> Element:
        answer = self.get(path)
        assert answer.status_code == 200, path
        return tree(answer.text)

    def data(self, name: str, file: str = "result.json") -> Path:
        return self.folder / name / "data" / file


@pytest.fixture
def wiki(built: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wiki]:
    folder = tmp_path / "evidence"
    for name, make in RESULTS.items():
        publish(folder, name, make())
    monkeypatch.setenv("SAMESTEP_CACHE_DIR", str(tmp_path / "cache"))
    ready = {path: answer for path, answer in built.ready.items() if path.startswith("/s/")}
    site = replace(built, evidence=Library(folder), ready=ready)
    monkeypatch.setattr(Site, "build", lambda settings: site)
    with TestClient(create_app(Settings()), follow_redirects=False) as client:
        yield Wiki(client, site, folder)


def tree(html: str) -> Element:
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    page: Element = parser.parse(html)
    assert [error for _, error, _ in parser.errors] == []
    for element in page.iter():
        if isinstance(element.tag, str):
            element.tag = element.tag.rpartition("}")[2]
    return page


def links(element: Element) -> list[str]:
    return [link.get("href", "") for link in element.iter("a")]


def flip(file: Path) -> tuple[str, str]:
    """Change one bit; the digests before and after."""
    content = bytearray(file.read_bytes())
    before = hashlib.sha256(content).hexdigest()
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return before, hashlib.sha256(content).hexdigest()


# ---- the list ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lang", LANGS)
def test_the_list_shows_question_verdict_date_and_counts(wiki: Wiki, lang: str) -> None:
    page = wiki.page(f"/{lang}/experiments")
    for name in RESULTS:
        (card,) = [
            li
            for li in page.iter("li")
            if f"/{lang}/experiments/{name}" in links(li) and "card" in str(li.get("class"))
        ]
        shown = text_of(card)
        assert RESULTS[name]()["question"][lang] in shown
        rows = len(RESULTS[name]()["rows"])
        assert (f"{rows}/{rows} 组对照如预期" if lang == "zh" else f"{rows} of {rows} comparisons") in shown
        assert wiki.site.evidence.bag(name).published in shown
        assert next(element.get("data-value") for element in card.iter("data")) == "holds"


@pytest.mark.parametrize("lang", LANGS)
def test_an_unpublished_experiment_names_its_command_in_the_list_and_on_its_page(wiki: Wiki, lang: str) -> None:
    command = f"samestep-lab run {UNPUBLISHED}"
    for path in (f"/{lang}/experiments", f"/{lang}/experiments/{UNPUBLISHED}"):
        assert command in text_of(wiki.page(path))


def test_an_experiment_that_nobody_declared_is_404(wiki: Wiki) -> None:
    assert wiki.get("/zh/experiments/nothing").status_code == 404


def test_a_failed_verdict_is_said_as_it_is(wiki: Wiki) -> None:
    rows = [row("page", "gather", "agrees", {"wd": 0.5})]
    shutil.rmtree(wiki.folder / "info_nce")
    publish(wiki.folder, "info_nce", result("info_nce", rows))
    page = wiki.page("/en/experiments/info_nce")
    assert "It fails: 0 of 1 comparisons" in text_of(page)
    assert "✗" in text_of(by_id(page, "row-page-gather"))


# ---- the page of an experiment ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("lang", LANGS)
def test_every_number_of_a_page_is_the_one_at_its_path_in_result_json(wiki: Wiki, lang: str, name: str) -> None:
    found = RESULTS[name]()
    outputs = [element for element in wiki.page(f"/{lang}/experiments/{name}").iter() if element.get("data-field")]
    for output in outputs:
        value, exact = value_at(found, output.get("data-field", "")), output.get("data-value")
        if output.tag != "data":
            assert value is None or output.tag == "code", output.attrib
            assert text_of(output)
        elif isinstance(value, str):
            assert exact == value
        else:
            assert json.loads(exact or "") == value
            if isinstance(value, float):
                assert float(text_of(output).replace("−", "-")) == pytest.approx(value, rel=5e-6)


@pytest.mark.parametrize("name", RESULTS)
def test_a_page_shows_every_difference_every_value_and_the_environment(wiki: Wiki, name: str) -> None:
    found = RESULTS[name]()
    page = wiki.page(f"/en/experiments/{name}")
    fields = {element.get("data-field") for element in page.iter() if element.get("data-field")}
    wanted = {f"environment.{key}" for key in found["environment"]} | {"command", "verdict", "tolerance.rerun"}
    for i, each in enumerate(found["rows"]):
        wanted |= {f"rows.{i}.max_abs_difference.{quantity}" for quantity in each["max_abs_difference"]}
        wanted |= {f"rows.{i}.values.{key}" for key, value in each["values"].items() if not isinstance(value, list)}
        wanted |= {f"rows.{i}.values.ranks.{r}.loss" for r, _ in enumerate(each["values"].get("ranks", []))}
    assert wanted <= fields
    assert {
        "setup.learning_rate",
        "setup.fixtures.0.q",
        "setup.fixtures.0.note",
        "controls.0.values.smallest",
    } <= fields


def test_the_numbers_of_the_sources_are_shown_side_by_side(wiki: Wiki) -> None:
    shown = {
        element.get("data-field"): text_of(element) for element in wiki.page("/zh/experiments/info_nce").iter("data")
    }
    assert shown["rows.0.values.wd_gradient.0"] == "1.844825"
    assert shown["rows.1.values.wd_gradient.0"] == "0.922412"
    assert shown["rows.0.values.wd.0"] == "0.815518"
    assert shown["rows.1.values.wd.0"] == "0.907759"


@pytest.mark.parametrize("lang", LANGS)
def test_right_and_wrong_paths_of_a_case_stand_in_one_table_with_their_expectation(wiki: Wiki, lang: str) -> None:
    page = wiki.page(f"/{lang}/experiments/info_nce")
    rows = {name: by_id(page, f"row-page-{name}") for name in ("gather", "detached", "empty-mean")}
    words = ("= 一致", "≠ 不同", "∅ 不可用") if lang == "zh" else ("= agrees", "≠ differs", "∅ undefined")
    for line, word in zip(rows.values(), words, strict=True):
        assert word in text_of(line)
        assert [cell.get("scope") for cell in line.iter("th")] == ["row"]
    (table,) = [table for table in page.iter("table") if rows["gather"] in list(table.iter("tr"))]
    assert all(line in list(table.iter("tr")) for line in rows.values())
    assert "a mean over nothing" in text_of(rows["empty-mean"])
    assert "AdamW" in text_of(by_id(page, "row-other-gather"))


def test_the_chart_shows_the_numbers_of_the_table_on_the_right_side_of_the_tolerance_lines(wiki: Wiki) -> None:
    page = wiki.page("/en/experiments/info_nce")
    exhibit = Exhibit(info_nce())  # type: ignore[arg-type]
    x = scales.log(*exhibit.bounds, 28, 276)
    for i, each in enumerate(info_nce()["rows"]):
        line = by_id(page, f"row-{each['id']}")
        circles = {str(text_of(circle)).rpartition(": ")[2]: circle for circle in line.iter("circle")}
        cells = {cell.get("data-field"): text_of(cell) for cell in line.iter("data")}
        for quantity, far in each["max_abs_difference"].items():
            if not far:
                continue
            circle = circles[cells[f"rows.{i}.max_abs_difference.{quantity}"]]
            place = float(circle.get("cx", ""))
            assert place == x(far)
            assert place < x(AGREES) if each["expected"][quantity] == "agrees" else place > x(DIFFERS)
        assert len(circles) == len([far for far in each["max_abs_difference"].values() if far])


def test_zero_has_a_mark_of_its_own_and_undefined_is_shown_as_undefined(wiki: Wiki) -> None:
    page = wiki.page("/en/experiments/info_nce")
    gather, empty = by_id(page, "row-page-gather"), by_id(page, "row-page-empty-mean")
    assert [text_of(mark) for mark in gather.iter("path") if text_of(mark)] == ["loss: 0"]
    assert [mark.get("class") for mark in empty.iter("text")] == ["fig-undefined"]
    assert len([cell for cell in empty.iter("span") if text_of(cell) == "undefined" and cell.get("data-field")]) == 2


def test_the_loss_curve_is_drawn_and_its_validation_losses_are_listed(wiki: Wiki) -> None:
    page = wiki.page("/en/experiments/train_tiny")
    section = by_id(page, "curve")
    assert text_of(section) == "Loss curve"
    traces = [path.get("d", "") for path in page.iter("path") if path.get("class") == "fig-trace"]
    assert [trace.count("L") for trace in traces] == [58]
    shown = [text_of(one) for one in page.iter("data") if str(one.get("data-field")).startswith("curve.validation")]
    assert shown == ["5.9862", "4.5", "3.11"]
    assert "curve" not in {element.get("id") for element in wiki.page("/en/experiments/info_nce").iter()}


@pytest.mark.parametrize("lang", LANGS)
def test_a_page_tells_how_to_repeat_it_where_it_ran_and_what_it_does_not_claim(wiki: Wiki, lang: str) -> None:
    shown = text_of(wiki.page(f"/{lang}/experiments/info_nce"))
    for part in (
        "python -m experiments run info_nce --processes 2",
        "samestep-lab verify info_nce --rerun",
        "sha256sum -c manifest-sha256.txt",
        info_nce()["scope"][lang],
        "c0ffee" * 6,
        "摘要证明文件完整，不证明出自何人"
        if lang == "zh"
        else "Digests prove that the files are intact, not who made them",
    ):
        assert part in shown


@pytest.mark.parametrize(
    "path", [*(f"experiments/{name}" for name in RESULTS), "experiments", f"experiments/{UNPUBLISHED}"]
)
@pytest.mark.parametrize("lang", LANGS)
def test_pages_are_sound_html(wiki: Wiki, lang: str, path: str) -> None:
    page = wiki.page(f"/{lang}/{path}")
    ids = [element.get("id") for element in page.iter() if element.get("id")]
    assert [name for name, number in Counter(ids).items() if number > 1] == []
    named = [name for element in page.iter() for name in element.get("aria-labelledby", "").split()]
    assert set(named) <= set(ids)
    assert {href[1:] for href in links(page) if href.startswith("#")} <= set(ids)
    levels = [int(str(element.tag)[1]) for element in page.iter() if re.fullmatch("h[1-6]", str(element.tag))]
    assert levels[0] == 1
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))
    assert not [element for element in page.iter() if element.get("style")]
    for table in page.iter("table"):
        assert len({len(list(line)) for line in table.iter("tr")}) == 1


# ---- files ------------------------------------------------------------------------------------------------------


def test_every_file_is_listed_with_size_full_digest_and_a_link_that_gives_it(wiki: Wiki) -> None:
    for name in RESULTS:
        page = wiki.page(f"/en/experiments/{name}")
        files = [li for li in page.iter("li") if str(li.get("class")).startswith("file")]
        bag = wiki.site.evidence.bag(name)
        assert len(files) == len(bag.files)
        for item, file in zip(files, bag.files, strict=True):
            assert f"{file.size:,} bytes" in text_of(item)
            assert file.found
            assert file.found in text_of(item)
            (href,) = links(item)
            assert href == f"/evidence/{name}/{file.path}"
            assert hashlib.sha256(wiki.get(href).content).hexdigest() == file.found
        assert f"/evidence/{name}.zip" in links(page)


def test_digests_of_tensors_stand_beside_their_file(wiki: Wiki) -> None:
    page = wiki.page("/en/experiments/train_tiny")
    (item,) = [li for li in page.iter("li") if "/evidence/train_tiny/data/weights.safetensors" in links(li)]
    for part in ("28 tensors, 298,176 elements", "1" * 64, "2" * 64):
        assert part in text_of(item)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("data/result.json", "application/json"),
        ("data/weights.safetensors", "application/octet-stream"),
        ("manifest-sha256.txt", "text/plain; charset=utf-8"),
    ],
)
def test_a_download_carries_its_digest_and_can_be_had_in_parts(wiki: Wiki, path: str, kind: str) -> None:
    address, content = f"/evidence/train_tiny/{path}", (wiki.folder / "train_tiny" / path).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    whole = wiki.get(address)
    assert (whole.status_code, whole.content) == (200, content)
    assert whole.headers["content-type"] == kind
    assert whole.headers["etag"] == f'"{digest}"'
    assert whole.headers["repr-digest"] == repr_digest(digest)
    part = wiki.get(address, range="bytes=10-29")
    assert (part.status_code, part.content) == (206, content[10:30])
    assert part.headers["content-range"] == f"bytes 10-29/{len(content)}"
    assert part.headers["repr-digest"] == repr_digest(digest)  # of the whole, whatever part is sent
    assert wiki.get(address, range=f"bytes={len(content)}-").status_code == 416
    unchanged = wiki.get(address, **{"if-none-match": f'"{digest}"'})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    head = wiki.client.head(address)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(content)))
    assert head.headers["etag"] == whole.headers["etag"]


def test_the_zip_holds_the_bag_and_passes_the_check_that_the_page_describes(wiki: Wiki, tmp_path: Path) -> None:
    answer = wiki.get("/evidence/train_tiny.zip")
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["etag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'
    assert wiki.get("/evidence/train_tiny.zip").content == answer.content
    zipfile.ZipFile(BytesIO(answer.content)).extractall(tmp_path / "out")
    (commands,) = [
        text_of(pre) for pre in wiki.page("/en/experiments/train_tiny").iter("pre") if "unzip" in text_of(pre)
    ]
    command = re.sub(r".* (?=sha256sum)", "", commands).split()
    if not shutil.which("sha256sum"):
        command[0:1] = ["shasum", "-a", "256"]
    checked = subprocess.run(command, cwd=tmp_path / "out" / "train_tiny", capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.count(": OK") == len(wiki.site.evidence.bag("train_tiny").files) - 1  # not the tag manifest


@pytest.mark.parametrize(
    "path", ["nothing.json", "data", "%2e%2e/info_nce/bagit.txt", "data/%2e%2e/bagit.txt", "bagit.txt/"]
)
def test_only_files_of_the_bag_are_served(wiki: Wiki, path: str) -> None:
    assert wiki.get(f"/evidence/train_tiny/{path}").status_code == 404


# ---- damage -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lang", LANGS)
def test_a_changed_file_is_refused_with_both_digests_and_shown_with_them(wiki: Wiki, lang: str) -> None:
    promised, found = flip(wiki.data("train_tiny", "weights.safetensors"))
    address = "/evidence/train_tiny/data/weights.safetensors"
    for answer in (wiki.get(address), wiki.get("/evidence/train_tiny.zip"), wiki.get(address, range="bytes=0-3")):
        assert answer.status_code == 409
        body = answer.json()
        assert (body["state"], body["promised_sha256"], body["found_sha256"]) == ("changed", promised, found)
        assert body["file"] == "train_tiny/data/weights.safetensors"
        assert promised in body["detail"]
        assert found in body["detail_zh"]
    page = wiki.page(f"/{lang}/experiments/train_tiny")
    assert address not in links(page)
    assert "/evidence/train_tiny.zip" not in links(page)
    shown = text_of(page)
    assert promised in shown
    assert found in shown
    assert ("这份证据已损坏" if lang == "zh" else "This evidence is damaged") in shown
    assert text_of(by_id(page, "row-all-again"))  # the results themselves are whole and stay
    assert "/evidence/train_tiny/data/result.json" in links(page)
    assert ("已损坏" if lang == "zh" else "Damaged") in text_of(wiki.page(f"/{lang}/experiments"))


def test_missing_and_extra_files_are_shown_and_refused(wiki: Wiki) -> None:
    wiki.data("train_tiny", "weights.safetensors").unlink()
    wiki.data("train_tiny", "smuggled.txt").write_text("nobody promised me")
    page = wiki.page("/en/experiments/train_tiny")
    states = {text_of(li).split()[0]: text_of(li) for li in page.iter("li") if "file-damaged" in str(li.get("class"))}
    assert "missing" in states["data/weights.safetensors"]
    assert "no such file" in states["data/weights.safetensors"]
    assert "not in the manifest" in states["data/smuggled.txt"]
    for file, state in (("weights.safetensors", "missing"), ("smuggled.txt", "extra")):
        answer = wiki.get(f"/evidence/train_tiny/data/{file}")
        assert (answer.status_code, answer.json()["state"]) == (409, state)
    assert wiki.get("/evidence/train_tiny.zip").status_code == 409
    assert wiki.get("/evidence/train_tiny/data/result.json").status_code == 200


@pytest.mark.parametrize("lang", LANGS)
def test_damaged_results_show_no_number_but_the_files(wiki: Wiki, lang: str) -> None:
    promised, found = flip(wiki.data("info_nce"))
    page = wiki.page(f"/{lang}/experiments/info_nce")
    assert not [element for element in page.iter() if element.get("data-field")]
    assert "1.844825" not in text_of(page)
    assert promised in text_of(page)
    assert found in text_of(page)
    assert "/evidence/info_nce/data/provenance.json" in links(page)
    assert "/evidence/info_nce/data/result.json" not in links(page)
    card = text_of(wiki.page(f"/{lang}/experiments"))
    assert ("不显示任何数字" if lang == "zh" else "no number is shown") in card
    assert wiki.get(f"/{lang}/experiments/gradient_scaling").status_code == 200


@pytest.mark.parametrize(
    "gone", ["manifest-sha256.txt", "tagmanifest-sha256.txt", "bag-info.txt", "data/provenance.json"]
)
def test_a_page_survives_the_loss_of_any_file(wiki: Wiki, gone: str) -> None:
    (wiki.folder / "info_nce" / gone).unlink()
    for path in ("experiments", "experiments/info_nce", "fences"):
        wiki.page(f"/en/{path}")
    assert "is missing" in text_of(wiki.page("/en/experiments/info_nce"))


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"schema": "another"}', "null"])
def test_results_of_another_kind_are_not_shown_even_if_their_digest_is_right(wiki: Wiki, content: str) -> None:
    wiki.data("info_nce").write_text(content)
    write_tags(wiki.folder / "info_nce", "for a test")
    for path in ("experiments", "experiments/info_nce", "fences"):
        assert "of another format" in text_of(wiki.page(f"/en/{path}"))
    assert not [element for element in wiki.page("/en/experiments/info_nce").iter() if element.get("data-field")]


def test_later_damage_and_restoration_show_on_finished_pages_within_moments(wiki: Wiki) -> None:
    def wait_until(is_damaged: bool) -> None:
        until = time.monotonic() + 20
        while ("This evidence is damaged" in wiki.get("/en/experiments/info_nce").text) != is_damaged:
            assert time.monotonic() < until
            time.sleep(0.1)

    assert "damaged" not in wiki.get("/en/experiments/info_nce").text
    assert "/en/experiments/info_nce" in wiki.site.ready
    time.sleep(0.2)  # the watch has taken its first look
    whole = wiki.data("info_nce").read_bytes()
    flip(wiki.data("info_nce"))
    wait_until(is_damaged=True)
    wiki.data("info_nce").write_bytes(whole)
    wait_until(is_damaged=False)


# ---- fences -----------------------------------------------------------------------------------------------------


def fence(wiki: Wiki, name: str, lang: str = "en", identifier: str = "", **chosen: tuple[str, ...]) -> Element:
    ref = EvidenceRef(name, identifier or f"evidence-{name}", chosen.get("rows", ()), chosen.get("keys", ()), 1)
    (section,) = tree(f"<!doctype html><title>-</title>{evidence_of(wiki.site, ref, lang)}").iter("section")  # type: ignore[arg-type]
    return section


def path_names(section: Element) -> list[str]:
    return [text_of(name) for name in section.iter("span") if name.get("class") == "path-name"]


def test_a_fence_shows_the_chosen_rows_in_their_order_with_the_chosen_values(wiki: Wiki) -> None:
    section = fence(wiki, "info_nce", rows=("page-detached", "page-gather"), keys=("wd_gradient", "wd"))
    assert path_names(section) == ["detached·en", "gather·en"]
    shown = {element.get("data-field"): text_of(element) for element in section.iter("data")}
    assert shown["rows.1.values.wd_gradient.0"] == "0.922412"
    assert shown["rows.0.values.wd_gradient.0"] == "1.844825"
    assert shown["rows.1.max_abs_difference.wd"] == "0.922412"
    assert not [element for element in section.iter() if str(element.get("id", "")).startswith("row-")]


def test_a_fence_that_chose_nothing_shows_all_of_few_rows(wiki: Wiki) -> None:
    assert len(path_names(fence(wiki, "info_nce"))) == len(info_nce()["rows"]) <= SUMMARY


def test_a_fence_sums_many_rows_up_by_path_with_the_largest_difference(wiki: Wiki) -> None:
    section = fence(wiki, "gradient_scaling")
    assert len(gradient_scaling()["rows"]) > SUMMARY
    assert path_names(section) == ["mean·en", "scaled·en"]
    lines = [text_of(line) for line in section.iter("tr")][1:]
    assert "× 1" in lines[0]
    assert "× 7" in lines[0]
    assert lines[0].endswith("7 gradient, m8·en")
    assert lines[1].endswith("1e−16 gradient, m1·en")


def test_a_fence_names_verdict_tolerance_environment_page_and_downloads(wiki: Wiki) -> None:
    section = fence(wiki, "info_nce", lang="zh")
    shown = text_of(section)
    for part in ("成立：4/4 组对照如预期", "2e−10", "1e−6", "torch 2.13.0+cpu", "2 个进程"):
        assert part in shown
    assert {"/zh/experiments/info_nce", "/evidence/info_nce/data/result.json", "/evidence/info_nce.zip"} <= set(
        links(section)
    )


def test_a_row_that_the_results_do_not_have_is_named(wiki: Wiki) -> None:
    section = fence(wiki, "info_nce", rows=("page-gather", "page-forgotten"))
    assert path_names(section) == ["gather·en"]
    assert "The results have no such row: page-forgotten" in text_of(section)


def test_an_unpublished_fence_names_its_command(wiki: Wiki) -> None:
    assert f"samestep-lab run {UNPUBLISHED}" in text_of(fence(wiki, UNPUBLISHED))


@pytest.mark.parametrize("lang", LANGS)
def test_a_fence_of_damaged_results_says_so_and_shows_no_number(wiki: Wiki, lang: str) -> None:
    promised, found = flip(wiki.data("info_nce"))
    section = fence(wiki, "info_nce", lang=lang)
    assert promised in text_of(section)
    assert found in text_of(section)
    assert not list(section.iter("data"))
    assert links(section) == [f"/{lang}/experiments/info_nce"] * 2


def test_a_fence_with_another_damaged_file_keeps_its_results_and_offers_no_zip(wiki: Wiki) -> None:
    flip(wiki.data("train_tiny", "weights.safetensors"))
    section = fence(wiki, "train_tiny")
    assert "This evidence is damaged" in text_of(section)
    assert list(section.iter("data"))
    assert "/evidence/train_tiny.zip" not in links(section)
    assert "/evidence/train_tiny/data/result.json" in links(section)


@pytest.mark.parametrize("lang", LANGS)
def test_several_fences_of_one_experiment_in_a_chapter_keep_ids_and_names_apart(wiki: Wiki, lang: str) -> None:
    page = wiki.page(f"/{lang}/fences")
    ids = [element.get("id") for element in page.iter() if element.get("id")]
    assert {"a", "b", "evidence-info_nce"} <= set(ids)
    assert [name for name, number in Counter(ids).items() if number > 1] == []
    regions = [element for element in page.iter() if element.get("role") == "region" or element.tag == "section"]
    names = [element.get("aria-label") for element in regions if element.get("aria-label")]
    assert len(names) == len(set(names)) == 7


@pytest.mark.parametrize("lang", LANGS)
def test_a_chapter_carries_its_evidence_in_the_first_html_and_its_experiment_names_the_chapter(
    wiki: Wiki, lang: str
) -> None:
    page = wiki.page(f"/{lang}/fences")
    assert ("成立" if lang == "zh" else "It holds") in text_of(by_id(page, "evidence-info_nce"))
    assert f"samestep-lab run {UNPUBLISHED}" in text_of(by_id(page, f"evidence-{UNPUBLISHED}"))
    assert f"/{lang}/fences" in links(wiki.page(f"/{lang}/experiments/info_nce"))
    assert f"/{lang}/fences" not in links(wiki.page(f"/{lang}/experiments/train_tiny"))


# ---- how results are arranged -----------------------------------------------------------------------------------


def test_the_decisive_difference_is_the_largest_of_those_that_do_what_the_row_does() -> None:
    exhibit = Exhibit(info_nce())  # type: ignore[arg-type]
    gather, detached, empty, _ = exhibit.entries
    assert (gather.quantity, gather.difference) == ("wd", 2.220446049250313e-16)
    assert (detached.quantity, detached.difference) == ("wd", WRONG)  # not the loss, which must agree
    assert (empty.quantity, empty.difference) == ("loss", None)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (RIGHT, "1.844825"),
        (-0.5, "−0.5"),
        (0.6000000000000001, "0.6"),
        (17.69180601295413, "17.691806"),
        (2.220446049250313e-16, "2.22045e−16"),
        (0.0, "0"),
        (298176, "298176"),
        ("-inf", "−inf"),
        ("2-fold", "2-fold"),
        (None, "–"),
        (True, "true"),
        ([[3.0], [4.0]], "[3, 4]"),
        ([[1.0, 2.0], [3.0]], "[[1, 2], 3]"),
    ],
)
def test_measured_values_read_with_the_digits_of_the_sources(value: Any, shown: str) -> None:
    assert measured(value) == shown


def test_an_axis_of_differences_ends_at_whole_powers_of_ten_and_holds_every_one() -> None:
    assert scales.decades([], 1e-17, 10.0) == (1e-17, 10.0)
    assert scales.decades([3e-19, 0, None, 32768.0, "inf", "nan"], 1e-17, 10.0) == (1e-19, 1e5)
    assert scales.decades([5e-324, 1.7e308], 1e-17, 10.0) == (1e-300, 1e300)
    assert scales.powers(1e-17, 10.0) == [1e-16, 1e-12, 1e-8, 1e-4, 1.0]


def test_a_curve_leaves_out_what_cannot_be_drawn() -> None:
    x, y = scales.linear(0, 10, 0, 100), scales.linear(0, 10, 100, 0)
    assert scales.polyline([(0, 0), (5, 5), (6, "nan"), (10, 10)], x, y) == "M0.0 100.0L50.0 50.0L100.0 0.0"
    assert scales.polyline([], x, y) == ""


# ---- in a browser -----------------------------------------------------------------------------------------------


@pytest.fixture
def running(tmp_path: Path, start_server: Callable[..., Any]) -> str:
    """The address of a real server in a copy of the checkout that holds the bags, one of them damaged."""
    checkout = tmp_path / "checkout"
    for name in ("app", "static", "templates"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    write_chapter(checkout / "content")
    folder = checkout / "content" / "evidence"
    for name, make in RESULTS.items():
        publish(folder, name, make())
    flip(folder / "gradient_scaling" / "data" / "provenance.json")
    return str(start_server(checkout=checkout).url)


def test_axe_is_content_and_nothing_is_wider_than_the_screen(running: str) -> None:
    found = []
    with sync_playwright() as playwright:
        browser = launched(playwright)
        page = browser.new_page()
        for path in ("/zh/experiments", *(f"/en/experiments/{name}" for name in RESULTS), "/zh/fences"):
            page.goto(running + path)
            page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
            for width, scheme in ((1280, "light"), (390, "dark")):
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                wide = page.evaluate("document.scrollingElement.scrollWidth")
                found += [f"{path}: {wide} px on {width}"] if wide > width else []
                found += [f"{path} {width}: {violation}" for violation in violations(page)]
        browser.close()
    assert found == []
