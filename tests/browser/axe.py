"""What axe complains of: it is put into a page once, and asked again as often as the look of the page changes.

Contrast is most of its work, a millisecond and more for each text, and pages repeat a few ways of painting in thousands
of cells. So it looks at three texts of each way: the same element and classes, colour, size and weight, over the same
backgrounds. All other rules look at everything.
"""

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

_COLOURS = ("color-contrast", "link-in-text-block")
_IS_THERE = "() => 'axe' in window"
_MARK = """() => {
    const told = new Map();
    const speaks = (element) => element.matches("input, select, textarea, [placeholder]") ||
        [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    const walk = (element, below) => {
        if (!element.checkVisibility({ visibilityProperty: true }) && element.localName !== "html") return;
        const style = getComputedStyle(element);
        const own = [style.backgroundColor, style.backgroundImage, style.opacity, style.filter].join();
        const ground = own === "rgba(0, 0, 0, 0),none,1,none" ? below : `${below}|${own}`;
        const text = [style.color, style.fill, style.fontSize, style.fontWeight, style.textShadow].join();
        const way = `${element.localName}.${element.getAttribute("class")} ${text} ${ground}`;
        const count = speaks(element) ? (told.get(way) ?? 0) + 1 : Infinity;
        if (count < Infinity) told.set(way, count);
        element.toggleAttribute("data-contrast", count <= 3);
        for (const child of element.children) walk(child, ground);
    };
    walk(document.documentElement, "");
}"""
_RUN = """(rules) => {
    axe.configure({ rules: [{ id: "color-contrast", selector: "[data-contrast]" }] });
    return axe.run({ resultTypes: ["violations"], preload: false, rules }).then(({ violations }) => violations.map(
        ({ id, nodes }) => `${id} × ${nodes.length}: ${nodes.slice(0, 3).map((node) => node.html.slice(0, 160))}`
    ));
}"""


def violations(page: Page, *, colours: bool = True) -> list[str]:
    """Rules that are broken as the page looks now, with how often and the first three places.

    Without `colours` the two rules that look at them, and cost more than all others, are left out.
    """
    if not page.evaluate(_IS_THERE):
        page.evaluate(AXE_SCRIPT)
    if colours:
        page.evaluate(_MARK)
    found: list[str] = page.evaluate(_RUN, {rule: {"enabled": colours} for rule in _COLOURS})
    return found
