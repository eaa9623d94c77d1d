"""Every page of the wiki, found by following links from the two shelves: valid HTML, sound structure, no dead end."""

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from urllib.parse import unquote, urljoin

import html5lib
import httpx2
import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from samestep.app.calculators import registry
from tests.kit import Element, text_of, tree

BESIDE_THE_LINKS = [
    f"/{lang}/{address}"
    for lang in ("zh", "en")
    for address in (
        "search?q=梯度",
        "search?q=gradient",
        "search?q=zzzz",
        "no-such-chapter",
        "%3Cno%20page%3E%3F%22",
        "parallel-correctness?replica_ledger.a=-1&info_nce.tau=0",
        "parallel-correctness?clip_ownership.gradients=1,2;3,nan;4&clip_ownership.replicated=5,6",
        "parallel-correctness?info_nce.q=1,2;3,4;5,6&info_nce.d=1,0;0,1;1,1&info_nce.ranks=2,1",
        "gradient-scaling?gradient_scaling.batch=63",
        *(f"calculators/{name}?no_such_field=1" for name in registry()),
        "calculators/replica_ledger?a=0&b=0",
        "calculators/replica_ledger?counts=2,3;8,0;1&gradients=-2,1;1,0.5;3&losses=1,1;1,1;1",
        "calculators/replica_ledger?counts=" + ";".join(["1"] * 70) + "&gradients=" + ";".join(["2"] * 70),
        "calculators/info_nce?direction=bidirectional&similarity=cosine&q=1,2;3,4&d=1,0;0,1",
        "calculators/info_nce?q=" + ";".join(["1"] * 40) + "&d=" + ";".join(["2"] * 40),
        "calculators/clip_ownership?scheme=every_copy&replicated=96",
        "calculators/clip_ownership?scheme=per_rank&overflow=1",
        "calculators/clip_ownership?gradients=" + ";".join(["1,2"] * 40),
        "calculators/overflow_skip?scaled_grads=1;nan;-inf&params=1;1;1&scale=2;4;8",
        "calculators/gradient_scaling?scale=loss&all_reduce=mean",
    )
]
"""States that no link leads to: refused inputs, search results, edges of the calculators, a page that is missing."""

HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
SECTIONS = {"div", "section", "article", "aside", "nav", "header", "footer", "main", "hgroup", "form", "fieldset"}
BLOCKS = {*HEADINGS, *SECTIONS, "p", "ul", "ol", "dl", "table", "figure", "details", "pre", "blockquote", "hr"}
TEXT_ONLY = {*HEADINGS, "p", "span", "label", "button", "a", "data", "small", "strong", "em", "code", "cite", "dt"}
INTERACTIVE = {"a", "button", "input", "select", "textarea", "label", "details", "summary"}
CHILDREN = {
    "ul": {"li"},
    "ol": {"li"},
    "dl": {"dt", "dd", "div"},
    "hgroup": {"p", *HEADINGS},
    "select": {"option", "optgroup"},
    "optgroup": {"option"},
    "tr": {"td", "th"},
    "table": {"caption", "colgroup", "thead", "tbody", "tfoot"},
}


STATES_READ = 3


@dataclass(frozen=True)
class Page:
    """One answer as a browser reads it; `elements` holds every one with its ancestors, the nearest first."""

    address: str
    status: int
    html: str
    tree: Element
    elements: list[tuple[Element, tuple[Element, ...]]]

    @cached_property
    def ids(self) -> Counter[str]:
        """How often each id stands on the page."""
        return Counter(found for element, _ in self.elements if (found := element.get("id")) is not None)

    @cached_property
    def targets(self) -> dict[str, None]:
        """The addresses on this site that links lead to and files are taken from, with their fragments, in order."""
        found = (element.get("href") or element.get("src") or element.get("action") for element, _ in self.elements)
        targets = (urljoin(self.address, address) for address in dict.fromkeys(found) if address)
        return dict.fromkeys(target for target in targets if target.startswith("/") and not target.startswith("//"))

    def all(self, *tags: str) -> list[Element]:
        return [element for element, _ in self.elements if element.tag in tags]


def read(address: str, status: int, html: str) -> Page:
    root = tree(html)
    return Page(address, status, html, root, with_ancestors(root))


def parse_errors(html: str) -> list[str]:
    """What the standard's own way of reading complains of; a hundred times slower than `read`."""
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    parser.parse(html)
    return [f"{code} at {place}: {details}" for place, code, details in parser.errors]


def with_ancestors(root: Element) -> list[tuple[Element, tuple[Element, ...]]]:
    found: list[tuple[Element, tuple[Element, ...]]] = []

    def walk(element: Element, above: tuple[Element, ...]) -> None:
        found.append((element, above))
        if len(element):
            inside = (element, *above)
            for child in element:
                walk(child, inside)

    walk(root, ())
    return found


@dataclass(frozen=True)
class Site:
    pages: dict[str, Page]
    others: dict[str, int]
    """Addresses that are no HTML page, or one more state of a page that was read in some, with their status."""


@pytest.fixture(scope="module")
def site(client: TestClient) -> Site:
    """The wiki, read once; looking for garbage among what is kept of it would find none."""
    gc.disable()
    try:
        assert client.portal
        return client.portal.call(crawled, client.app)
    finally:
        gc.freeze()
        gc.enable()


async def crawled(application: ASGIApp) -> Site:
    """Everything that links lead to, from the shelves and from the states beside them.

    Of the many states that links lead to, a calculator's first few are read, in one language or the other; that the
    others answer, in one and however they are written, is enough. Of the cards of a page one is drawn, which takes a
    second, and stands for the others. All is asked from inside the application's loop, and nothing is compressed:
    from outside a request goes eight times from thread to thread.
    """
    inside = httpx2.ASGITransport(application, raise_app_exceptions=False)
    reader = httpx2.AsyncClient(transport=inside, base_url="http://testserver", headers={"accept-encoding": "identity"})
    found = Site({}, {})
    waiting = ["/zh/", "/en/", *BESIDE_THE_LINKS]
    states: Counter[str] = Counter()
    answered: dict[str, int] = {}
    while waiting:
        address = waiting.pop()
        if address in found.pages or address in found.others:
            continue
        path, _, state = address.partition("?")
        alike = path if path.endswith("/card.png") else unquote("/".join(address.split("/")[2:]))
        linked = bool(state) and address not in BESIDE_THE_LINKS
        states[alike.partition("?")[0]] += linked
        many = linked and states[alike.partition("?")[0]] > STATES_READ
        if alike in answered and (many or path.endswith("/card.png")):
            found.others[address] = answered[alike]
            continue
        answer = await reader.get(address)
        answered[alike] = answer.status_code
        if many or not answer.headers.get("content-type", "").startswith("text/html"):
            found.others[address] = answer.status_code
            continue
        page = found.pages[address] = read(address, answer.status_code, answer.text)
        waiting += [target.partition("#")[0] for target in page.targets]
    return found


def none_of(complaints: Iterable[str]) -> None:
    """A fact about every page: fails with the places where it does not hold."""
    places = [f"{number} × {complaint}" for complaint, number in Counter(complaints).most_common(30)]
    if places:
        pytest.fail("\n".join(places), pytrace=False)


def test_the_links_lead_through_the_whole_wiki_in_both_languages(site: Site) -> None:
    for lang in ("zh", "en"):
        places = ["", "calculators", "search", "api", "gradient-scaling", "parallel-correctness"]
        places += ["glossary", "sources", "book", "tags/advanced"]
        places += [f"calculators/{name}" for name in registry()]
        assert {f"/{lang}/{place}" for place in places} <= {address.partition("?")[0] for address in site.pages}


def test_html5lib_finds_no_parse_error(site: Site) -> None:
    """Of a page and its states, once each in one language: both are made from the same templates."""
    none_of(f"{address}: {error}" for address, html in _one_of_each(site) for error in parse_errors(html))


def _one_of_each(site: Site) -> Iterator[tuple[str, str]]:
    read_already: Counter[str] = Counter()
    for address, page in site.pages.items():
        lang, _, place = address.removeprefix("/").partition("/")
        kind = place.partition("?")[0]
        read_already[kind] += 1
        if read_already[kind] == 1 or (lang == "zh" and address in BESIDE_THE_LINKS):
            yield address, page.html


def test_ids_are_unique_and_without_spaces(site: Site) -> None:
    none_of(
        f"{page.address}: id “{name}” × {number}"
        for page in site.pages.values()
        for name, number in Counter(page.ids).items()
        if number > 1 or not name or name.split() != [name]
    )


def test_every_label_belongs_to_a_control_and_every_control_has_a_name(site: Site) -> None:
    none_of(complaint for page in site.pages.values() for complaint in _unnamed(page))


def _unnamed(page: Page) -> Iterator[str]:
    controls = [c for c in page.all("input", "select", "textarea") if c.get("type") not in ("hidden", "submit")]
    by_id = {control.get("id"): control for control in controls if control.get("id")}
    labels = page.all("label")
    for label in labels:
        wrapped = [inner for inner in label.iter() if inner in controls]
        if label.get("for") not in by_id and len(wrapped) != 1:
            yield f"{page.address}: the label “{text_of(label)}” belongs to no control"
        if not text_of(label):
            yield f"{page.address}: the label of {label.get('for')} is empty"
    named = {label.get("for") for label in labels}
    wrapped_ones = {inner for label in labels for inner in label.iter()}
    for control in controls:
        if control.get("id") not in named and control not in wrapped_ones and not control.get("aria-label"):
            yield f"{page.address}: the control {control.attrib} has no name"


def test_what_aria_and_forms_refer_to_exists(site: Site) -> None:
    attributes = {f"aria-{name}" for name in ("labelledby", "describedby", "controls", "owns", "details")}
    attributes |= {"for", "form", "list", "headers", "data-twin"}
    none_of(
        f"{page.address}: {name}={reference}"
        for page in site.pages.values()
        for element, _ in page.elements
        if element.tag != "mo"  # a formula's operators have a `form` of another kind
        for name, references in element.items()
        if name in attributes
        for reference in references.split()
        if reference not in page.ids
    )


def test_headings_begin_with_one_h1_and_never_skip_a_level(site: Site) -> None:
    none_of(complaint for page in site.pages.values() for complaint in _headings(page))


def _headings(page: Page) -> Iterator[str]:
    levels = [(int(str(heading.tag)[1]), text_of(heading)) for heading in page.all(*HEADINGS)]
    if [level for level, _ in levels].count(1) != 1 or levels[0][0] != 1:
        yield f"{page.address}: {[text for level, text in levels if level == 1]} are level 1"
    for (level, text), (following, below) in pairwise(levels):
        if following > level + 1:
            yield f"{page.address}: from h{level} “{text}” to h{following} “{below}”"
    yield from (f"{page.address}: an empty h{level}" for level, text in levels if not text)


def test_there_is_one_main_and_every_landmark_of_a_kind_has_its_own_name(site: Site) -> None:
    none_of(complaint for page in site.pages.values() for complaint in _landmarks(page))


def _landmarks(page: Page) -> Iterator[str]:
    if len(page.all("main")) != 1:
        yield f"{page.address}: {len(page.all('main'))} main elements"
    if any(not nav.get("aria-label") for nav in page.all("nav")):
        yield f"{page.address}: a nav has no name"


def test_nothing_interactive_lies_inside_something_interactive(site: Site) -> None:
    none_of(
        f"{page.address}: {element.tag!s} inside {outer.tag}"
        for page in site.pages.values()
        for element, above in page.elements
        for outer in above
        if (outer.tag in ("a", "button", "summary") and (element.tag in INTERACTIVE or element.get("tabindex")))
        or (outer.tag == "label" and element.tag in INTERACTIVE - {"input", "select", "textarea"})
    )


def test_elements_hold_only_what_they_may_hold(site: Site) -> None:
    none_of(complaint for page in site.pages.values() for complaint in _misplaced(page))


def _misplaced(page: Page) -> Iterator[str]:
    for element, above in page.elements:
        parent = above[0] if above else element
        if parent.tag in TEXT_ONLY and element.tag in BLOCKS:
            yield f"{page.address}: {element.tag!s} inside {parent.tag!s}"
        if parent.tag in CHILDREN and element.tag not in CHILDREN[str(parent.tag)] | {"script", "template"}:
            yield f"{page.address}: {element.tag!s} as a child of {parent.tag!s}"
        if element.tag == "li" and parent.tag not in ("ul", "ol", "menu"):
            yield f"{page.address}: li inside {parent.tag!s}"
        if element.tag in ("figcaption", "summary", "legend", "caption"):
            home = {"figcaption": "figure", "summary": "details", "legend": "fieldset", "caption": "table"}
            if parent.tag != home[str(element.tag)]:
                yield f"{page.address}: {element.tag!s} inside {parent.tag!s}"
        if element.tag == "data" and element.get("value") is None:
            yield f"{page.address}: data without a value: {element.attrib}"


def test_tables_name_their_columns(site: Site) -> None:
    none_of(
        f"{page.address}: a table has no header cells in its first row, or one without scope"
        for page in site.pages.values()
        for table in page.all("table")
        if not table.findall(".//th") or any(not head.get("scope") for head in table.findall("./thead//th"))
    )


def test_every_row_of_a_table_has_as_many_cells_as_its_head(site: Site) -> None:
    def width(row: Element) -> int:
        return sum(int(cell.get("colspan", 1)) for cell in row)

    none_of(
        f"{page.address}: “{text_of(table)[:40]}” has rows of {sorted(widths)} cells"
        for page in site.pages.values()
        for table in page.all("table")
        if len(widths := {width(row) for row in table.iter("tr")}) > 1 and not table.findall(".//*[@rowspan]")
    )


def test_a_figure_that_speaks_has_a_name_and_one_that_is_silent_is_hidden(site: Site) -> None:
    none_of(
        f"{page.address}: an svg {element.attrib}"
        for page in site.pages.values()
        for element, _ in page.elements
        if element.tag == "svg"
        and not (
            element.get("aria-hidden") == "true"
            or (element.get("role") == "img" and (element.get("aria-labelledby") or element.get("aria-label")))
        )
    )


def test_no_script_and_no_style_stands_in_the_page(site: Site) -> None:
    none_of(complaint for page in site.pages.values() for complaint in _inline(page))


def _inline(page: Page) -> Iterator[str]:
    for element, above in page.elements:
        tag = str(element.tag)
        if tag == "style" or (tag == "script" and (element.get("src") is None or text_of(element))):
            yield f"{page.address}: inline {tag}"
        for name, value in element.items():
            if name.startswith("on") or "javascript:" in value:
                yield f"{page.address}: {name} on {tag}"
        if element.get("style") is not None and not any(one.tag == "math" for one in (element, *element, *above)):
            yield f"{page.address}: a style attribute on {tag}, which is no formula"


def test_every_page_says_its_language_and_what_it_is(site: Site) -> None:
    for page in site.pages.values():
        assert page.tree.get("lang") == page.address.split("/")[1], page.address
        (title,) = page.tree.findall("./head/title")
        assert text_of(title), page.address


def test_other_languages_inside_a_page_are_marked(site: Site) -> None:
    """The switch speaks the other language."""
    for page in site.pages.values():
        own = page.tree.get("lang")
        for link in page.all("a"):
            if link.get("hreflang"):
                assert link.get("lang") == link.get("hreflang") != own, page.address
        if own == "en":
            unmarked = [
                text_of(element)
                for element, above in page.elements
                if any("\u4e00" <= c <= "\u9fff" for c in element.text or "")
                and not any(one.get("lang") == "zh" for one in (element, *above))
                and element.tag not in ("input", "textarea", "title", "option", "data")
                and not any(one.tag == "pre" for one in (element, *above))  # a string in a program has no language
                and "q=" not in page.address
            ]
            assert not unmarked, (page.address, unmarked)


def test_every_link_of_a_page_that_is_in_order_arrives(site: Site) -> None:
    statuses = site.others | {address: page.status for address, page in site.pages.items()}
    none_of(
        f"{target}: {statuses[target]}, linked from {page.address.partition('?')[0]}"
        for page in site.pages.values()
        if page.status == 200
        for target in {target.partition("#")[0] for target in page.targets}
        if statuses[target] != 200
    )


def test_every_anchor_that_a_link_names_exists(site: Site) -> None:
    none_of(complaint for page in site.pages.values() for complaint in _lost_anchors(page, site))


def _lost_anchors(page: Page, site: Site) -> Iterator[str]:
    for target, _, anchor in (target.partition("#") for target in page.targets):
        if anchor and target in site.pages and unquote(anchor) not in site.pages[target].ids:
            yield f"{page.address}: {target}#{anchor}"


def test_every_address_is_written_as_an_address(site: Site) -> None:
    """Spaces, brackets and the like are percent-encoded."""
    none_of(
        f"{page.address}: {element.tag!s} {name}={address!r}"
        for page in site.pages.values()
        for element, _ in page.elements
        for name in ("href", "src", "action", "data-result-url")
        if (address := element.get(name)) and (set(address) & set(' <>"{}|\\^`\n') or not address.isascii())
    )


def test_no_link_is_empty_and_none_leads_nowhere(site: Site) -> None:
    none_of(
        f"{page.address}: <a href={link.get('href')!r}> “{text_of(link)}”"
        for page in site.pages.values()
        for link in page.all("a")
        if not link.get("href") or link.get("href") == "#" or not (text_of(link) or link.get("aria-label"))
    )


def test_only_sources_lead_to_other_hosts_and_nothing_is_loaded_from_one(site: Site) -> None:
    none_of(complaint for page in site.pages.values() for complaint in _foreign(page))


LOADED = {"href", "src", "action", "formaction", "data", "poster", "srcset", "{http://www.w3.org/1999/xlink}href"}


def _foreign(page: Page) -> Iterator[str]:
    for element, _ in page.elements:
        for name, address in element.items():
            if name not in LOADED or not address.startswith(("http:", "https:", "//")):
                continue
            if element.tag != "a" or "external" not in (element.get("rel") or "").split():
                yield f"{page.address}: {element.tag!s} {name}={address}"
