"""How values read in HTML, and that figures survive any magnitude."""

import math
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from jinja2 import DictLoader, Environment, UndefinedError

from samestep.app.calculators import registry
from samestep.app.instruments.panels import Panels
from samestep.app.paths import Kept, cache_folder, folder
from samestep.app.rendering import scales
from samestep.app.rendering.environment import REASONS, block, brief, environment, number, replica_name
from tests.kit import text_of, tree

floats = st.floats(allow_nan=True, allow_infinity=True)


@pytest.fixture(scope="module")
def jinja() -> Environment:
    return environment(folder("templates"), lambda name: f"/s/{name}", "", Kept(cache_folder() / "templates"))


def small(source: str) -> Environment:
    """An environment with one template, `page`."""
    jinja = environment(Path("."), lambda name: f"/s/{name}", root_path="/wiki/")
    jinja.loader = DictLoader({"page": source})
    return jinja


def shown(source: str, lang: str = "en", **context: Any) -> str:
    return small(source).get_template("page").render(lang=lang, **context)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.4, "0.4"),
        (-0.5, "−0.5"),
        (2.0725389694803913, "2.07254"),
        (-0.0, "0"),
        (1e-12, "1e−12"),
        (-3.5e149, "−3.5e149"),
        (65536.0, "65536"),
        (1234567, "1234567"),
        ("1/8", "1/8"),
        ("-inf", "−inf"),
        (Fraction(-2, 5), "−2/5"),
        (None, "–"),
    ],
)
def test_a_number_reads_with_6_significant_digits_and_a_true_minus_sign(value: Any, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.4, "+0.4"), (-0.5, "−0.5"), (0.0, "0"), ("1/8", "+1/8"), ("inf", "+inf"), ("nan", "nan")]
)
def test_a_signed_number_shows_plus_only_when_it_is_positive(value: Any, text: str) -> None:
    assert number(value, signed=True) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_what_is_shown_is_the_value_to_6_digits(value: float) -> None:
    assert float(number(value).replace("−", "-")) == float(f"{value:.6g}")


def test_a_brief_probability_tells_nearly_0_from_0() -> None:
    assert [brief(p) for p in (0.0, 1e-9, 0.119, 0.99999, 1.0)] == ["0", "≈0", "0.119", "≈1", "1"]


def test_an_output_carries_its_path_and_its_full_value() -> None:
    html = shown('{{ out(view, "reference.grad", signed=true) }}', view={"reference": {"grad": 0.1 + 0.2}})
    exact = repr(0.1 + 0.2)
    assert html == f'<data data-field="reference.grad" data-value="{exact}" value="{exact}">+0.3</data>'


def test_an_output_follows_attributes_keys_and_positions() -> None:
    view = SimpleNamespace(rows=[{"n": 2}, {"n": 8}])
    assert 'data-value="8"' in shown('{{ out(view, "rows.1.n") }}', view=view)


def test_a_missing_output_says_so_with_the_innermost_reason_and_has_no_value() -> None:
    view = {"reason": "zero_count", "current": {"grad": None, "reason": "empty_cell"}}
    zh, en = (shown('{{ out(view, "current.grad") }}', lang, view=view) for lang in ("zh", "en"))
    assert "data-value" not in zh
    assert "不可用" in zh
    assert REASONS["empty_cell"][0] in zh
    assert "undefined" in en
    assert REASONS["empty_cell"][1] in en


def test_a_missing_output_without_a_reason_still_says_so() -> None:
    assert "undefined" in shown('{{ out(view, "x") }}', view={"x": None})


def test_a_long_vector_is_shown_in_part_and_kept_whole() -> None:
    html = shown('{{ out(view, "grad") }}', view={"grad": [float(i) for i in range(20)]})
    assert "… +12]" in html
    assert "19.0]" in html


def test_texts_and_values_are_escaped() -> None:
    html = shown('{{ out(view, "name") }}{{ t("<", "<") }}', view={"name": '"><script>'})
    assert "<script>" not in html
    assert html.endswith("&lt;")


def test_words_in_a_vector_and_in_a_path_are_escaped() -> None:
    html = shown('{{ out(view, "<i>") }}{{ out(view, "flags") }}', view={"<i>": 1, "flags": ["<b>", "&"]})
    assert "<i>" not in html
    assert "<b>" not in html
    assert html.endswith("[&lt;b&gt;, &amp;]</data>")


def test_cells_are_the_outputs_of_a_row_signed_where_a_plus_asks_for_it() -> None:
    view = {"rows": [{"n": 2, "grad": 0.5, "loss": None, "reason": "zero_count"}]}
    html = shown('{{ out_cells(view, "rows.0", ["n", "+grad", "loss"]) }}', view=view)
    outputs = [f'{{{{ out(view, "rows.0.{name}", {sign}) }}}}' for name, sign in (("n", 0), ("grad", 1), ("loss", 0))]
    assert html == shown("\n".join(f"<td>{one}</td>" for one in outputs), view=view)
    assert ">+0.5<" in html


def test_a_missing_output_is_shown_as_a_template_asks() -> None:
    view = {"row": {"n": 2, "loss": None}}
    assert shown('{{ out(view, "row.loss", none="–") }}', view=view) == "–"
    assert shown('{{ out(view, "row.n", none="–") }}', view=view) == shown('{{ out(view, "row.n") }}', view=view)
    assert shown('{{ out_cells(view, "row", ["n", "loss"], none="<") }}', view=view).endswith("</td>\n<td>&lt;</td>")


def rows(source: str, jinja: Environment, **context: Any) -> list[list[str]]:
    """The cells of a table's rows, and what stands below it as a last row."""
    page = tree(jinja.from_string(source).render(lang="en", **context))
    found = [[text_of(cell) for cell in row] for row in page.iter("tr")]
    return found + [[text_of(hint)] for hint in page.iter("p")]


def test_a_table_of_rows_has_the_first_of_them_with_their_places_and_says_how_many_it_leaves_out(
    jinja: Environment,
) -> None:
    call = '{% call(one, place) output.rows("C", ["a", "b"], view, "view.x", 2) %}'
    source = call + "<td>{{ one }}</td><td>{{ place }}</td>{% endcall %}"
    assert rows(source, jinja, view=[5, 6]) == [["a", "b"], ["5", "view.x.0"], ["6", "view.x.1"]]
    *_, last = rows(source, jinja, view=[5, 6, 7])
    assert last[0].startswith("The first 2 of 3 rows")
    *_, last = rows(source.replace('x", 2', 'x", 2, 9'), jinja, view=[5, 6])
    assert last[0].startswith("The first 2 of 9 rows")


def test_a_table_of_names_marks_the_row_of_the_selected_one(jinja: Environment) -> None:
    call = '{% call(name, one, place) output.entries("C", ["a"], view, "x", "q") %}'
    source = call + "<td>{{ name }}{{ one }} {{ place }}</td>{% endcall %}"
    assert rows(source, jinja, view={"p": 1, "q": 2}) == [["a"], ["p1 x.p"], ["q2 x.q"]]
    html = jinja.from_string(source).render(lang="en", view={"p": 1, "q": 2})
    assert html.count("selected") == 1
    assert "x.p" not in html.split("selected")[1]


def test_a_name_that_a_template_does_not_know_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        shown("{{ nothing }}")


def test_texts_are_in_the_language_of_the_context_also_inside_loops_and_macros() -> None:
    source = '{% macro m() %}{{ t("甲", "a") }}{% endmacro %}{% for _ in "xy" %}{{ m() }}{{ t("乙", "b") }}{% endfor %}'
    assert shown(source, "zh") == "甲乙甲乙"
    assert shown(source, "en") == "abab"


def test_fields_and_outputs_are_found_without_an_import_in_the_language_of_the_context(jinja: Environment) -> None:
    source = "{% macro m() %}{{ output.key() }}{% endmacro %}{% for _ in 'x' %}{{ m() }}{% endfor %}"
    source += "{{ field.grid('list', '', '') }}"
    zh, en = (jinja.from_string(source).render(lang=lang) for lang in ("zh", "en"))
    assert "正确" in zh
    assert "right" in en
    assert en.endswith(' data-grid="list"')
    assert jinja.from_string("{% set output = 'its own' %}{{ output }}").render(lang="en") == "its own"


def test_a_calculator_finds_its_own_figure_and_words_without_an_import(jinja: Environment) -> None:
    source = "{{ words.metrics.accuracy }}{% if figure.bars is defined %} drawn{% endif %}"
    panel = SimpleNamespace(name="metric_ledger")
    assert jinja.from_string(source).render(lang="en", panel=panel) == "accuracy drawn"
    with pytest.raises(UndefinedError, match="words"):
        jinja.from_string(source).render(lang="en")


def test_addresses_lie_below_the_root_path() -> None:
    assert shown('{{ url("/zh/") }} {{ asset("x.css") }}') == "/wiki/zh/ /s/x.css"


def test_one_block_can_be_rendered_by_itself() -> None:
    jinja = small("a{% block middle %}{{ t('中', 'm') }}{% endblock %}z")
    assert block(jinja, "page", "middle", {"lang": "zh"}) == "中"
    with pytest.raises(KeyError):
        block(jinja, "page", "end", {"lang": "zh"})


def test_replicas_have_letters_and_then_numbers() -> None:
    assert [replica_name(i) for i in (0, 1, 25, 26)] == ["A", "B", "Z", "R26"]


@given(floats, floats, floats)
def test_a_linear_scale_never_leaves_its_range(low: float, high: float, value: float) -> None:
    first, last = scales.extent([low, high])
    place = scales.linear(first, last, 10, 110)(value)
    assert 10 <= place <= 110


@given(st.lists(floats), floats)
def test_a_scale_of_ratios_never_leaves_its_range_and_has_1_in_its_middle(values: list[float], value: float) -> None:
    scale = scales.log(*scales.ratio_extent(values), 0, 100)
    assert 0 <= scale(value) <= 100
    assert scale(1) == pytest.approx(50, abs=0.01)


def test_equal_factors_are_equal_lengths_on_a_logarithmic_scale() -> None:
    scale = scales.log(0.125, 8, 0, 60)
    assert scale.span(1, 2) == scale.span(2, 4) == scale.span(1, "1/2") == 10


@given(floats, floats, st.integers(2, 9))
def test_ticks_are_few_round_and_inside(low: float, high: float, count: int) -> None:
    first, last = sorted(scales.extent([low, high]))
    found = scales.ticks(first, last, count)
    assert len(found) <= 2 * count + 2
    assert all(math.isfinite(tick) for tick in found)


def test_ticks_are_the_numbers_one_would_write() -> None:
    assert scales.ticks(-0.05, 0.05, 5) == [-0.04, -0.02, 0.0, 0.02, 0.04]


@given(st.lists(floats, min_size=1, max_size=12))
def test_boxes_fit_into_their_room(sizes: list[float]) -> None:
    placed = scales.boxes(sizes, 340, 120, 5)
    x, side = placed[-1]
    assert x + side <= 340.5
    assert all(0 <= side <= 120 for _, side in placed)


def test_boxes_keep_the_proportions_of_3_4_5() -> None:
    sides = [side for _, side in scales.boxes([3, 4, 5], 340, 120, 10)]
    assert sides == [72, 96, 120]


def test_stops_are_round_decimals_and_hold_1() -> None:
    stops = scales.stops(-2, 2)
    assert stops[:3] == ["0.01", "0.012", "0.015"]
    assert stops[scales.nearest(stops, "1")] == "1"
    assert stops[scales.nearest(stops, "0.07")] == "0.08"
    assert scales.nearest(stops, "1e9") == len(stops) - 1
    assert stops == sorted(stops, key=float)


@pytest.mark.parametrize(("text", "position"), [("5", "5"), ("1/4", "0.25"), ("abc", "0"), ("", "0"), ("nan", "0")])
def test_a_slider_stands_at_the_typed_number_or_at_its_start(text: str, position: str) -> None:
    assert scales.slider_position(text, 0) == position


def test_shades_go_from_the_first_class_to_the_last() -> None:
    assert [scales.shade(p) for p in (0, 0.5, 1, 2, math.nan)] == [0, 4, 8, 8, 0]


STATES: dict[str, list[dict[str, str]]] = {
    "replica_ledger": [
        {},
        {"a": "0"},
        {"a": "0", "b": "0"},
        {"a": "1/3"},
        {"counts": "3,1;2;8,0,0", "gradients": "1,-1;2;3,1,0"},
        {"target_a": "1e150", "target_b": "-1e150"},
        {"a": "5", "b": "5"},
        {"target_a": "1", "target_b": "-1", "a": "5", "b": "5"},
    ],
    "info_nce": [
        {},
        {"tau": "1e-4", "scheme": "local_loss_gather_with_grad_times_P"},
        {"q": "1,0;0,1;1,1", "d": "1,0;0,1;1,1", "ranks": "2,1", "similarity": "cosine", "direction": "bidirectional"},
        {"q": ";".join(["1"] * 80), "d": ";".join(["1"] * 80)},
        {"q": "1", "d": "1"},
    ],
    "clip_ownership": [
        {"replicated": replicated, "scheme": scheme, "norm_type": p}
        for replicated in ("", "96")
        for scheme in ("global_owner", "per_rank", "every_copy")
        for p in ("2", "1", "inf")
    ]
    + [{"overflow": "1"}, {"gradients": "0;0"}, {"gradients": "1e300;1e300"}, {"gradients": "nan;1"}],
    "overflow_skip": [{}, {"scaled_grads": "1;2"}, {"scaled_grads": "inf;nan"}, {"scale": "65536;32768"}],
    "gradient_scaling": [
        {},
        {"scale": "loss"},
        {"loss_reduction": "sum", "all_reduce": "mean"},
        {"batch": "1000000000"},
    ],
}


@pytest.mark.parametrize(("name", "fields"), [(name, fields) for name in STATES for fields in STATES[name]])
@pytest.mark.parametrize("lang", ["zh", "en"])
def test_every_state_has_a_verdict_first_and_no_number_that_is_not_one(
    jinja: Environment, name: str, fields: dict[str, str], lang: Any
) -> None:
    panels = Panels(jinja, "")
    panel = panels.panel(lang, registry()[name], fields)
    assert panel.view is not None
    html = panels.result(panel)
    assert html.lstrip().startswith('<p class="verdict')
    assert 'data-value="None"' not in html
    assert ' x="nan"' not in html


@pytest.mark.parametrize("name", list(STATES))
def test_refused_inputs_keep_what_was_typed_and_say_why_beside_the_field(jinja: Environment, name: str) -> None:
    panels = Panels(jinja, "")
    field = next(iter(registry()[name].query.model_fields))
    html = panels.html(panels.panel("en", registry()[name], {field: '"<oops'}))
    assert "&lt;oops" in html
    assert "<oops" not in html
    assert 'aria-invalid="true"' in html
    assert f'data-error-for="{field}"' in html


def test_a_number_is_a_text_field_for_what_a_number_input_would_drop(jinja: Environment) -> None:
    panels = Panels(jinja, "")
    html = panels.html(panels.panel("en", registry()["replica_ledger"], {"a": "1/3"}))
    assert '<input type="text" data-step="1" inputmode="decimal" id="replica_ledger-a" name="a" value="1/3"' in html


def test_inside_a_chapter_names_carry_the_prefix_and_other_panels_are_kept(jinja: Environment) -> None:
    panels = Panels(jinja, "")
    panel = panels.panel(
        "zh", registry()["info_nce"], {}, place="/zh/x#second", identity="second", others=[("first.a", "5")]
    )
    html = panels.html(panel)
    assert 'name="second.tau"' in html
    assert 'id="second-tau"' in html
    assert '<input type="hidden" name="first.a" value="5">' in html


def test_only_the_number_of_a_slider_has_a_name(jinja: Environment) -> None:
    panels = Panels(jinja, "")
    html = panels.html(panels.panel("en", registry()["info_nce"], {}))
    assert html.count('name="tau"') == 1
    assert 'data-twin="info_nce-tau"' in html
    assert 'aria-valuetext="1"' in html


def test_the_first_submit_button_is_the_one_that_sends_an_address(jinja: Environment) -> None:
    """Enter presses a form's first submit button."""
    panels = Panels(jinja, "")
    for name in registry():
        html = panels.html(panels.panel("en", registry()[name], {}))
        assert html.index('<button type="submit">') < html.index('formmethod="post"')


@pytest.mark.parametrize(
    "text", ["1e308", "1.7976931348623157e308", "5e-324", "-1e308", "0", "", "nan", "inf", "1/3", "x"]
)
def test_a_slider_of_any_number_has_a_range_that_html_takes(text: str) -> None:
    """Doubled or counted by powers of ten, no end of a range leaves float64."""
    assert float(scales.reach(32, text)) >= 32
    assert float(scales.reach(32, text)) < float("inf")
    stops = [float(stop) for stop in scales.stops(-3, 3, text)]
    assert stops == sorted(set(stops))
    assert stops[-1] < float("inf")
    assert 0 <= scales.nearest(scales.stops(-3, 3, text), text) < len(stops)
