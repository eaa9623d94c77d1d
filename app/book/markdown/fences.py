"""Fences: code, and the directives ```` ```{calculator} NAME ````, `evidence` and `figure`."""

import re
import tomllib
from collections.abc import Callable, Sequence

from markdown_it.token import Token

from samestep.app.book.markdown.build import Build, line_of, make_raw
from samestep.app.book.markdown.highlight import UnknownLanguageError, code_block
from samestep.app.book.markdown.pieces import CalculatorRef, EvidenceRef, FigureRef
from samestep.app.book.markdown.states import state

_DIRECTIVE = re.compile(r"\{([^}]*)\}\s*(.*)")
_ID = re.compile(r"[a-z][a-z0-9_-]*")
_TOML_LINE = re.compile(r" ?\(at line (\d+), column \d+\)")


def fences(tokens: Sequence[Token], build: Build) -> None:
    """Colour code, and put a mark where a directive stands; `build.refs` holds what stands there."""
    for token in tokens:
        if token.type == "code_block":
            make_raw(token, code_block(token.content, "", build.lang), block=True, text=token.content)
        elif token.type == "fence":
            directive = _DIRECTIVE.fullmatch(token.info.strip())
            if directive:
                _directive(token, build, directive[1].strip(), directive[2].strip())
            else:
                _code(token, build)


def _code(token: Token, build: Build) -> None:
    language, text = token.info.strip(), token.content
    try:
        html = code_block(text, language, build.lang)
    except UnknownLanguageError:
        build.wrong(line_of(token), f"unknown code language “{language}”")
        html = code_block(text, "", build.lang)
    if not _closed(token, build):
        build.wrong(line_of(token), "the code fence is never closed")
    make_raw(token, html, block=True, text=text)


def _closed(token: Token, build: Build) -> bool:
    if not token.map or token.map[1] - token.map[0] < 2 or token.map[1] > len(build.lines):
        return False
    return build.lines[token.map[1] - 1].strip(" >").startswith(token.markup)


def _directive(token: Token, build: Build, kind: str, name: str) -> None:
    line = line_of(token)
    make: Callable[[Build, str, dict[str, object], str, int], None] | None = _DIRECTIVES.get(kind)
    if make is None:
        build.wrong(line, f"unknown fence {{{kind}}}: there are {', '.join(f'{{{known}}}' for known in _DIRECTIVES)}")
        make_raw(token, "", block=True)
        return
    if not _closed(token, build):
        build.wrong(line, f"the fence {{{kind}}} {name} is never closed")
    options = _options(build, token.content, line)
    before = len(build.refs)
    make(build, name, options, token.content, line)
    make_raw(token, f"\0{before}\0" if len(build.refs) > before else "", block=True)


def _options(build: Build, body: str, line: int) -> dict[str, object]:
    try:
        return tomllib.loads(body, parse_float=str)
    except tomllib.TOMLDecodeError as error:
        place = _TOML_LINE.search(str(error))
        at = line + int(place[1]) if place else line
        build.wrong(at, f"the fence's body is not TOML: {_TOML_LINE.sub('', str(error))}")
        return {}


def _calculator(build: Build, name: str, options: dict[str, object], body: str, line: int) -> None:
    calculator = build.context.calculators.get(name)
    if calculator is None:
        build.wrong(line, f"there is no calculator “{name}”")
        return
    identifier = _identifier(build, options, name, line)
    fields = {key: _field(build, key, value, _line_of_key(body, key, line)) for key, value in options.items()}
    for refusal in state(calculator, fields).refusals:
        build.wrong(_line_of_key(body, refusal.field, line), f"{name}: {refusal.told}")
    build.refs.append(CalculatorRef(name, identifier, fields, line))


def _evidence(build: Build, name: str, options: dict[str, object], body: str, line: int) -> None:
    if name not in build.context.experiments:
        build.wrong(line, f"there is no experiment “{name}”")
        return
    identifier = _identifier(build, options, f"evidence-{name}", line)
    rows, keys = (_texts(build, options.pop(key, []), key, body, line) for key in ("rows", "keys"))
    for key in options:
        build.wrong(_line_of_key(body, key, line), f"unknown option “{key}”: there are id, rows, keys")
    build.refs.append(EvidenceRef(name, identifier, rows, keys, line))


def _figure(build: Build, name: str, options: dict[str, object], body: str, line: int) -> None:
    if name not in build.context.figures:
        build.wrong(line, f"there is no figure “{name}”")
        return
    identifier = _identifier(build, options, f"figure-{name}", line)
    for key in options:
        build.wrong(_line_of_key(body, key, line), f"unknown option “{key}”: there is id")
    build.refs.append(FigureRef(name, identifier, line))


_DIRECTIVES = {"calculator": _calculator, "evidence": _evidence, "figure": _figure}


def _identifier(build: Build, options: dict[str, object], default: str, line: int) -> str:
    identifier = str(options.pop("id", default))
    if not _ID.fullmatch(identifier):
        build.wrong(line, f"the id “{identifier}” must be made of a-z, 0-9, _ and -, and start with a letter")
    elif identifier in build.anchors and any(ref.id == identifier for ref in build.refs):
        build.wrong(line, f'a second panel “{identifier}” needs an id of its own: id = "…" in the fence')
    else:
        build.anchor(identifier, line)
    return identifier


def _field(build: Build, key: str, value: object, line: int) -> str:
    """The text of a GET field."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, str)):
        return str(value)
    build.wrong(line, f'“{key}” must be a number or a text as in an address, such as "2,3;8,0"')
    return ""


def _texts(build: Build, value: object, key: str, body: str, line: int) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(item, (str, int)) for item in value):
        return tuple(map(str, value))
    build.wrong(_line_of_key(body, key, line), f"“{key}” must be a list of texts")
    return ()


def _line_of_key(body: str, key: str, line: int) -> int:
    for offset, text in enumerate(body.split("\n"), start=1):
        if key and re.match(rf"\s*\"?{re.escape(key)}\"?\s*=", text):
            return line + offset
    return line
