import html
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, strategies as st
from markupsafe import Markup

from samestep.app.book.excerpts import REACH
from samestep.app.book.search import MAX_QUERY, Hit, SearchIndex, Section

CORPUS = (
    Section("zh", "parallel", "并行正确性", "", "", "同一步更新，换一种切法还是同一步吗？本章从副本的计数说起。"),
    Section(
        "zh",
        "parallel",
        "并行正确性",
        "副本的权重",
        "sec-weights",
        "每张卡先求本地平均，再由 DDP 对副本取平均；计数不同，梯度就偏向短的一方。P/N 是修正因子。",
    ),
    Section(
        "zh",
        "parallel",
        "并行正确性",
        "全局范数与裁剪",
        "sec-clip",
        "先合并各分片的平方和，得到全局范数，再决定系数。每张卡自己裁剪会得到不同的方向。",
        (r"\label{eq-clip} \min\left(1, \frac{c}{n}\right)",),
    ),
    Section(
        "zh",
        "parallel",
        "并行正确性",
        "一起跳过",
        "sec-skip",
        "裁剪之前先看溢出。裁剪、裁剪、还是裁剪：只有一张卡跳过而别的卡更新，全局的参数就分叉了，范数也不再可比。",
    ),
    Section(
        "zh",
        "infonce",
        "InfoNCE 的局部导数",
        "温度的作用",
        "sec-tau",
        "温度越低，分布越尖。可学习的温度也有导数。",
        (r"\mathcal{L} = -\log\frac{e^{s/\tau}}{\sum_j e^{s_j/\tau}}", r"\lambda_{\max}"),
    ),
    Section(
        "en", "parallel", "Parallel correctness", "", "", "Is it still the same update when it is cut differently?"
    ),
    Section(
        "en",
        "parallel",
        "Parallel correctness",
        "The weights of replicas",
        "sec-weights",
        "Each rank takes a local mean and the DDP average then counts every replica once. Gradients of short replicas"
        " weigh too much; P/N corrects it. No reader normally writes it that way.",
    ),
    Section(
        "en",
        "parallel",
        "Parallel correctness",
        "Clipping and the global norm",
        "sec-clip",
        "A gradient is clipped by the norm of the whole model. A rank that clips its own shard turns the direction.",
    ),
    Section(
        "en",
        "parallel",
        "Parallel correctness",
        "Skip together",
        "sec-skip",
        "Look for overflow before the gradient is used: a gradient with an inf in it, a gradient with a nan, any bad"
        " gradient. The average is synchronized and accumulated only after that.",
    ),
    Section(
        "en",
        "infonce",
        "Local derivatives of InfoNCE",
        "What the temperature does",
        "sec-tau",
        "A low temperature sharpens the distribution. Hölder's inequality bounds ＡＭＰ rounding.",
        (r"\tau",),
    ),
    Section("en", "infonce", "Local derivatives of InfoNCE", "Markup", "sec-html", "Write <b>logits & labels</b>."),
)


@pytest.fixture(scope="module")
def index() -> SearchIndex:
    return SearchIndex(CORPUS)


def places(hits: list[Hit]) -> list[tuple[str, str]]:
    return [(hit.lang, hit.anchor) for hit in hits]


def whole(section: Section) -> str:
    return "\n".join((section.chapter_title, section.heading, section.text))


def marked(snippet: str) -> list[str]:
    return re.findall("<mark>(.*?)</mark>", snippet)


def plain(snippet: str) -> str:
    return html.unescape(re.sub("</?mark>", "", snippet))


def sections(*texts: str) -> SearchIndex:
    return SearchIndex(Section("en", "s", "Title", "", str(number), text) for number, text in enumerate(texts))


def test_of_a_sentence_that_stands_nowhere_the_sections_with_most_of_it_come_first() -> None:
    index = sections("The loss.", "The loss of a scheduler with warm-up.", "A scheduler.")
    assert next(hit.anchor for hit in index.search("loss scheduler warm-up xylophone", "en")) == "1"


def test_a_sentence_that_few_sections_hold_is_followed_by_those_that_hold_most_of_it() -> None:
    index = sections("A scheduler steps.", "A scheduler steps in every microbatch.", "A microbatch steps.", "Nothing.")
    found = [hit.anchor for hit in index.search("scheduler steps microbatch", "en")]
    assert found[0] == "1"
    assert sorted(found) == ["0", "1", "2"]


def test_words_that_stand_as_typed_come_before_the_same_words_apart() -> None:
    index = sections("Only the last microbatch trains, it is said.", "The last of them only; microbatch. Only, last.")
    assert [hit.anchor for hit in index.search("only the last microbatch", "en")] == ["0", "1"]


@pytest.mark.parametrize("query", ["梯度", "裁剪", "副本", "温度", "卡", "全局范数"])
def test_chinese_finds_exactly_the_sections_with_the_substring(index: SearchIndex, query: str) -> None:
    truth = {(section.lang, section.anchor) for section in CORPUS if query in whole(section)}
    assert 0 < len(truth) < len(CORPUS)
    assert sorted(places(index.search(query, "zh", limit=100))) == sorted(truth)


def test_words_that_stand_apart_are_not_the_phrase(index: SearchIndex) -> None:
    """`sec-skip` has 全局 and 范数, but not 全局范数."""
    assert ("zh", "sec-skip") in places(index.search("全局", "zh"))
    assert ("zh", "sec-skip") in places(index.search("范数", "zh"))
    assert ("zh", "sec-skip") not in places(index.search("全局范数", "zh"))


_HAN = st.text("梯度裁剪卡，", min_size=1, max_size=12)


@given(st.lists(_HAN, min_size=1, max_size=6), st.text("梯度裁剪卡", min_size=1, max_size=4))
def test_any_han_substring_is_found_where_it_stands(texts: list[str], query: str) -> None:
    sections = [Section("zh", "s", "题", "节", str(number), text) for number, text in enumerate(texts)]
    truth = {str(number) for number, text in enumerate(texts) if query in text}
    found = {hit.anchor for hit in SearchIndex(sections).search(query, "zh")}
    assert found == truth or not truth  # without a literal hit the pairs are looked for


@pytest.mark.parametrize(
    ("query", "anchors"),
    [
        ("gradients", {"sec-weights", "sec-clip", "sec-skip"}),  # Gradients, gradient, gradient
        ("gradient", {"sec-weights", "sec-clip", "sec-skip"}),
        ("clips", {"sec-clip"}),  # clipping, clipped, clips
        ("DDP average", {"sec-weights"}),  # sec-skip has only the average
        ("averaging", {"sec-weights", "sec-skip"}),
    ],
)
def test_english_words_meet_by_their_stem(index: SearchIndex, query: str, anchors: set[str]) -> None:
    assert {anchor for lang, anchor in places(index.search(query, "en")) if lang == "en"} == anchors


@pytest.mark.parametrize(
    ("query", "anchor"),
    [
        ("synchron", "sec-skip"),
        ("synchroniz", "sec-skip"),  # of synchronized, whose stem `synchron` does not begin so
        ("accumulat", "sec-skip"),
        ("look before the overfl", "sec-skip"),
        ("temp", "sec-tau"),
    ],
)
def test_the_last_word_may_be_unfinished(index: SearchIndex, query: str, anchor: str) -> None:
    assert places(index.search(query, "en")) == [("en", anchor)]


def test_only_the_last_word_may_be_unfinished(index: SearchIndex) -> None:
    assert marked(index.search("before overfl", "en")[0].snippet) == ["overflow", "before"]
    assert marked(index.search("overfl before", "en")[0].snippet) == ["before"]


def test_a_word_that_begins_nothing_finds_nothing(index: SearchIndex) -> None:
    assert index.search("accumulatio", "en") == []  # accumulated has the same root, but is not begun so


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("裁剪", ("zh", "sec-clip")),  # sec-skip says it four times, in its text only
        ("副本", ("zh", "sec-weights")),
        ("温度", ("zh", "sec-tau")),
        ("全局范数", ("zh", "sec-clip")),
        ("global norm", ("en", "sec-clip")),
        ("temperature", ("en", "sec-tau")),
        ("replicas", ("en", "sec-weights")),
        ("正确性", ("zh", "")),  # a chapter's title leads to its opening
        ("correctness", ("en", "")),
    ],
)
@pytest.mark.parametrize("lang", ["zh", "en"])
def test_headings_and_titles_come_first_whatever_the_reader_speaks(
    index: SearchIndex, query: str, best: tuple[str, str], lang: str
) -> None:
    assert places(index.search(query, lang))[0] == best


def test_the_readers_language_comes_first_and_in_it_a_heading_passes_a_text_that_repeats_the_word() -> None:
    sections = [
        Section("zh", "a", "甲", "其他", "loud", "FSDP 分片。" * 40),
        Section("zh", "a", "甲", "FSDP", "right", "用前先收集。" * 5),
        Section("en", "b", "Other", "FSDP", "foreign", "Shards are gathered before use. " * 5),
        *(Section("en", "c", "Third", "Nothing", f"n{number}", "Nothing here.") for number in range(8)),
    ]
    found = places(SearchIndex(sections).search("FSDP", "zh"))
    assert found == [("zh", "right"), ("zh", "loud"), ("en", "foreign")]


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_of_equal_sections_the_readers_language_is_first(lang: str) -> None:
    twins = [Section(one, "a", "FSDP", "FSDP", "sec", "FSDP") for one in ("zh", "en")]
    for order in (twins, twins[::-1]):
        assert SearchIndex(order).search("FSDP", lang)[0].lang == lang


def test_without_a_literal_hit_all_pairs_then_any_pair(index: SearchIndex) -> None:
    sections = [
        Section("zh", "a", "甲", "一", "both", "梯度很大，度裁不是词，裁剪有用。"),
        Section("zh", "a", "甲", "二", "one", "只有裁剪。"),
        Section("zh", "a", "甲", "三", "none", "别的。"),
    ]
    assert places(SearchIndex(sections).search("梯度裁剪", "zh")) == [("zh", "both")]
    assert {anchor for _, anchor in places(SearchIndex(sections[1:]).search("梯度裁剪", "zh"))} == {"one"}
    assert not any("梯度裁剪" in whole(section) for section in CORPUS)
    assert places(index.search("梯度裁剪", "en"))[0] == ("zh", "sec-clip")


def test_common_words_do_not_hide_a_hit(index: SearchIndex) -> None:
    assert places(index.search("What is the temperature of", "en"))[0] == ("en", "sec-tau")


@pytest.mark.parametrize("query", ["ＤＤＰ", "ddp", "DDP", "Ｄdp　"])
def test_width_and_case_make_no_difference(index: SearchIndex, query: str) -> None:
    hits = index.search(query, "en")
    assert set(places(hits)) == {("zh", "sec-weights"), ("en", "sec-weights")}
    assert all(marked(hit.snippet) == ["DDP"] for hit in hits)


@pytest.mark.parametrize(("query", "shown"), [("AMP", "ＡＭＰ"), ("holder", "Hölder")])
def test_wide_and_accented_letters_of_the_text_are_found_and_shown_as_written(
    index: SearchIndex, query: str, shown: str
) -> None:
    (hit,) = index.search(query, "en")
    assert marked(hit.snippet) == [shown]


@pytest.mark.parametrize("query", ["τ", "tau", "lambda", "λ", "eq-clip"])
def test_formulas_are_found_by_symbol_name_and_label(index: SearchIndex, query: str) -> None:
    anchor = "sec-clip" if query == "eq-clip" else "sec-tau"
    assert places(index.search(query, "zh"))[0] == ("zh", anchor)


@pytest.mark.parametrize("query", ["frac", "mathcal", "left"])
def test_tex_commands_are_not_words(index: SearchIndex, query: str) -> None:
    assert index.search(query, "zh") == []


def test_a_short_word_lights_up_only_as_a_whole_word(index: SearchIndex) -> None:
    hits = {hit.lang: hit for hit in index.search("P/N", "en")}
    assert set(hits) == {"zh", "en"}
    assert marked(hits["en"].snippet) == ["P", "N"]  # not `No`, `normally`, `per`
    assert marked(hits["zh"].snippet) == ["P", "N"]


def test_a_stem_lights_up_the_whole_form(index: SearchIndex) -> None:
    hits = {hit.anchor: marked(hit.snippet) for hit in index.search("gradients", "en")}
    assert hits["sec-weights"] == ["Gradients"]
    assert hits["sec-clip"] == ["gradient"]
    assert hits["sec-skip"] == ["gradient"] * 4


def test_only_pieces_that_were_meant_light_up() -> None:
    """A run that stands nowhere is broken into the longest pieces that do, not into all pairs: 存不 is no word."""
    section = Section("zh", "a", "甲", "一", "x", "显存与内存不足。")
    (hit,) = SearchIndex([section]).search("显存不足", "zh")
    assert hit.snippet == "<mark>显存</mark>与内存<mark>不足</mark>。"


def test_a_word_never_goes_on_from_one_cell_to_the_next() -> None:
    found = SearchIndex([Section("zh", "a", "甲", "一", "x", "梯度\n\n裁剪\n\n全局\n范数")])
    assert found.search("全局范数", "zh")[0].snippet == "梯度 裁剪 <mark>全局范数</mark>"
    assert found.unknown("梯度裁剪") == ["梯度裁剪"]


SYNONYMS = [("负例", "负样本", "negatives"), ("全局批", "global batch"), ("显存", "OOM", "GPU memory")]


@pytest.mark.parametrize(
    ("query", "text", "mark"),
    [
        ("负样本", "每个查询的负例都来自别处。", "负例"),
        ("negatives", "每个查询的负例都来自别处。", "负例"),
        ("OOM", "it runs out of GPU memory there", "GPU memory"),
        ("gpu memory", "显存装不下", "显存"),
        ("全局批", "The global batch is what counts.", "global batch"),
    ],
)
def test_words_that_mean_the_same_stand_for_each_other(query: str, text: str, mark: str) -> None:
    (hit,) = SearchIndex([Section("zh", "a", "甲", "一", "x", text)], SYNONYMS).search(query, "zh")
    assert marked(hit.snippet) == [mark]


def test_a_synonym_is_a_whole_word() -> None:
    found = SearchIndex([Section("en", "a", "A", "B", "x", "zoom into the room; a GPU and memory apart")], SYNONYMS)
    assert found.search("OOM", "en") == []


def test_words_that_stand_nowhere_are_named(index: SearchIndex) -> None:
    assert index.unknown("gradient xylophone 裁剪 斑马") == ["xylophone", "斑马"]
    assert index.unknown("gradient") == []


@pytest.mark.parametrize("query", ["logits", "labels", "<b>logits", "b"])
def test_a_snippet_escapes_the_text(index: SearchIndex, query: str) -> None:
    (hit,) = [hit for hit in index.search(query, "en") if hit.anchor == "sec-html"]
    assert isinstance(hit.snippet, Markup)
    assert set(re.findall("<[^>]*>", hit.snippet)) == {"<mark>", "</mark>"}
    assert plain(hit.snippet) == "Write <b>logits & labels</b>."


def test_a_snippet_is_cut_round_the_densest_hits() -> None:
    far = "The norm is far away. " + "Some other words stand here. " * 20
    text = far + "Here the global norm and the clipped norm meet. " + "Again some other words. " * 20
    (hit,) = SearchIndex([Section("en", "a", "A", "B", "x", text)]).search("clip global norm", "en")
    assert marked(hit.snippet) == ["global", "norm", "clipped", "norm"]
    assert hit.snippet.startswith("…")
    assert hit.snippet.endswith("…")
    assert REACH < len(plain(hit.snippet)) <= 2 * REACH + 2
    assert f" {plain(hit.snippet).strip('…')} " in text  # no word is cut


def test_a_snippet_joins_lines_that_chinese_text_breaks() -> None:
    section = Section("zh", "a", "甲", "一", "x", "先合并全局\n  范数，\n再用 DDP\n平均")
    (hit,) = SearchIndex([section]).search("全局范数", "zh")
    assert hit.snippet == "先合并<mark>全局范数</mark>，再用 DDP 平均"


def test_a_hit_outside_the_text_shows_the_beginning_of_the_text(index: SearchIndex) -> None:
    hit = index.search("Parallel correctness", "en")[0]
    assert hit == Hit("en", "parallel", "", "Parallel correctness", "", Markup(CORPUS[5].text))


_WORDS = st.lists(
    st.sampled_from(["梯度", "裁剪", "卡", "，", "gradients ", "scaling", " ", "<b>", "&", "\n", "normalized "]),
    max_size=120,
).map("".join)


@given(_WORDS, st.sampled_from(["梯度裁剪", "卡", "gradient", "scale 裁", "normal", "b", "剪 normaliz"]))
def test_a_snippet_is_the_text_and_marks_lie_in_it(text: str, query: str) -> None:
    for hit in SearchIndex([Section("zh", "a", "梯度", "gradient scale 卡", "x", text)]).search(query, "zh"):
        shown = plain(hit.snippet).removeprefix("…").removesuffix("…")
        lines = re.sub(r"(?<=[梯度裁剪卡，])[^\S\n]*\n[^\S\n]*(?=[梯度裁剪卡，])", "", text)
        joined = re.sub(r"\s+", " ", lines).strip()
        assert shown in joined
        assert hit.snippet.count("<mark>") == hit.snippet.count("</mark>")


ODD_QUERIES = [
    "",
    " \t\n",
    '"',
    '""',
    '"gradient',
    "*",
    "grad*",
    "NEAR(",
    "NEAR(gradient clip, 2)",
    "heading:clip",
    "{heading title}: clip",
    "-clip",
    "^clip",
    "clip AND",
    "OR",
    "NOT clip",
    "AND OR NOT",
    "'; drop table entries; --",
    "entries",
    "\0",
    "梯度\0裁剪",
    "🔥🧊",
    "\ud800",
    "𠀀𠀁",
    "\U0001e900\U0001e922",
    "½ ﬁ İ ß",
    "\u0301\u0302",
    "(" * 500,
    "梯度" * 5_000,
    "一二三四五六七八九十" * 1_000,
    "gradient " * 1_200,
    " ".join(f"w{number}" for number in range(2_000)),
    "g" * 10_000,
]


@pytest.mark.parametrize("query", ODD_QUERIES, ids=lambda query: ascii(query)[:24])
def test_an_odd_query_is_only_text(index: SearchIndex, query: str) -> None:
    hits = index.search(query, "zh")
    assert all(set(re.findall("<[^>]*>", hit.snippet)) <= {"<mark>", "</mark>"} for hit in hits)
    assert index.search("温度", "zh")


@pytest.mark.parametrize(
    ("query", "same"), [('"clip"', "clip"), ("clip*", "clip"), ("^clip:", "clip"), ("(norm", "norm")]
)
def test_operators_of_the_engine_mean_nothing(index: SearchIndex, query: str, same: str) -> None:
    assert index.search(query, "en") == index.search(same, "en") != []


def test_a_column_name_is_a_word_like_any_other() -> None:
    sections = [Section("en", "a", "A", "Clip", "right", "text"), Section("en", "a", "A", "B", "named", "heading clip")]
    assert places(SearchIndex(sections).search("heading:clip", "en")) == [("en", "named")]


@given(st.text(st.characters(), max_size=300), st.sampled_from(["zh", "en", "", "fr"]), st.integers(-1, 40))
def test_no_text_raises(index: SearchIndex, query: str, lang: str, limit: int) -> None:
    assert len(index.search(query, lang, limit)) <= max(limit, 0)


@given(st.lists(st.sampled_from(["梯", "度", "卡", "clip", "NEAR", "(", ")", '"', "*", ":", "-", "^", " ", "+", "OR"])))
def test_no_mixture_of_operators_raises(index: SearchIndex, pieces: list[str]) -> None:
    index.search("".join(pieces), "zh")


@given(st.text(max_size=200), st.text(max_size=200), st.text(max_size=20))
def test_no_section_raises(text: str, title: str, query: str) -> None:
    found = SearchIndex([Section("en", "a", title, title, "x", text, (text,))])
    for hit in [*found.search(query, "en"), *found.search(text, "en"), *found.search(title, "en")]:
        assert set(re.findall("<[^>]*>", hit.snippet)) <= {"<mark>", "</mark>"}


def test_a_query_is_read_up_to_its_limit(index: SearchIndex) -> None:
    assert index.search(" " * (MAX_QUERY - 2) + "温度", "zh")
    assert index.search(" " * MAX_QUERY + "温度", "zh") == []


def test_the_limit_cuts_the_same_order(index: SearchIndex) -> None:
    assert index.search("卡", "zh", limit=2) == index.search("卡", "zh")[:2]


def test_an_empty_index_finds_nothing() -> None:
    assert SearchIndex([]).search("温度", "zh") == []


def test_threads_share_one_index(index: SearchIndex) -> None:
    queries = ["梯度", "gradients", "DDP average", "卡", "全局范数", "synchroniz"] * 30
    alone = [index.search(query, "en") for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: index.search(query, "en"), queries)) == alone


class _WithoutFts5(sqlite3.Connection):
    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        return super().execute(sql.replace("using fts5", "using fts5_that_was_not_built_in"), *arguments)


def test_a_missing_fts5_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **more: connect(*args, **more, factory=_WithoutFts5))
    with pytest.raises(RuntimeError, match="search needs SQLite with FTS5"):
        SearchIndex(CORPUS)
