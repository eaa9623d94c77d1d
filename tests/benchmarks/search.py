"""A query of the whole book's search, beside the plainest one: a look through every section's text.

    python tests/benchmarks/search.py

The quickest of several runs each, so that other work on the machine does not count.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".src"))

from samestep.app.book.chapters import load_book
from samestep.app.book.search import SearchIndex, Section
from samestep.app.web.search_entries import _chapters

QUERIES = ("梯度", "裁剪", "副本", "卡", "全局范数", "gradients", "DDP average", "num_items_in_batch")
RUNS = 8


def quickest(work: Callable[[], object]) -> float:
    """Seconds of the quickest run."""
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def scanned(sections: list[Section], query: str) -> list[Section]:
    """The baseline: sections whose text holds the query as it stands."""
    return [section for section in sections if query.lower() in section.text.lower()]


def main() -> None:
    sections = list(_chapters(load_book()))
    index = SearchIndex(sections)
    for query in QUERIES:
        ours, plain = quickest(partial(index.search, query, "zh")), quickest(partial(scanned, sections, query))
        print(f"{query:24} {1000 * ours:6.2f} ms, {ours / plain:5.2f} × a look through every section")


if __name__ == "__main__":
    main()
