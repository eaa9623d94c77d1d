"""What keeps readers safe and answers small: headers, escaping, caching, compression, a path below a proxy."""

import gzip
import html
import json
import re
from collections.abc import Callable, Mapping
from urllib.parse import urlencode, urlsplit

import brotli
import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from samestep.app.calculators import registry
from samestep.app.contract.languages import LANGUAGES
from tests.kit import the_book, tree

CALCULATORS = sorted(registry())
FIELDS = [(name, field) for name in CALCULATORS for field in registry()[name].query.model_fields]
PROBES = [
    '"><script>alert(1)</script><img src=x onerror=alert(2)>',
    "'><svg onload=alert(3)>",
    "</textarea></option></select><iframe src=javascript:alert(4)>",
    "{{ 7 * 191 }}{% raw %}<b>${7*191}",
]
ALL_PROBES = "".join(PROBES)
TYPED_TAGS = ("<script>", "<img", "<svg onload", "<iframe", "<b>")
HARMFUL = {"img", "iframe", "object", "embed", "base", "style", "b"}

each_language = pytest.mark.parametrize("lang", LANGUAGES)
each_field = pytest.mark.parametrize(("name", "field"), FIELDS, ids=[f"{name}-{field}" for name, field in FIELDS])


# ---- headers on every kind of answer


def static_address(client: TestClient) -> str:
    found = re.search(r'href="([^"]+/css/\w+\.css)"', client.get("/en/").text)
    assert found is not None
    return found[1]


OVERFLOW = {"scaled_grads": [["inf"], [1]], "scale": 4, "params": [[1], [1]], "lr": 0.1}
ANSWERS: dict[str, tuple[int, Callable[[TestClient], Response]]] = {
    "root": (307, lambda client: client.get("/")),
    "shelf": (200, lambda client: client.get("/zh/")),
    "shelf without slash": (308, lambda client: client.get("/zh")),
    "chapter": (200, lambda client: client.get("/zh/parallel-correctness")),
    "chapter with state": (200, lambda client: client.get("/en/gradient-scaling?gradient_scaling.batch=128")),
    "calculator": (200, lambda client: client.get("/en/calculators/info_nce")),
    "calculator with state": (200, lambda client: client.get("/en/calculators/info_nce?tau=2")),
    "calculator by POST": (200, lambda client: client.post("/en/calculators/info_nce", data={"tau": "2"})),
    "refused form": (422, lambda client: client.get("/zh/calculators/info_nce?tau=0")),
    "fragment": (200, lambda client: client.get("/zh/calculators/info_nce/result?tau=2")),
    "refused fragment": (422, lambda client: client.get("/zh/calculators/info_nce/result?tau=0")),
    "search": (200, lambda client: client.get("/zh/search?q=loss")),
    "HEAD": (200, lambda client: client.head("/zh/")),
    "JSON": (200, lambda client: client.get("/api/info_nce?tau=2")),
    "CSV": (200, lambda client: client.get("/api/info_nce?format=csv")),
    "JSON by POST": (200, lambda client: client.post("/api/overflow_skip", json=OVERFLOW)),
    "refused JSON": (422, lambda client: client.get("/api/info_nce?tau=0")),
    "too large": (413, lambda client: client.post("/api/info_nce", headers={"content-length": "99999999"})),
    "API page": (200, lambda client: client.get("/en/api")),
    "openapi": (200, lambda client: client.get("/openapi.json")),
    "healthz": (200, lambda client: client.get("/healthz")),
    "static": (200, lambda client: client.get(static_address(client))),
    "missing page": (404, lambda client: client.get("/zh/nothing")),
    "missing door": (404, lambda client: client.get("/api/nothing")),
    "missing static": (404, lambda client: client.get("/s/0123456789ab/js/live.js")),
    "wrong method": (405, lambda client: client.post("/zh/")),
}


def is_safe(headers: Mapping[str, str]) -> None:
    """Only the wiki's own scripts, styles and fonts; framed by nobody; nothing about the server."""
    policy = {
        name: set(values)
        for name, *values in (part.split() for part in headers["content-security-policy"].split(";") if part.strip())
    }
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == {"'none'"}
    for what in ("script-src", "style-src", "font-src", "connect-src", "form-action"):
        assert policy.get(what, {"'self'"}) == {"'self'"}
    if headers.get("content-type", "").startswith("text/html"):
        assert policy["script-src"] == policy["style-src"] == policy["form-action"] == {"'self'"}
    assert policy.get("style-src-attr", set()) <= {"'unsafe-inline'"}  # the MathML has style attributes
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] in ("no-referrer", "same-origin", "strict-origin-when-cross-origin")
    assert "server" not in headers
    assert "x-powered-by" not in headers


@pytest.mark.parametrize("kind", ANSWERS)
def test_every_kind_of_answer_carries_the_safe_headers(client: TestClient, kind: str) -> None:
    status, ask = ANSWERS[kind]
    answer = ask(client)
    assert answer.status_code == status
    is_safe(answer.headers)


@pytest.mark.parametrize("path", ["/zh/", "/api/info_nce?tau=2", "/zh/calculators/info_nce/result?tau=2"])
def test_an_answer_of_304_carries_the_safe_headers(client: TestClient, path: str) -> None:
    tag = client.get(path).headers["etag"]
    answer = client.get(path, headers={"if-none-match": tag})
    assert answer.status_code == 304
    is_safe(answer.headers)


@pytest.fixture
def failing(below: TestClient, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A wiki below /wiki in which every computation ends in an unforeseen exception."""

    def fail(*_: object) -> None:
        raise RuntimeError("a secret of the server")

    for module in ("panels", "states"):
        monkeypatch.setattr(f"samestep.app.instruments.{module}.view_of", fail)
    return TestClient(below.app, raise_server_exceptions=False)


@pytest.mark.parametrize("root", ["", "/wiki"])
@pytest.mark.parametrize(("lang", "words"), [("zh", "服务器出错了"), ("en", "Something went wrong here")])
def test_a_failure_is_a_safe_page_in_the_readers_language_without_secrets(
    failing: TestClient, lang: str, words: str, root: str
) -> None:
    answer = failing.get(f"{root}/{lang}/calculators/info_nce?tau=3", headers={"accept-language": "fr"})
    assert answer.status_code == 500
    is_safe(answer.headers)
    page = tree(answer.text)
    assert page.get("lang") == lang
    assert words in "".join(page.itertext())
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    for element in page.iter("a"):
        assert element.get("href", "").startswith(("/wiki/", "#")), element.attrib
        assert not element.get("href", "").startswith("/wiki/wiki"), element.attrib


@pytest.mark.parametrize("root", ["", "/wiki"])
def test_a_failing_door_answers_json_without_secrets(failing: TestClient, root: str) -> None:
    answer = failing.get(f"{root}/api/info_nce?tau=3")
    assert answer.status_code == 500
    is_safe(answer.headers)
    assert answer.json()["detail"]
    assert "secret" not in answer.text


# ---- escaping


def is_harmless(page: str) -> None:
    """No element and no attribute that a probe wanted to make, and none of its tags as it was typed."""
    assert [tag for tag in TYPED_TAGS if tag in page] == []
    for element in tree(page).iter():
        tag = str(element.tag).rpartition("}")[2]
        assert tag not in HARMFUL, (tag, element.attrib)
        assert tag != "script" or (element.get("src") or "").startswith("/s/"), element.attrib
        for name, value in element.attrib.items():
            assert not name.startswith("on"), (tag, name)
            assert not value.strip().lower().startswith("javascript:"), (tag, name, value)
    assert "1337" not in page


@pytest.mark.parametrize("around", ["<p>{}</p>", '<input value="{}">', "<input value='{}'>", "<textarea>{}</textarea>"])
def test_a_probe_that_got_through_would_be_seen(around: str) -> None:
    for probe in PROBES:
        with pytest.raises(AssertionError):
            is_harmless(around.format(probe))
        is_harmless(around.format(html.escape(probe.replace("{", "("))))


@each_field
def test_nothing_typed_into_a_field_becomes_markup(client: TestClient, name: str, field: str) -> None:
    """On the page and in its part by themselves; all fields together also by POST."""
    address = f"/zh/calculators/{name}"
    is_harmless(client.get(address, params={field: ALL_PROBES}).text)
    is_harmless(client.get(f"{address}/result", params={field: ALL_PROBES}).text)
    answer = client.get(f"/api/{name}", params={field: ALL_PROBES})
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("name", CALCULATORS)
def test_no_name_and_no_message_becomes_markup(client: TestClient, name: str, probe: str) -> None:
    address = f"/en/calculators/{name}"
    is_harmless(client.post(address, data=dict.fromkeys(registry()[name].query.model_fields, probe)).text)
    is_harmless(client.get(address, params={probe: probe}).text)
    is_harmless(client.get(f"{address}?{urlencode([(probe, 1), (probe, 2)])}").text)
    is_harmless(client.get(f"{address}/result", params={probe: probe}).text)


@pytest.mark.parametrize("probe", PROBES)
def test_no_state_of_a_chapter_becomes_markup(client: TestClient, probe: str) -> None:
    """Wrong values, names, and what one form keeps of the others."""
    state = {f"{name}.{field}": probe for name, field in FIELDS}
    is_harmless(client.get("/zh/parallel-correctness", params=state).text)
    is_harmless(client.get("/en/gradient-scaling", params={probe: probe, f"gradient_scaling.{probe}": probe}).text)


@pytest.mark.parametrize("probe", PROBES)
@each_language
def test_no_question_and_no_address_becomes_markup(client: TestClient, lang: str, probe: str) -> None:
    is_harmless(client.get(f"/{lang}/search", params={"q": probe}).text)
    is_harmless(client.get(f"/{lang}/search", params={"q": f"loss {probe}", probe: probe}).text)
    is_harmless(client.get(f"/{lang}/{probe}").text)
    is_harmless(client.get(f"/{lang}/calculators/{probe}").text)
    is_harmless(client.get(f"/{probe}", headers={"accept-language": f"{lang},{probe}"}).text)


@pytest.mark.parametrize(
    "path", ["//evil.example", "/\\evil.example", "/zh//evil.example/", "//evil.example/zh/", "/zh%0d%0aX: y"]
)
def test_no_address_redirects_to_another_host(client: TestClient, path: str) -> None:
    answer = client.get(f"{client.base_url}{path}")
    place = urlsplit(answer.headers.get("location", ""))
    assert place.netloc in ("", client.base_url.netloc.decode())
    assert not place.path.startswith(("//", "/\\"))
    assert "x" not in answer.headers


# ---- caching and compression


@pytest.mark.parametrize("path", ["/zh/", "/en/calculators", "/zh/calculators/info_nce", "static"])
def test_a_finished_answer_is_not_sent_twice(client: TestClient, path: str) -> None:
    path = static_address(client) if path == "static" else path
    for encoding in ("br", "identity"):
        first = client.get(path, headers={"accept-encoding": encoding})
        for tag in (first.headers["etag"], f"W/{first.headers['etag']}", f'"other", {first.headers["etag"]}', "*"):
            again = client.get(path, headers={"accept-encoding": encoding, "if-none-match": tag})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == first.headers["etag"]
            assert "accept-encoding" in again.headers["vary"].lower()
        assert client.get(path, headers={"if-none-match": '"another"'}).status_code == 200


@pytest.mark.parametrize("path", ["/zh/calculators/info_nce/result", "/api/info_nce"])
def test_a_state_is_a_pure_function_of_its_address(client: TestClient, path: str) -> None:
    first = client.get(f"{path}?tau=2")
    assert "max-age" in first.headers["cache-control"]
    again = client.get(f"{path}?tau=2", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get(f"{path}?tau=3").headers["etag"] != first.headers["etag"]
    refused = client.get(f"{path}?tau=0", headers={"if-none-match": first.headers["etag"]})
    assert refused.status_code == 422
    assert "max-age" not in refused.headers.get("cache-control", "")


def test_fragments_of_the_two_languages_are_told_apart(client: TestClient) -> None:
    tags = {client.get(f"/{lang}/calculators/info_nce/result?tau=2").headers["etag"] for lang in LANGUAGES}
    assert len(tags) == 2


@pytest.mark.parametrize(
    "path",
    [
        "/zh/",
        "/en/calculators",
        "/zh/calculators/replica_ledger",
        "/zh/parallel-correctness",
        "/en/parallel-correctness?replica_ledger.a=5",
        "/zh/gradient-scaling",
        "static",
    ],
)
def test_a_page_is_sent_compressed_to_who_can_read_it(client: TestClient, path: str) -> None:
    path = static_address(client) if path == "static" else path
    plain = client.get(path, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert "content-encoding" not in client.get(path, headers={"accept-encoding": "br;q=0, gzip;q=0"}).headers
    for accepted, coding, unpack in (
        ("gzip, br", "br", brotli.decompress),
        ("gzip, deflate", "gzip", gzip.decompress),
        ("zstd, GZIP;q=0.5, br;q=0", "gzip", gzip.decompress),
        ("br;q=0, *", "gzip", gzip.decompress),
    ):
        with client.stream("GET", path, headers={"accept-encoding": accepted}) as packed:
            assert packed.headers.get("content-encoding") == coding
            assert "accept-encoding" in packed.headers["vary"].lower()
            assert packed.headers.get("etag", "gzip") != plain.headers.get("etag", "identity")
            raw = b"".join(packed.iter_raw())
        assert unpack(raw) == plain.content
        assert len(raw) == int(packed.headers["content-length"]) < len(plain.content) / 2


@pytest.mark.parametrize(
    "path",
    [
        "/zh/",
        "/zh/parallel-correctness",
        "/zh/calculators/info_nce?tau=2",
        "/zh/calculators/info_nce/result?tau=2",
        "/zh/search?q=loss",
        "/api/info_nce",
        "/healthz",
        "/openapi.json",
        "static",
    ],
)
def test_head_answers_what_get_would_without_the_body(client: TestClient, path: str) -> None:
    path = static_address(client) if path == "static" else path
    head, get = client.head(path), client.get(path)
    assert head.status_code == get.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == get.headers["content-type"]
    assert head.headers.get("etag") == get.headers.get("etag")


def test_static_files_may_be_kept_for_ever_because_their_address_changes_with_them(client: TestClient) -> None:
    address = static_address(client)
    assert "immutable" in client.get(address).headers["cache-control"]
    other = re.sub(r"/s/[0-9a-f]+/", "/s/000000000000/", address)
    assert other != address
    assert client.get(other).status_code == 404
    assert "immutable" not in client.get(other).headers.get("cache-control", "")


@pytest.mark.parametrize(
    "path", ["/s/../app/main.py", "/s/%2e%2e/pyproject.toml", "/static/css/base.css", "/content/zh"]
)
def test_no_address_leads_to_files_of_the_server(client: TestClient, path: str) -> None:
    assert client.get(f"{client.base_url}{path}").status_code == 404


# ---- below a proxy's path


PAGES = [
    f"/{lang}/{address}"
    for lang in LANGUAGES
    for address in (
        "",
        "calculators",
        "search?q=loss",
        "api",
        "nothing",
        *(chapter.slug for chapter in the_book().chapters["zh"]),
        *(f"calculators/{name}" for name in CALCULATORS),
        "calculators/info_nce?tau=0",
    )
]


@pytest.mark.parametrize("path", PAGES)
def test_every_address_of_a_page_is_below_the_root_path(below: TestClient, path: str) -> None:
    answer = below.get(path)
    addresses = {
        value
        for element in tree(answer.text).iter()
        for name in ("href", "src", "action", "formaction", "data-result-url")
        if (value := element.get(name)) and "external" not in (element.get("rel") or "").split()
    }
    assert len(addresses) > 5
    assert not {a for a in addresses if not a.startswith(("/wiki/", "#", "https://")) or a.startswith("/wiki/wiki")}


@pytest.mark.parametrize(
    "path", ["/zh/", "/zh/parallel-correctness", "/en/calculators/info_nce/result?tau=2", "/api/info_nce", "/healthz"]
)
def test_the_proxy_may_cut_the_root_path_off_or_leave_it(below: TestClient, path: str) -> None:
    cut, left = below.get(path), below.get(f"/wiki{path}")
    assert cut.status_code == left.status_code == 200
    assert cut.content == left.content


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/", "/wiki/en/"),
        ("/wiki", "/wiki/en/"),
        ("/wiki/", "/wiki/en/"),
        ("/wiki/zh", "/wiki/zh/"),
        ("/zh", "/wiki/zh/"),
        ("/zh/search/", "/wiki/zh/search"),
        ("/wiki/zh/search/?q=1", "/wiki/zh/search?q=1"),
    ],
)
def test_redirects_stay_below_the_root_path(below: TestClient, path: str, place: str) -> None:
    answer = below.get(path, headers={"accept-language": "en"})
    assert answer.headers["location"].removeprefix(str(below.base_url)) == place


def test_static_files_are_found_below_the_root_path(below: TestClient) -> None:
    address = static_address(below)
    assert address.startswith("/wiki/s/")
    assert below.get(address).status_code == below.get(address.removeprefix("/wiki")).status_code == 200


def test_the_openapi_document_names_the_root_path(below: TestClient) -> None:
    assert below.get("/wiki/openapi.json").json()["servers"] == [{"url": "/wiki"}]


def test_a_path_that_only_begins_like_the_root_path_is_another(below: TestClient) -> None:
    assert below.get("/wikizh/").status_code == 404


def test_several_cases_sent_to_be_saved_as_one_are_listed_instead(client: TestClient) -> None:
    case = {"kind": "ledger", "inputs": {"microsteps": [[{"n": 2, "g": 1}]]}, "id": "one"}
    files = {"file": ("cases.json", json.dumps({"cases": [case, case]}).encode())}
    answer = client.post("/en/calculators/replica_ledger/case", files=files)
    assert answer.status_code == 422
    assert "one" in answer.text
