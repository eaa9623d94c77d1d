"""Formulas: every trap of the converter, numbers and anchors, mistakes with their lines."""

import re
from collections.abc import Callable

import pytest

from samestep.app.book.markdown.math import FormulaError, convert
from samestep.app.book.markdown.pieces import Document

Html = Callable[..., str]
Mistakes = Callable[..., list[tuple[int, str]]]


def display(tex: str) -> str:
    return convert(tex, True).mathml


def test_a_tag_outside_align_is_cut_out_and_becomes_a_number_with_an_anchor(html: Html) -> None:
    assert html("$$\na=b \\tag{1}\n$$") == (
        '<div class="eq" id="eq-1"><math display="block"><mi>a</mi><mo>=</mo><mi>b</mi></math>'
        '<a class="eqno" href="#eq-1">(1)</a></div>\n'
    )


def test_a_tag_may_be_chinese(html: Html) -> None:
    assert '<a class="eqno" href="#eq-甲">(甲)</a>' in html("$$a\\tag{甲}$$")


def test_a_label_beside_a_tag_is_a_second_anchor(compiled: Callable[..., Document]) -> None:
    document = compiled("$$\na \\tag{1}\\label{eq-loss}\n$$\n\n[式 (1)](#eq-1)，[同一个](#eq-loss)")
    assert document.mistakes == ()
    assert list(document.anchors) == ["eq-1", "eq-loss"]
    assert document.equations == ("eq-1",)


def test_a_label_alone_gives_an_anchor_without_a_number(html: Html) -> None:
    page = html("$$a\\label{eq-x}$$")
    assert 'id="eq-x"' in page
    assert "eqno" not in page


def test_rows_of_an_align_keep_their_own_numbers_and_get_anchors(compiled: Callable[..., Document]) -> None:
    document = compiled("\\begin{align}\na&=b \\tag{4a} \\\\\nc&=d \\notag\n\\end{align}\n")
    assert document.mistakes == ()
    assert document.equations == ("eq-4a",)
    assert 'id="eq-4a"><mtext><a class="eqno" href="#eq-4a">(4a)</a></mtext>' in str(document.pieces[0])


def test_an_equation_environment_is_unwrapped() -> None:
    assert display("\\begin{equation}a\\end{equation}") == display(" a ")


def test_split_is_drawn_as_aligned() -> None:
    inner = "a&=b\\\\c&=d"
    split = f"\\begin{{equation}}\\begin{{split}}{inner}\\end{{split}}\\end{{equation}}"
    assert display(split) == display(f"\\begin{{aligned}}{inner}\\end{{aligned}}")


def test_the_space_after_a_row_is_not_printed() -> None:
    assert "pt" not in re.sub("<[^>]*>", "", display("\\begin{aligned}a&=b\\\\[4pt]c&=d\\end{aligned}"))


def test_macros_that_the_converter_lacks_are_known() -> None:
    assert "𝟙" in display("\\mathds{1}")
    assert "<mtext>x</mtext>" in display("\\mbox{x}")
    assert display("\\sum_{\\substack{i\\\\j}}x").count("<mtr>") == 2


def test_combining_accents_become_spacing_ones_even_when_nested() -> None:
    mathml = display("\\overline{\\overline{\\ell}+\\widehat{g}}")
    assert "\u0332" not in mathml
    assert "\u0302" not in mathml
    assert mathml.count("\u203e") == 2


def test_a_wide_tilde_over_one_letter_is_accepted() -> None:
    assert "~" in display("\\widetilde{\\mathcal L}")


@pytest.mark.parametrize("command", ["boxed", "cancel", "xrightarrow", "overrightarrow"])
def test_what_chromium_does_not_draw_is_refused(command: str) -> None:
    with pytest.raises(FormulaError, match=f"avoid .{command}"):
        convert(f"\\{command}{{x}}", True)


@pytest.mark.parametrize(
    ("tex", "reason"),
    [
        ("\\widehat{xyz}", "one symbol only"),
        ("\\color{red}x", "dark mode"),
        ("\\eqref{1}", "link to the formula"),
        ("a \\\\ b", "needs an environment"),
        ("", "empty"),
        ("a\\tag{1}\\tag{2}", "more than one"),
        ("\\begin{align}a&=b\\end{align}", "every row of align needs"),
        ("\\foo", 'Unknown command "\\\\foo"'),
        ("\\begin{smallmatrix}a\\end{smallmatrix}", "Unknown environment"),
        ("\\text{a $x$ b}", "Math mode within text"),
        ("x^{", "Expected closing"),
    ],
)
def test_a_formula_that_cannot_be_shown_is_refused(tex: str, reason: str) -> None:
    with pytest.raises(FormulaError, match=reason):
        convert(tex, True)


def test_a_mistake_in_a_formula_is_reported_at_its_line_with_its_source_on_the_page(
    compiled: Callable[..., Document],
) -> None:
    document = compiled("一段\n\n$$\na=b\n+\\foo\n\\tag{1}\n$$\n")
    assert [(m.line, m.reason) for m in document.mistakes] == [(5, 'formula: Unknown command "\\foo".')]
    assert '<code class="tex-error">a=b\n+\\foo' in str(document.pieces[0])


def test_the_line_stays_right_after_something_was_cut_out(mistakes: Mistakes) -> None:
    assert mistakes(
        "$$\n\\begin{equation}\n\\begin{split}\na\\\\[4pt]\nb \\foo\n\\end{split}\\tag{1}\n\\end{equation}\n$$"
    ) == [(5, 'formula: Unknown command "\\foo".')]


def test_a_mistake_in_a_paragraph_is_reported_at_its_own_line(mistakes: Mistakes) -> None:
    assert mistakes("$a$ 与\n$b$ 与\n$\\foo$") == [(3, 'formula: Unknown command "\\foo".')]


def test_inline_formulas_need_no_spaces_beside_chinese_or_digits(html: Html) -> None:
    assert html("共$N$个，即$x$之和") == "<p>共<math><mi>N</mi></math>个，即<math><mi>x</mi></math>之和</p>\n"
    assert "<math><mi>x</mi></math>" in html("2$x$3")


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("阈值记作 $c$，范数", "<M>，"),
        ("下标（$r$）从零", "（<M>）"),
        ("the count ($N$), then", "(<M>),"),
        ("the $i$-th row", "<M>-th"),
        ("即 $a$、$b$ 两者", "<M>、"),
        ("乘 2$x$ 得", "2<M>"),
        ("**$c$**，", None),
        ("共 $N$ 个", None),
        ("共$N$个", None),
    ],
)
def test_a_formula_stays_on_one_line_with_what_touches_it(html: Html, source: str, kept: str | None) -> None:
    page = re.sub("<math>.*?</math>", "<M>", html(source))
    spans = re.findall('<span style="white-space:nowrap">(.*?)</span>', page)
    assert spans == ([] if kept is None else [kept])
    assert re.sub("<(?!M)[^>]*>", "", page).strip() == re.sub(r"\$.\$", "<M>", source).replace("**", "")


def test_backslashes_and_stars_in_a_formula_are_left_to_tex(html: Html) -> None:
    assert "∗" in html("$a*b*c\\,\\{x\\}$")


def test_dollar_signs_can_be_printed_and_a_lone_one_is_a_mistake(html: Html, mistakes: Mistakes) -> None:
    assert html("5\\$") == "<p>5$</p>\n"
    assert [line for line, reason in mistakes("价格 $5") if "without its partner" in reason] == [1]


def test_a_display_formula_glued_to_a_paragraph_is_a_mistake(mistakes: Mistakes) -> None:
    assert [(line, "empty line" in reason) for line, reason in mistakes("一段\n$$\na\n$$\n")] == [(2, True)]


def test_a_wide_formula_can_be_scrolled_by_keyboard_and_a_narrow_one_is_no_stop(html: Html) -> None:
    wide = html("$$" + "+".join("abcdefghijklmnopqr") + "\\tag{1}$$")
    assert ' tabindex="0" role="group" aria-label="公式 (1)"' in wide
    assert "tabindex" not in html("$$a=b$$")


def test_a_formula_is_converted_once() -> None:
    assert convert("\\alpha+1", False) is convert("\\alpha+1", False)


def test_names_for_search_are_plain_characters() -> None:
    formula = convert("\\mathcal L_{\\text{global}}=\\mathbf{g}^\\star/\\tau", True)
    assert formula.names.split() == ["L_global", "L", "global", "g", "τ"]
