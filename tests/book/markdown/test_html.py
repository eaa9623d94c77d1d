"""The HTML of a text that uses everything: parsed strictly, ids unique, headings in order."""

from collections.abc import Callable

import html5lib
import pytest

EVERYTHING = """
开头，式 [(1)](#eq-1) 与[后一章](ch:later)，见[论文](src:paper)。[^a]

[^a]: 注一，$N$。

    注一的第二段。

{#sec-a kicker="01 / COUNT"}
## 先数 $N$，再[除]{.small}

$$
\\mathcal L_{\\text{全局}}=\\frac{\\sum_r S_r}{N} \\tag{1}\\label{eq-loss}
$$

::: caption
$S_r$：和。[+0.4]{calc="average?a=2&b=8" field="grad"}
:::

{#sec-b}
### 小节

:::: cards
::: card "**A**"
- 一

  $$x$$

- 二^[行内注]
:::
::: card "B"
> 引 **用**

```{calculator} average
a = 3
```
:::
::::

:::: steps
::: step "COUNT|确定有效窗口"
句子
:::
::::

{.wide}
| a | b |
|---|--:|
| [0.31]{evidence="update" field="rows.means.max_abs_difference"} | `cd` |

::::: exercise "算"
题目

:::: answer
1. 一
2. 二

::: note
嵌套
:::
::::
:::::

```python
def f(x): return x < 1 and "a"  # 一行相当长的注释，长到需要左右滚动才能看完
```

```{evidence} unpublished
```

术语
: 定义 ~~旧~~

\\begin{align}
a&=b \\tag{2a} \\\\
c&=d \\notag
\\end{align}

*[^a] 再引一次*
"""


@pytest.fixture
def whole(html: Callable[..., str]) -> str:
    return f"<!DOCTYPE html><html lang=zh><head><title>x</title></head><body>{html(EVERYTHING)}</body></html>"


def test_the_html_has_no_parse_error(whole: str) -> None:
    html5lib.HTMLParser(strict=True).parse(whole)


def test_ids_are_unique_and_every_inner_link_has_its_target(whole: str) -> None:
    tree = html5lib.parse(whole, namespaceHTMLElements=False)
    ids = [node.get("id") for node in tree.iter() if node.get("id")]
    links = {node.get("href")[1:] for node in tree.iter("a") if node.get("href", "").startswith("#")}
    assert len(ids) == len(set(ids))
    assert links - set(ids) == {"source-paper"}, "the list of sources is the page's"


def test_lists_hold_items_only_and_paragraphs_hold_no_blocks(whole: str) -> None:
    tree = html5lib.parse(whole, namespaceHTMLElements=False)
    assert {child.tag for tag in ("ol", "ul") for node in tree.iter(tag) for child in node} == {"li"}
    assert not [
        node for p in tree.iter("p") for node in p.iter() if node.tag in ("div", "p", "ul", "figure") and node is not p
    ]


def test_no_link_stands_inside_a_link(whole: str) -> None:
    tree = html5lib.parse(whole, namespaceHTMLElements=False)
    assert not [inner for a in tree.iter("a") for inner in a.iter("a") if inner is not a]


def test_headings_are_in_order(whole: str) -> None:
    tree = html5lib.parse(whole, namespaceHTMLElements=False)
    assert [node.tag for node in tree.iter() if node.tag in ("h1", "h2", "h3", "h4")] == ["h2", "h3"]


def test_both_languages_give_the_same_ids(compiled: Callable[..., object]) -> None:
    zh, en = (compiled(EVERYTHING, lang) for lang in ("zh", "en"))
    assert zh.anchors == en.anchors  # type: ignore[attr-defined]
