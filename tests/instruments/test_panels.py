"""Panels: what a page shows is what JSON says, and a form that is refused keeps all that was typed."""

import json
import math
import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from starlette.testclient import TestClient

from samestep.app.book.chapter import Chapter
from samestep.app.book.markdown.pieces import CalculatorRef
from samestep.app.calculators import registry
from samestep.app.contract.languages import LANGUAGES
from samestep.app.contract.paths import value_at
from tests.kit import Asked, Element, by_id, text_of, the_book, tree

State = dict[str, str]

CALCULATORS = sorted(registry())
STATES: list[tuple[str, State]] = [
    *((name, {}) for name in CALCULATORS),
    ("replica_ledger", {"a": "0"}),
    ("replica_ledger", {"a": "0", "b": "0"}),
    ("replica_ledger", {"a": "1/3", "b": "2e-3", "target_a": "-7.5", "lr": "0.25", "scheme": "P_over_N_then_sum"}),
    ("replica_ledger", {"counts": "2,3;8,0;1", "gradients": "-2,1;1,0.5;3", "losses": "1,2;0.5,1;4"}),
    ("replica_ledger", {"counts": "1e9;1", "gradients": "1e-12;-1e12", "scheme": "one_over_N_then_sum"}),
    ("replica_ledger", {"target_a": "1", "target_b": "-1", "a": "4", "b": "4"}),
    ("info_nce", {"tau": "0.05", "scheme": "local_loss_gather_with_grad"}),
    ("info_nce", {"tau": "1e-4", "q": "20;-20", "d": "40;-40"}),
    ("info_nce", {"q": "1,2;3,4;5,6", "d": "1,0;0,1;1,1", "ranks": "2,1", "similarity": "cosine"}),
    ("info_nce", {"direction": "bidirectional", "scheme": "global_loss_remote_detached_times_P"}),
    ("clip_ownership", {"scheme": "per_rank", "max_norm": "2.5"}),
    ("clip_ownership", {"scheme": "every_copy", "replicated": "96"}),
    ("clip_ownership", {"overflow": "1"}),
    ("clip_ownership", {"gradients": "nan;1", "scheme": "per_rank"}),
    ("clip_ownership", {"gradients": "1,2;3;4,5,6", "norm_type": "inf", "eps": "1e-6"}),
    ("info_nce", {"loss_form": "sigmoid", "logit_bias": "-10", "scheme": "local_negatives_only"}),
    ("clip_ownership", {"gradients": "0;0", "max_norm": "0"}),
    ("overflow_skip", {"scaled_grads": "65536;32768"}),
    ("overflow_skip", {"scaled_grads": "nan,1;-inf,2", "params": "1,2;1,2", "scale": "4;8"}),
    ("overflow_skip", {"scaled_grads": "1;2;3", "params": "1;1;1", "lr": "0"}),
    ("gradient_scaling", {"scale": "loss", "all_reduce": "mean"}),
    ("gradient_scaling", {"batch": "60", "micro_batches": "5", "replicas": "3", "loss_reduction": "sum"}),
    (
        "label_count",
        {"lengths": "", "prompts": "0", "labels": "-100,5,6|7,8;5,6+7,8|-100,9", "scheme": "shifted_twice"},
    ),
    ("sampler_padding", {"dataset_size": "7", "replicas": "4", "drop_last": "true", "per_sample_grad": ""}),
    ("schedule_clock", {"shape": "cosine", "K": "3", "tail": "carry", "skipped": "3,5", "scheme": "per_token"}),
    ("schedule_clock", {"batches": "4", "K": "8", "tail": "update", "update": "1", "scheme": "per_epoch"}),
    ("update_rounding", {"weight": "", "gradients": "", "amax": "12,3;0,0", "fp8": "float8_e5m2"}),
    ("update_rounding", {"dtype": "float16", "update": "1000", "amax": "", "scheme": "stochastic"}),
    ("mesh_ledger", {"pp": "20", "tp": "16", "squares": "4,3,2,1,1", "labels": "3,5", "scheme": "tied_not_summed"}),
    ("mesh_ledger", {"sequence_parallel": "false", "norm_gradients": "1,2", "labels": "0,0", "scheme": "norm_right"}),
    ("pipeline_schedule", {"parts": "1,2;3", "counts": "2,0;3", "stages": "40", "scheme": "mean_loss_scaled_once"}),
    ("pipeline_schedule", {"parts": "1,-2", "counts": "0,0", "schedule": "gpipe", "tied": "", "scheme": "sum_loss"}),
    ("matrix_update", {"gradient": "0,0;0,0", "method": "shampoo"}),
    ("metric_ledger", {"counts": "2,0;1,3", "losses": "1,0;2,3", "scheme": "mean_of_batch_means"}),
    (
        "metric_ledger",
        {
            "counts": "10;2",
            "losses": "",
            "correct": "8;0",
            "tp": "8;0",
            "fp": "2;0",
            "fn": "0;2",
            "scheme": "f1_pooled",
        },
    ),
    ("metric_ledger", {"losses": "0;800", "scheme": "mean_of_rank_perplexities", "empty": "skip"}),
    ("matrix_update", {"gradient": "3,1;1,2;2,-1", "method": "adafactor", "scheme": "statistics_reduced_clip_local"}),
    ("local_updates", {"targets": "1,-1", "curvatures": "", "samples": "", "scheme": "local_mean", "ema_decay": "0.9"}),
    ("local_updates", {"local_steps": "20", "rounds": "40", "scheme": "synchronous_uniform"}),
    ("loss_terms", {"counts": "2,8;0,1", "sums": "2,8;0,3", "second_counts": "", "second_sums": "", "penalty": "6"}),
    ("loss_terms", {"counts": "0;0", "sums": "0;0", "scheme": "own_cell_mean"}),
    ("batch_statistics", {"term": "whiten", "values": "1;2 5", "scheme": "per_rank"}),
    ("batch_statistics", {"term": "whiten", "values": "3 3;3", "unbiased": "false", "eps_place": "outside"}),
    ("batch_statistics", {"term": "batch_norm", "values": "1 3,10 14;2,5", "scheme": "sync_batch_norm"}),
    ("batch_statistics", {"term": "group_norm", "eps": "0"}),
    ("batch_statistics", {"tokens": "2,0", "assigned": "1+1,0+0", "probability": "0.5+0.5,0+0"}),
    ("rl_weights", {"lengths": "0,;3,4", "groups": "0,;1,1", "rewards": "1,;1,0", "generations": "3"}),
    ("rl_weights", {"lengths": "5+5;5+5", "rewards": "1+1;0+1", "eps": "0", "scheme": "verl_token_sum"}),
    ("objective_weights", {"sequences": "3;0", "other": "", "scheme": "token_mean_over_microbatch"}),
    ("reduction_precision", {"values": "100", "ranks": "8", "dtype": "float8_e4m3fn", "scaling": "amax_times_ranks"}),
    ("reduction_precision", {"values": "6e4;1e-7;-3", "ranks": "", "dtype": "bfloat16", "accumulation": "sequential"}),
    ("framework_recipe", {"framework": "deepspeed/engine", "loss_reduction": "sum", "counts": "3;0"}),
    ("clip_order", {"microstep_grads": "1/3,2;-3,0", "scheme": "sum_of_clipped"}),
    ("empty_step", {"optimizer": "sgd", "param": "1/3,2", "grad": "inf,nan", "momentum_buffer": ""}),
    ("fsdp_timeline", {"layers": "2", "parameters": "5,6"}),
]
TYPED: dict[str, State] = {
    "replica_ledger": {
        "a": "3",
        "b": "1/7",
        "target_a": "2.5",
        "target_b": "-1.25",
        "empty_cell": "skip",
        "theta": "0.125",
        "lr": "0.3",
        "scheme": "P_over_N_then_sum",
        "counts": "2,3;8,1",
        "gradients": "1,2;3,4",
        "losses": "5,6;7,8",
    },
    "info_nce": {
        "q": "1,2;3,4",
        "d": "5,6;7,8",
        "tau": "0.35",
        "scheme": "local_negatives_only",
        "similarity": "cosine",
        "direction": "bidirectional",
        "loss_form": "softmax",
        "logit_bias": "-2.5",
        "ranks": "1,1",
    },
    "clip_ownership": {
        "gradients": "25;33;41",
        "replicated": "97",
        "loss_scale": "16",
        "max_norm": "1.5",
        "param": "0.75",
        "lr": "0.2",
        "norm_type": "3",
        "eps": "1e-7",
        "scheme": "every_copy",
        "overflow": "2",
    },
    "overflow_skip": {"scaled_grads": "inf,1;2,3", "params": "4,5;6,7", "scale": "1024", "lr": "0.7"},
    "gradient_scaling": {
        "batch": "96",
        "micro_batches": "3",
        "replicas": "8",
        "loss_reduction": "sum",
        "all_reduce": "mean",
        "scale": "gradient",
    },
    "label_count": {
        "lengths": "5 3,7;4+2,6",
        "prompts": "1 0,2;1+0,3",
        "labels": "",
        "max_length": "9",
        "pad_to": "max_length",
        "boundaries": "crossing",
        "scheme": "attention_mask",
    },
    "sampler_padding": {
        "dataset_size": "11",
        "replicas": "4",
        "shuffle": "true",
        "drop_last": "true",
        "repeat": "last",
        "seed": "3",
        "epoch": "2",
        "microbatch": "2",
        "per_sample_grad": "5,-1,2",
        "other_grad": "1/3",
    },
    "schedule_clock": {
        "P": "4",
        "K": "2",
        "batches": "900",
        "epochs": "3",
        "tail": "drop",
        "warmup": "50",
        "total": "1200",
        "shape": "cosine",
        "min_ratio": "0.1",
        "base_lr": "0.003",
        "beyond": "hold",
        "update": "60",
        "skipped": "3,17",
        "ema_decay": "0.99",
        "scheme": "per_microbatch",
    },
    "update_rounding": {
        "weight": "3",
        "update": "0.25",
        "steps": "40",
        "dtype": "float16",
        "gradients": "1,2,3",
        "amax": "1,2;3,4",
        "fp8": "float8_e5m2",
        "margin": "1",
        "scheme": "stochastic",
    },
    "mesh_ledger": {
        "dp": "3",
        "fsdp": "2",
        "cp": "1",
        "tp": "2",
        "pp": "2",
        "ep": "3",
        "sequence_parallel": "false",
        "loss": "global_count",
        "norm_gradients": "1,2,3,4,5,6",
        "squares": "1,2",
        "labels": "1,2,3,4,5,6",
        "scheme": "dense_summed",
    },
    "pipeline_schedule": {
        "parts": "1,2;3,4",
        "counts": "5,6;7,8",
        "stages": "3",
        "schedule": "gpipe",
        "tied": "2,-1",
        "weight": "0.5",
        "lr": "0.25",
        "scheme": "divided_twice",
    },
    "matrix_update": {
        "gradient": "1,2,3;4,5,7",
        "shards": "3",
        "axis": "columns",
        "method": "newton_schulz",
        "scale": "original",
        "ns_steps": "4",
        "damping": "0.5",
        "scheme": "per_shard_shape_scaled",
    },
    "local_updates": {
        "targets": "3,-1,0.5",
        "curvatures": "2,1,4",
        "samples": "5,1,2",
        "theta0": "0.25",
        "inner_lr": "0.05",
        "local_steps": "6",
        "rounds": "4",
        "outer_lr": "0.6",
        "outer_momentum": "0.8",
        "nesterov": "false",
        "ema_decay": "0.95",
        "scheme": "outer_weighted",
    },
    "metric_ledger": {
        "counts": "4,3;5",
        "losses": "1/3,2;0.25",
        "correct": "1,2;3",
        "tp": "1,0;2",
        "fp": "0,1;1",
        "fn": "2,0;1",
        "repeated": "0,1;1",
        "repeated_losses": "0,3;1.5",
        "repeated_correct": "0,1;0",
        "empty": "skip",
        "optimised": "mean_of_rank_means",
        "scheme": "accuracy_mean_of_batches",
    },
    "loss_terms": {
        "counts": "3,4;1,2",
        "sums": "1,2;3,4",
        "second_counts": "5,6;7,8",
        "second_sums": "2,4;6,8",
        "coefficient": "0.25",
        "penalty": "1/3",
        "scheme": "per_token_loss",
    },
    "batch_statistics": {
        "term": "whiten",
        "top_k": "2",
        "tokens": "3;5",
        "assigned": "3 3;5 5",
        "probability": "0.75 0.25;0.5 0.5",
        "values": "1 2 4;3 9",
        "unbiased": "false",
        "eps": "0.5",
        "eps_place": "outside",
        "momentum": "0.25",
        "running_mean": "2",
        "running_var": "3",
        "samples": "1,2,4,7;3,9,1,5",
        "groups": "2",
        "shards": "4",
        "scheme": "per_microbatch",
    },
    "rl_weights": {
        "lengths": "3+1;7",
        "groups": "4+4;2",
        "rewards": "0.5+1;2",
        "constant": "12",
        "counted_tokens": "9",
        "generations": "3",
        "scale_rewards": "batch",
        "eps": "0.01",
        "scheme": "verl_token_mean",
    },
    "objective_weights": {
        "sequences": "3+1;7",
        "other": "3;1+7",
        "constant": "5",
        "scheme": "sequence_mean_over_window",
    },
    "reduction_precision": {
        "values": "1,2,3",
        "ranks": "3",
        "scaling": "amax",
        "dtype": "bfloat16",
        "predivide": "2",
        "accumulation": "tree",
    },
    "framework_recipe": {
        "framework": "torch_fsdp2/default",
        "version": "2.13.0",
        "loss_reduction": "custom",
        "denominator": "16",
        "loss_factor": "1/2",
        "counts": "3,5;2,7",
        "accumulation": "4",
        "context_parallel": "2",
        "context_reduction": "sum",
        "expert_parallel": "2",
    },
}
"""For every calculator a state in which no field has its default (but one that stands in place of others)."""

FIELDS = [(name, field) for name, state in TYPED.items() for field in state if field != "version"]
"""Fields that not every text fits."""
CHINESE = re.compile("[\u4e00-\u9fff]")
BOOK = the_book()
CARRIERS = [c for i, lang in enumerate(LANGUAGES) for c in BOOK.chapters[lang][i :: len(LANGUAGES)] if c.calculators]
"""Every chapter in one of the languages, which hold the same panels and checked numbers."""
FENCES = [(c, ref) for c in CARRIERS for ref in c.calculators]

each_language = pytest.mark.parametrize("lang", LANGUAGES)
each_state_in_turn = pytest.mark.parametrize(
    ("name", "state", "lang"),
    [(name, state, LANGUAGES[i % 2]) for i, (name, state) in enumerate(STATES)],
    ids=[f"{name}?{urlencode(state, safe=';,/')}" for name, state in STATES],
)
each_state = pytest.mark.parametrize(
    ("name", "state"),
    [
        *STATES,
        *TYPED.items(),
        ("collectives", {"op": "all_gather", "values": "1/3;2", "buffer_elements": "1e6"}),
        ("collectives", {"op": "all_to_all"}),
    ],
)
each_field_in_turn = pytest.mark.parametrize(
    ("name", "field", "lang"),
    [(name, field, LANGUAGES[i % 2]) for i, (name, field) in enumerate(FIELDS)],
    ids=[f"{name}-{field}" for name, field in FIELDS],
)
"""The languages take turns: each is met at every calculator."""
each_fence = pytest.mark.parametrize(
    ("chapter", "ref"), FENCES, ids=[f"{chapter.lang}-{chapter.slug}-{ref.id}" for chapter, ref in FENCES]
)


def outputs(region: Element) -> list[tuple[str, str | None, str]]:
    """The outputs in a part of a page: dotted path, exact value, what the reader sees."""
    return [
        (element.get("data-field", ""), element.get("data-value"), text_of(element))
        for element in region.iter()
        if element.get("data-field") and element.tag != "a"
    ]


def typed_in(form: Element, prefix: str = "") -> State:
    """What a form would send, by bare names."""
    state = {}
    for control in form.iter():
        name = (control.get("name") or "").removeprefix(prefix)
        if not name or control.get("type") in ("submit", "hidden"):
            continue
        if control.tag == "select":
            state[name] = next(o.get("value", "") for o in control.iter("option") if o.get("selected") is not None)
        elif control.tag == "textarea":
            state[name] = control.text or ""
        elif control.get("type") != "radio" or control.get("checked") is not None:
            state[name] = control.get("value", "")
    return state


# ---- outputs

UNITS = {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}


def disagreements(region: Element, answer: Any, lang: str) -> Iterator[str]:
    for path, value, shown in outputs(region):
        expected = value_at(answer, path)
        if value is None:
            word = "不可用" if lang == "zh" else "undefined"
            if expected is not None or word not in shown:
                yield f"{path}: shows “{shown}” for {expected!r}"
        elif isinstance(expected, bool | list):
            if json.loads(value) != expected:
                yield f"{path}: {value} for {expected!r}"
        elif isinstance(expected, int | float):
            if float(value) != expected:
                yield f"{path}: {value} for {expected!r}"
            plain, _, unit = shown.replace("\N{MINUS SIGN}", "-").partition(" ")
            if unit:
                right = math.isclose(float(plain) * UNITS[unit], expected, rel_tol=1e-3)
            else:
                right = float(plain) == float(f"{expected:.6g}") or plain.lstrip("+") == str(expected)
            if not right:
                yield f"{path}: a reader sees “{shown}” for {expected!r}"
        elif value != expected:
            yield f"{path}: {value} for {expected!r}"


@each_state_in_turn
def test_page_fragment_and_posted_form_show_the_json_values_of_the_same_state(
    client: TestClient, name: str, state: State, lang: str
) -> None:
    query = urlencode(state)
    address = f"/{lang}/calculators/{name}"
    page = client.get(f"{address}?{query}")
    assert page.status_code == 200
    region = by_id(tree(page.text), f"{name}-result")
    shown = outputs(region)
    assert shown
    assert list(disagreements(region, client.get(f"/api/{name}?{query}").json(), lang)) == []
    assert outputs(tree(client.get(f"{address}/result?{query}").text)) == shown
    assert outputs(tree(client.post(f"{address}/result", data=state).text)) == shown
    posted = tree(client.post(address, data=state).text)
    assert outputs(by_id(posted, f"{name}-result")) == shown
    assert typed_in(by_id(posted, name)).items() >= state.items()


@each_state
def test_fields_write_themselves_back_as_text(name: str, state: State) -> None:
    query = registry()[name].query
    text = json.loads(query.model_validate(state).model_dump_json())
    assert json.loads(query.model_validate(text).model_dump_json()) == text


@each_state
def test_every_row_of_a_csv_table_is_as_long_as_its_header(name: str, state: State) -> None:
    tables = Asked(name).panel(**state).tables()
    assert any(table.rows for table in tables)
    assert all(len(row) == len(table.header) for table in tables for row in table.rows)
    assert state or all(table.rows for table in tables)


@each_language
def test_an_undefined_output_gives_its_reason_in_words(client: TestClient, lang: str) -> None:
    page = tree(client.get(f"/{lang}/calculators/replica_ledger?a=0").text)
    in_the_result = [
        shown for path, _, shown in outputs(by_id(page, "replica_ledger-result")) if path == "current.grad"
    ]
    assert len(in_the_result) == 1
    for shown in [shown for path, _, shown in outputs(page) if path == "current.grad"]:
        assert shown.startswith("不可用" if lang == "zh" else "undefined")
        assert "0/0" in shown


VERDICTS = [
    ("replica_ledger?a=2&b=8&target_a=1&target_b=1", "coincidence"),
    ("replica_ledger?a=5&b=5", "same"),
    ("direction_map?a=2&b=8&target_a=1&target_b=1", "coincidence"),
    ("info_nce?q=0;0&d=1;-1&scheme=local_loss_remote_detached", "coincidence"),
    ("info_nce?q=0;0&d=1;-1&scheme=local_loss_gather_with_grad", "same"),
    ("clip_order?microstep_grads=3,4;0,0&max_norm=1&scheme=running_clip", "coincidence"),
    ("clip_ownership?gradients=24;0&max_norm=1&scheme=per_rank", "coincidence"),
    ("clip_ownership?gradients=24;24&max_norm=1&scheme=per_rank", "other"),
    ("metric_ledger?counts=2;8&losses=1;1&scheme=mean_of_rank_means", "coincidence"),
    ("no_sync_timeline?gradients=1,1;1,1&scheme=forwards_first", "coincidence"),
    ("no_sync_timeline?gradients=1,1;1,1&scheme=backward_inside", "same"),
    ("no_sync_timeline?gradients=1,1;1,1&wrapper=fsdp2&scheme=forwards_first", "same"),
    ("no_sync_timeline?gradients=1,1;1,1&wrapper=hsdp&scheme=added_after_all_reduce", "coincidence"),
    ("no_sync_timeline?gradients=1,2;3,6&wrapper=hsdp&replica_groups=1&scheme=added_after_all_reduce", "same"),
    ("no_sync_timeline?gradients=1,1;1,1&wrapper=hsdp&scheme=never", "other"),
    ("metric_ledger?counts=2;8&losses=0;0&scheme=sum_of_batch_means", "coincidence"),
    ("matrix_update?gradient=1,0;0,1&shards=2&method=polar&scheme=per_shard", "coincidence"),
    ("matrix_update?gradient=1,0;0,1&shards=1&method=polar&scheme=per_shard", "same"),
    (
        "batch_statistics?term=load_balance&tokens=4;4&assigned=2 2;2 2&probability=0.5 0.5;0.5 0.5&scheme=per_rank",
        "coincidence",
    ),
    ("label_count?lengths=5 5;5&prompts=1&scheme=before_shift", "coincidence"),
    ("label_count?scheme=after_shift", "same"),
]
"""States of equal numbers, and whether the way of getting them is right for others too."""


@pytest.mark.parametrize(("state", "kind"), VERDICTS)
def test_numbers_that_coincide_are_not_called_the_same(client: TestClient, state: str, kind: str) -> None:
    page = client.get(f"/en/calculators/{state}").text
    assert re.findall(r'<p class="verdict (\w+)" data-verdict', page) == [kind]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("replica_ledger", {"reference.grad", "current.grad", "current.theta_after_sgd", "rows.0.n", "rows.1.weight"}),
        ("replica_ledger", {"rows.0.gradient", "rows.0.gradient_sum", "N"}),
        ("info_nce", {"current.mean_rank_loss", "reference.loss", "current.max_abs_diff_grad_d", "ranks.1.grad_wd"}),
        ("info_nce", {"table.0.logits.0", "table.1.probabilities.1", "contributions.0.1", "documents.0.kept"}),
        ("info_nce", {"documents.0.full", "ranks.0.loss", "ranks.0.grad_wq", "current.grad_wq", "current.grad_wd"}),
        ("clip_ownership", {"global_norm", "current.clipped_norm", "decision", "rows.0.scaled", "rows.0.gradient"}),
        ("clip_ownership", {"rows.0.owner", "rows.1.coefficient", "rows.1.applied", "rows.1.param_after"}),
        ("overflow_skip", {"decision"}),
        ("gradient_scaling", {"accumulated_multiple", "reduced_multiple", "final_multiple", "required_factor"}),
    ],
)
def test_a_panel_shows_what_the_sources_show(client: TestClient, name: str, fields: set[str]) -> None:
    shown = {path for path, _, _ in outputs(tree(client.get(f"/zh/calculators/{name}").text))}
    assert fields <= shown


# ---- panels in chapters


@pytest.mark.parametrize("chapter", CARRIERS, ids=lambda chapter: chapter.path)
def test_a_chapters_first_html_shows_the_state_of_its_address(client: TestClient, chapter: Chapter) -> None:
    """Every panel in each state of its calculator, all panels of the chapter in the same address."""
    for together in zip_longest(*(_answers(client, ref) for ref in chapter.calculators)):
        asked = [(ref, *found) for ref, found in zip(chapter.calculators, together, strict=True) if found]
        query = urlencode({f"{ref.id}.{field}": value for ref, state, _ in asked for field, value in state.items()})
        page = tree(client.get(f"{chapter.path}?{query}").text)
        for ref, _, answer in asked:
            region = by_id(page, f"{ref.id}-result")
            assert outputs(region)
            assert list(disagreements(region, answer, chapter.lang)) == []


def _answers(client: TestClient, ref: CalculatorRef) -> Iterator[tuple[State, Any]]:
    """The states that go with the fields of a fence, and what is answered there."""
    for name, state in STATES:
        if name == ref.name and "counts" not in state:
            answer = client.get(f"/api/{name}?{urlencode({**ref.fields, **state})}")
            if answer.status_code == 200:
                yield state, answer.json()


@each_fence
def test_a_form_in_a_chapter_leads_back_to_its_place_with_its_own_names(
    client: TestClient, chapter: Chapter, ref: CalculatorRef
) -> None:
    form = by_id(tree(client.get(chapter.path).text), ref.id)
    assert form.get("method") == "get"
    assert form.get("action") == f"{chapter.path}#{ref.id}"
    assert form.get("data-calculator") == ref.name
    names = {c.get("name") for c in form.iter() if c.get("name")}
    assert names == {f"{ref.id}.{field}" for field in registry()[ref.name].query.model_fields}


def test_panels_of_a_chapter_keep_each_others_state(client: TestClient) -> None:
    """Without a script a form sends only itself, so what the others hold goes along hidden."""
    path = "/en/parallel-correctness"
    state = {"replica_ledger.a": "5", "info_nce.tau": "0.5", "clip_ownership.max_norm": "2"}
    page = tree(client.get(f"{path}?{urlencode(state)}").text)
    for panel in ("replica_ledger", "info_nce", "clip_ownership", "overflow_skip"):
        form = by_id(page, panel)
        hidden = {c.get("name"): c.get("value") for c in form.iter("input") if c.get("type") == "hidden"}
        assert hidden == {name: value for name, value in state.items() if not name.startswith(f"{panel}.")}
        own = {name: value for name, value in state.items() if name.startswith(f"{panel}.")}
        assert typed_in(form, f"{panel}.").items() >= {n.partition(".")[2]: v for n, v in own.items()}.items()


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_second_panel_of_a_kind_has_its_own_state(client: TestClient, lang: str) -> None:
    path = f"/{lang}/two-process-verification"
    chapter = BOOK.chapter(lang, "two-process-verification")
    assert chapter is not None
    first, second = (ref for ref in chapter.calculators if ref.name == "replica_ledger")
    page = tree(client.get(f"{path}?{first.id}.a=5&{second.id}.a=7").text)
    assert typed_in(by_id(page, first.id), f"{first.id}.")["a"] == "5"
    assert typed_in(by_id(page, second.id), f"{second.id}.")["a"] == "7"


@each_fence
def test_the_links_of_a_panel_lead_to_its_state(client: TestClient, chapter: Chapter, ref: CalculatorRef) -> None:
    page = tree(client.get(f"{chapter.path}?{urlencode({f'{ref.id}.{k}': v for k, v in _other(ref).items()})}").text)
    frame = next(f for f in page.iter("article") if f.get("data-panel") == ref.id)
    links = {text_of(a): a.get("href", "") for a in frame.iter("a") if a.get("data-state") is not None}
    assert len(links) == 4
    state = ref.fields | _other(ref)
    for label, href in links.items():
        assert dict(parse_qsl(urlsplit(href).query, keep_blank_values=True)).items() >= state.items(), label
        if urlsplit(href).path.endswith("/card.png"):  # drawing takes long; tests/cards draws one of each
            continue
        answer = client.get(href)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(
            {"JSON": "application/json", "CSV": "text/csv", "Image": "image/png", "图片": "image/png"}.get(
                label, "text/html"
            )
        )


def _other(ref: CalculatorRef) -> State:
    """A state other than the fence's, in one field, for the calculators of the two source chapters."""
    field = {"replica_ledger": "lr", "info_nce": "tau", "clip_ownership": "max_norm", "overflow_skip": "lr"}
    return {field[ref.name]: "0.75"} if ref.name in field else {}


# ---- checked numbers


@pytest.mark.parametrize("chapter", CARRIERS, ids=lambda chapter: chapter.path)
def test_a_checked_number_leads_to_a_state_that_has_that_value(client: TestClient, chapter: Chapter) -> None:
    """That its page answers is known of every link (tests/web/test_html.py)."""
    links = [a for a in tree(client.get(chapter.path).text).iter("a") if a.get("data-field")]
    calculated = [a for a in links if f"/{chapter.lang}/calculators/" in a.get("href", "")]
    assert calculated
    for link in calculated:
        href, path, shown = link.get("href", ""), link.get("data-field", ""), text_of(link)
        address = urlsplit(href)
        name = address.path.rpartition("/")[2]
        value = value_at(client.get(f"/api/{name}?{address.query}").json(), path)
        assert as_printed(value, shown), (href, path, shown, value)


def as_printed(value: Any, shown: str) -> bool:
    """Whether a value, at the precision that is printed, is the one printed."""
    plain = re.sub(r"(?<=\d)[,\u202f\u2009 ](?=\d{3})", "", shown.replace("\N{MINUS SIGN}", "-").replace("∞", "inf"))
    if str(value) == plain.lstrip("+"):
        return True
    try:
        digits = len(re.sub(r"[eE].*", "", plain).partition(".")[2])
        power = int(plain.lower().partition("e")[2] or 0)
        return abs(float(value) - float(plain)) <= 0.5 * 10.0 ** (power - digits) * (1 + 1e-9)
    except ValueError:
        return False


# ---- inputs that are refused


def refused_field(page: Element, panel: str, field: str) -> str:
    """The message beside a field; fails unless the field is marked and refers to it."""
    control = by_id(page, f"{panel}-{field}")
    assert control.get("aria-invalid") == "true"
    messages = [by_id(page, name) for name in (control.get("aria-describedby") or "").split()]
    (message,) = [text_of(one) for one in messages if one.get("data-error") == field]
    assert message
    return message


@each_field_in_turn
def test_a_refused_form_keeps_all_that_was_typed_and_says_why_beside_the_field(
    client: TestClient, name: str, field: str, lang: str
) -> None:
    """As an address in one language, as a form by POST in the other."""
    state = TYPED[name] | {field: "5 apples"}
    address = f"/{lang}/calculators/{name}"
    answer = client.get(address, params=state) if lang == "zh" else client.post(address, data=state)
    assert answer.status_code == 422
    page = tree(answer.text)
    assert typed_in(by_id(page, name)) == state
    message = refused_field(page, name, field)
    assert bool(CHINESE.search(message)) == (lang == "zh"), message
    assert outputs(by_id(page, f"{name}-result")) == []
    marked = [c.get("id") for c in page.iter() if c.get("aria-invalid") == "true"]
    assert marked == [f"{name}-{field}"]


@pytest.mark.parametrize("name", TYPED)
def test_a_refused_panel_in_a_chapter_keeps_all_and_spoils_no_other(client: TestClient, name: str) -> None:
    chapter, ref = next((c, ref) for c, ref in FENCES if ref.name == name)
    refused = [field for one, field in FIELDS if one == name]
    state = TYPED[name] | dict.fromkeys(refused, "5 apples")
    answer = client.get(chapter.path, params={f"{ref.id}.{key}": value for key, value in state.items()})
    assert answer.status_code == 422
    page = tree(answer.text)
    assert typed_in(by_id(page, ref.id), f"{ref.id}.") == state
    assert all(refused_field(page, ref.id, field) for field in refused)
    for other in chapter.calculators:
        assert bool(outputs(by_id(page, f"{other.id}-result"))) == (other.id != ref.id)


@each_field_in_turn
def test_a_refused_fragment_carries_the_message_for_its_field(
    client: TestClient, name: str, field: str, lang: str
) -> None:
    answer = client.get(f"/{lang}/calculators/{name}/result", params=TYPED[name] | {field: "5 apples"})
    assert answer.status_code == 422
    (entry,) = [e for e in tree(answer.text).iter("li") if e.get("data-error-for") == field]
    message = next(text_of(e) for e in entry.iter() if e.get("data-message") is not None)
    assert bool(CHINESE.search(message)) == (lang == "zh")
    assert not list(entry.iter("code")), "the field is called by its label"


@pytest.mark.parametrize(
    ("name", "state", "zh", "en"),
    [
        ("loss_terms", {"second_counts": "1", "second_sums": ""}, "“第二项的数量”", "“Counts of the second term”"),
        ("ratio_fingerprint", {"reference_loss": ""}, "“观测：损失”", "“Observed: loss”"),
        ("rl_weights", {"rewards": "1"}, "“回答的 token 数”", "lengths"),
        ("local_updates", {"inner_lr": "1e200"}, "“每步同步，按样本加权（正确）”", "synchronous"),
        ("mesh_ledger", {"ep": "3"}, "dp · fsdp · cp", "dp · fsdp · cp"),
        ("info_nce", {"tau": "1e300"}, "1/τ 须", "1/τ must"),
        ("rl_weights", {"rewards": "lengths"}, "“lengths”不是数", "“lengths” is not a number"),
    ],
)
def test_a_message_calls_other_fields_as_the_form_does(
    client: TestClient, name: str, state: State, zh: str, en: str
) -> None:
    for lang, words in (("zh", zh), ("en", en)):
        page = tree(client.get(f"/{lang}/calculators/{name}/result", params=state).text)
        message = next(text_of(e) for e in page.iter() if e.get("data-message") is not None)
        assert words in message
        assert not message.startswith(tuple(state))


@pytest.mark.parametrize("name", CALCULATORS)
def test_the_full_form_sent_as_it_stands_shows_the_same_state(client: TestClient, name: str) -> None:
    asked = client.get(f"/en/calculators/{name}?as=general", follow_redirects=False).headers["location"]
    body = {key: value for key, value in parse_qsl(urlsplit(asked).query) if key != "scheme"}
    form = typed_in(by_id(tree(client.get(f"/en/calculators/{name}", params=body).text), name))
    assert client.get(f"/api/{name}", params=form).json() == client.get(f"/api/{name}", params=body).json()


@pytest.mark.parametrize(
    ("name", "state", "field"),
    [
        ("replica_ledger", {"a": ""}, "a"),
        ("replica_ledger", {"a": "-1"}, "a"),
        ("replica_ledger", {"a": "inf"}, "a"),
        ("replica_ledger", {"lr": "1e999"}, "lr"),
        ("replica_ledger", {"theta": "1/0"}, "theta"),
        ("replica_ledger", {"gradients": "1;2"}, "counts"),
        ("replica_ledger", {"counts": "1;;2", "gradients": "1;1;1"}, "counts"),
        ("replica_ledger", {"counts": "1;-2", "gradients": "1;1"}, "counts"),
        ("replica_ledger", {"counts": "1,2;3", "gradients": "1;2"}, "gradients"),
        ("replica_ledger", {"counts": "1;3", "gradients": "1;2", "losses": "1"}, "losses"),
        ("info_nce", {"tau": "0"}, "tau"),
        ("info_nce", {"tau": "-0.1"}, "tau"),
        ("info_nce", {"d": "1;2;3"}, "d"),
        ("info_nce", {"ranks": "1,2,3"}, "ranks"),
        ("info_nce", {"q": "1,2;3"}, "q"),
        ("clip_ownership", {"max_norm": "-1"}, "max_norm"),
        ("clip_ownership", {"overflow": "2"}, "overflow"),
        ("clip_ownership", {"loss_scale": "0"}, "loss_scale"),
        ("clip_ownership", {"replicated": "1;2"}, "replicated"),
        ("overflow_skip", {"params": "1"}, "params"),
        ("overflow_skip", {"scale": "1;2;3"}, "scale"),
        ("gradient_scaling", {"batch": "63"}, "batch"),
        ("gradient_scaling", {"replicas": "0"}, "replicas"),
        ("gradient_scaling", {"replicas": "1.5"}, "replicas"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_beside_its_field(
    client: TestClient, name: str, state: State, field: str
) -> None:
    answer = client.get(f"/zh/calculators/{name}", params=state)
    assert answer.status_code == 422
    page = tree(answer.text)
    assert CHINESE.search(refused_field(page, name, field))
    assert typed_in(by_id(page, name)).items() >= state.items()


@each_language
@pytest.mark.parametrize("name", CALCULATORS)
def test_a_field_that_does_not_exist_is_named(client: TestClient, name: str, lang: str) -> None:
    answer = client.get(f"/{lang}/calculators/{name}?alpha=1")
    assert answer.status_code == 422
    assert "alpha" in text_of(by_id(tree(answer.text), f"{name}-result"))


@pytest.mark.parametrize("name", TYPED)
def test_fields_given_twice_are_refused_and_lose_nothing(client: TestClient, name: str) -> None:
    answer = client.get(f"/en/calculators/{name}?{urlencode([*TYPED[name].items()] * 2)}")
    assert answer.status_code == 422
    page = tree(answer.text)
    assert typed_in(by_id(page, name)) == TYPED[name]
    assert all(refused_field(page, name, field) for field in TYPED[name])


def test_one_field_given_twice_is_the_only_one_refused(client: TestClient) -> None:
    page = tree(client.get(f"/en/calculators/replica_ledger?{urlencode(TYPED['replica_ledger'])}&lr=0.3").text)
    assert [c.get("id") for c in page.iter() if c.get("aria-invalid") == "true"] == ["replica_ledger-lr"]
    assert refused_field(page, "replica_ledger", "lr")


def test_two_refused_fields_are_both_marked(client: TestClient) -> None:
    page = tree(client.get("/en/calculators/replica_ledger?a=-1&lr=x").text)
    assert refused_field(page, "replica_ledger", "a")
    assert refused_field(page, "replica_ledger", "lr")


# ---- forms by POST


def test_a_file_is_taken_as_the_text_of_its_field(client: TestClient) -> None:
    """A spreadsheet's export: lines for replicas, tabs between microsteps, a byte order mark."""
    files = {"counts": ("n.tsv", b"\xef\xbb\xbf2\t3\r\n8\t0\r\n"), "gradients": ("g.tsv", b"-2\t1\n1\t0.5\n")}
    answer = client.post("/en/calculators/replica_ledger", files=files)
    assert answer.status_code == 200
    assert {float(value or 0) for path, value, _ in outputs(tree(answer.text)) if path == "N"} == {13}


def test_a_state_too_long_for_an_address_goes_by_post(client: TestClient) -> None:
    rows = ["1,2,3,4,5,6,7,8"] * 2000
    state = {"counts": "\n".join(rows), "gradients": "\n".join(rows)}
    answer = client.post("/zh/calculators/replica_ledger", data=state)
    assert answer.status_code == 200
    assert {float(value or 0) for path, value, _ in outputs(tree(answer.text)) if path == "N"} == {72000}


@pytest.mark.parametrize("tail", ["", "/result"])
@pytest.mark.parametrize("as_file", [False, True], ids=["typed", "file"])
def test_a_form_above_64_mib_is_413(client: TestClient, tail: str, as_file: bool) -> None:
    address, large = f"/en/calculators/replica_ledger{tail}", b"1" * (64 * 1024 * 1024)
    if as_file:
        answer = client.post(address, files={"counts": ("n.csv", large)})
    else:
        kind = {"content-type": "application/x-www-form-urlencoded"}
        answer = client.post(address, content=b"counts=" + large, headers=kind)
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("content_type", "content"),
    [
        ("multipart/form-data; boundary=x", b"--x\r\nrubbish"),
        ("multipart/form-data", b"no boundary"),
        ("application/x-www-form-urlencoded", b"a=%ff&b=%00&lr=%zz&&=&="),
        ("application/x-www-form-urlencoded", b"&".join(b"f%d=1" % i for i in range(1500))),
        ("application/json", b'{"a": 1}'),
        ("", b"a=1"),
    ],
)
def test_no_form_breaks_the_page(client: TestClient, content_type: str, content: bytes) -> None:
    answer = client.post(
        "/zh/calculators/replica_ledger",
        content=content,
        headers={"content-type": content_type} if content_type else {},
    )
    assert answer.status_code in (200, 400, 413, 415, 422)
    assert tree(answer.text).get("lang") == "zh"


@pytest.mark.parametrize(
    "query",
    [
        "a=%ff",
        "a=%00",
        "a=%ED%A0%80",
        "=",
        "&&&",
        "a",
        "a=1;b=2",
        "&".join(f"f{i}=1" for i in range(1500)),
        "&".join("a=1" for _ in range(1500)),
        "a=" + "9" * 8000,
        "counts=" + "1;" * 1500,
        "%E2%82=1",
    ],
)
@pytest.mark.parametrize(
    "path",
    ["/zh/calculators/replica_ledger", "/zh/calculators/replica_ledger/result", "/api/replica_ledger", "chapter"],
)
def test_no_address_breaks_a_door(client: TestClient, path: str, query: str) -> None:
    if path == "chapter":
        path, query = "/zh/parallel-correctness", "&".join(f"replica_ledger.{pair}" for pair in query.split("&"))
    assert client.get(f"{path}?{query}").status_code in (200, 414, 422)
