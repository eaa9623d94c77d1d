"""How an honest request is spoiled: numbers, words, structure, bytes, files, headers."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from samestep.app.calculators import registry
from tests.hostile import seeds
from tests.hostile.seeds import NUMBER, Pairs, Request

NUMBERS = (
    "0", "-0", "1", "-1", "2.5", "1/3", "1/0", "0/0", "1e308", "-1e308", "1.7976931348623157e308", "1e309", "1e-308",
    "1e-320", "5e-324", "1e-400", "1e999", "nan", "-inf", "inf", "Infinity", "9" * 30, "9" * 400, "1" * 5000,
    "1e1000000", "0x10", "1_000", "1,000", " 7 ", "+3", ".5", "5.", "٣", "½", "１２", "−2", "true", "null", "None", "",
    " ", "4097", "1000001", "99999999999999999999", "2;8", "2,3;8,0", "1/3,2/7", "[]", "[[]]", "{}", "\x00",
    "\r", "\ufeff1", "🔥",
)  # fmt: skip
WORDS = ("", "nothing", "__class__", "0", "\x00", "%", "<script>", "ddp_mean", "scheme", "a" * 5000, "\ud800", "中文")
CONTENT_TYPES = (
    "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=edge",
    "multipart/form-data", "multipart/form-data; boundary=", "text/csv", "", "\xff",
    "multipart/form-data; boundary=" + "x" * 300,
)  # fmt: skip
HEADERS = (
    ("accept", "text/csv"), ("accept", "*/*;q=nan"), ("accept-language", "zh;q=inf,en;q=-1,;;;,fr"),
    ("range", "bytes=0-0,5-2,-1"), ("range", "bytes=99999999999999999999-"), ("if-none-match", '"' * 50),
    ("accept-encoding", "br;q=0, gzip;q=2, ,"), ("host", "a b"), ("host", "x" * 300), ("if-range", "\xff"),
    ("cookie", "a=" + "b" * 3000), ("x-forwarded-for", "::1"),
)  # fmt: skip

Rng = random.Random


def random_request(rng: Rng) -> Request:
    """One hostile request."""
    made = rng.choice(_DOORS)(rng)
    if rng.random() < 0.15:
        made = replace(made, headers=[*made.headers, rng.choice(HEADERS)])
    if made.body is not None and rng.random() < 0.05:
        made = replace(made, content_type=rng.choice(CONTENT_TYPES))
    if rng.random() < 0.03:
        made = replace(made, path=_spoiled_text(rng, made.path))
    return made


# ---- doors


def _panel_state(rng: Rng) -> tuple[str, Pairs]:
    name = rng.choice(list(registry()))
    fields = dict(seeds.panel_fields(name))
    for key in rng.sample(list(fields), min(len(fields), rng.choice((1, 1, 2, 3)))):
        fields[key] = _value(rng, fields[key])
    return name, _shuffled(rng, list(fields.items()))


def _body_state(rng: Rng) -> tuple[str, Pairs]:
    name = rng.choice(list(registry()))
    body = rng.choice(seeds.bodies()[name])
    pairs = [(f"body.{key}", json.dumps(value)) for key, value in body.items()]
    if pairs:
        place = rng.randrange(len(pairs))
        pairs[place] = pairs[place][0], _value(rng, pairs[place][1])
    pairs += [(rng.choice(seeds.body_names(name)), rng.choice(NUMBERS)) for _ in range(rng.choice((0, 0, 1, 2)))]
    if rng.random() < 0.3:
        pairs.append(("expected", _expected(rng)))
    return name, _shuffled(rng, pairs)


def _get_api(rng: Rng) -> Request:
    name, pairs = rng.choice((_panel_state, _body_state))(rng)
    return Request(f"/api/{name}", pairs)


def _post_api(rng: Rng) -> Request:
    name = rng.choice(list(registry()))
    body = rng.choice(seeds.bodies()[name])
    spoiled = _spoiled_json(rng, body)
    return Request(f"/api/{name}", [("format", "csv")] if rng.random() < 0.1 else [], _bytes(rng, spoiled))


def _own_page(rng: Rng) -> Request:
    name, pairs = rng.choice((_panel_state, _body_state))(rng)
    tail = rng.choice(("", "/result", "/result", "/more", "/case"))
    if rng.random() < 0.1:
        pairs = [("as", "general"), *pairs]
    return Request(f"/{rng.choice(('zh', 'en'))}/calculators/{name}{tail}", pairs)


def _form(rng: Rng) -> Request:
    name, pairs = rng.choice((_panel_state, _body_state))(rng)
    path = f"/{rng.choice(('zh', 'en'))}/calculators/{name}{rng.choice(('', '/result', '/more', '/case'))}"
    if rng.random() < 0.5:
        body = urlencode(pairs, errors="surrogatepass").encode()
        return Request(path, [], _bytes(rng, body), "application/x-www-form-urlencoded")
    body = seeds.multipart(pairs, _file(rng, name), name=rng.choice(("a.csv", "b.json", "\udcff\udcfe", "", "a\nb")))
    return Request(path, [], _bytes(rng, body), "multipart/form-data; boundary=edge")


def _chapter(rng: Rng) -> Request:
    path, panel, name = rng.choice(seeds.panels_of_chapters())
    fields = seeds.panel_fields(name)
    key = rng.choice(list(fields))
    pairs = [(f"{panel}.{key}", _value(rng, fields[key]))]
    pairs += [(f"{panel}.{rng.choice(WORDS)}", rng.choice(NUMBERS))] if rng.random() < 0.2 else []
    return Request(path, pairs)


def _page(rng: Rng) -> Request:
    path = rng.choice(seeds.pages())
    if rng.random() < 0.3:
        path = _spoiled_text(rng, path)
    return Request(path, [(rng.choice(WORDS), rng.choice(NUMBERS))] if rng.random() < 0.3 else [])


def _search(rng: Rng) -> Request:
    known = (*WORDS, *NUMBERS, '"', "NEAR(", "梯度", "gradient*")
    query = " ".join(rng.choice(known) for _ in range(rng.randint(1, 6)))
    return Request(f"/{rng.choice(('zh', 'en'))}/search", [("q", query)])


_DOORS: tuple[Callable[[Rng], Request], ...] = (
    _get_api, _get_api, _post_api, _post_api, _own_page, _own_page, _form, _chapter, _page, _search,
)  # fmt: skip

# ---- pieces


def _value(rng: Rng, honest: str) -> str:
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(NUMBERS)
    if kind < 0.75:
        return rng.choice(WORDS)
    if kind < 0.9:
        return _other_numbers(rng, honest.encode(), 1).decode("utf-8", "replace")
    return _spoiled_text(rng, honest)


def _other_numbers(rng: Rng, text: bytes, count: int) -> bytes:
    return NUMBER.sub(lambda _: rng.choice(NUMBERS).encode(), text, count=count)


def _shuffled(rng: Rng, pairs: Pairs) -> Pairs:
    if rng.random() < 0.1 and pairs:
        pairs = [*pairs, rng.choice(pairs)]  # given twice
    if rng.random() < 0.1:
        pairs = [*pairs, (rng.choice(WORDS), rng.choice(NUMBERS))]
    if rng.random() < 0.1 and pairs:
        pairs = pairs[:-1]
    rng.shuffle(pairs)
    return pairs


def _expected(rng: Rng) -> str:
    deep: Any = rng.choice((1, None, [], "x"))
    for _ in range(rng.choice((1, 3, 200))):
        deep = {rng.choice(("grad", "reference", "0", "a.b")): deep}
    choices: tuple[Any, ...] = (
        deep,
        {"a." * rng.choice((3, 2000)) + "b": 1},
        {"9" * 5000: 1},
        [1, 2],
        {"reference": {"grad": int("1" + "0" * 400)}},
        {"schemes": list(range(rng.choice((3, 1000))))},
        {},
    )
    text = json.dumps(rng.choice(choices))
    return text if rng.random() < 0.9 else text[:-1]


def _file(rng: Rng, name: str) -> bytes | None:
    kind = rng.random()
    if kind < 0.1:
        return None
    if kind < 0.5:
        text = rng.choice(seeds.CSV_FILES).encode()
        if rng.random() < 0.5:
            text = _other_numbers(rng, text, rng.choice((1, 3)))
        ends = text.replace(b"\n", b"\r"), text.replace(b"\n", b"\r\n")
        return rng.choice((text, *ends, text * 200, b"\xef\xbb\xbf" + text))
    if kind < 0.52:
        return seeds.case_file()
    file = seeds.one_case(name, rng.choice(seeds.bodies()[name]))
    if kind < 0.6:
        file = b'{"cases":[' + b",".join([file] * rng.choice((2, 50))) + b"]}"
    if kind < 0.65:
        file = b'{"cases":[' + b",".join([b"{}"] * 3000) + b"]}"
    return _spoiled_bytes(rng, file) if rng.random() < 0.5 else file


def _spoiled_json(rng: Rng, body: dict[str, Any]) -> bytes:
    """Numbers replaced in the text, entries dropped, doubled, nested."""
    text = json.dumps(body).encode()
    kind = rng.random()
    if kind < 0.55:
        places = list(NUMBER.finditer(text))
        if places:
            place = rng.choice(places)
            value = rng.choice(NUMBERS)
            new = value if rng.random() < 0.4 else json.dumps(value)
            return text[: place.start()] + new.encode("utf-8", "surrogatepass") + text[place.end() :]
    if kind < 0.7 and body:
        key = rng.choice(list(body))
        other: tuple[Any, ...] = (None, [], {}, [[]], True, "", "x", 1, [1] * 5000, [[1, 2], [3]], _nested(rng))
        return json.dumps(body | {key: rng.choice(other)}).encode()
    if kind < 0.8 and body:
        return json.dumps({key: value for key, value in body.items() if key != rng.choice(list(body))}).encode()
    if kind < 0.85:
        return json.dumps(body | {rng.choice(WORDS): 1}).encode("utf-8", "surrogatepass")
    return _spoiled_bytes(rng, text)


def _nested(rng: Rng) -> Any:
    value: Any = 1
    for _ in range(rng.choice((3, 150))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def _bytes(rng: Rng, body: bytes) -> bytes:
    return _spoiled_bytes(rng, body) if rng.random() < 0.1 else body


def _spoiled_bytes(rng: Rng, content: bytes) -> bytes:
    spoiled = bytearray(content or b"x")
    for _ in range(rng.choice((1, 1, 4))):
        place = rng.randrange(len(spoiled))
        kind = rng.random()
        if kind < 0.4:
            spoiled[place] = rng.randrange(256)
        elif kind < 0.6:
            spoiled[place:place] = rng.choice((b"\x00", b"\xff\xfe", b"[" * 300, b"{" * 300, b'"', b"1" * 500, b"\r"))
        elif kind < 0.8:
            del spoiled[place : place + rng.randint(1, 20)]
            spoiled = spoiled or bytearray(b"x")
        else:
            del spoiled[place + 1 :]
    return bytes(spoiled)


def _spoiled_text(rng: Rng, text: str) -> str:
    place = rng.randrange(len(text) + 1)
    put = rng.choice(("%", "\x00", "//", "..", "é", "\udcff", " ", "?", "#", "%ff", "/../"))
    return text[:place] + put + text[place:]
