"""Figures: they fill their column, and their words can be read on a phone and do not run into each other."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from samestep.app.calculators import registry

Open = Callable[..., Page]

# the results of every instrument, one after the other in the frame of the page's own
GATHER = """async (names) => {
  const body = document.querySelector("[data-body]");
  const answers = await Promise.all(names.map((name) => fetch(`/en/calculators/${name}/result`)));
  body.innerHTML = (await Promise.all(answers.map((answer) => answer.text()))).join("");
  return [...body.querySelectorAll("figure .figure")].map((figure) => {
    const box = figure.getBoundingClientRect();
    const scale = figure.getScreenCTM().a;
    const texts = [...figure.querySelectorAll("text, tspan")].filter((text) => text.textContent.trim());
    const lines = texts.filter((text) => text.matches("text"));
    const boxes = lines.map((text) => [text.textContent, text.getBoundingClientRect()]);
    const pairs = boxes.flatMap((one, i) => boxes.slice(i + 1).map((two) => [one, two]));
    const shared = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 &&
      Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 0.35 * Math.min(a.height, b.height);
    const over = ({ left, right }) => Math.max(right - box.right, box.left - left);
    return {
      name: figure.getAttribute("aria-labelledby"),
      words: Math.min(...texts.map((text) => parseFloat(getComputedStyle(text).fontSize) * scale)),
      outside: Math.max(...texts.map((text) => over(text.getBoundingClientRect()))),
      share: box.width / figure.closest("figure").getBoundingClientRect().width,
      crossed: pairs.filter(([one, two]) => shared(one[1], two[1])).map(([one, two]) => [one[0], two[0]]),
      plane: figure.classList.contains("plane"),
    };
  });
}"""


@pytest.mark.parametrize("width", [390, 1280])
def test_every_figure_fills_its_column_and_its_words_have_11_pixels_and_keep_apart(open_page: Open, width: int) -> None:
    page = open_page("/en/calculators/replica_ledger", viewport={"width": width, "height": 844})
    figures: list[dict[str, Any]] = page.evaluate(GATHER, list(registry()))
    assert len(figures) > len(registry())
    for figure in figures:
        assert figure["words"] >= 10.99, figure
        assert figure["outside"] < 12, figure  # within the panel's edge
        assert figure["crossed"] == [], figure
        assert figure["share"] > 0.9 or (figure["plane"] and width == 1280), figure
