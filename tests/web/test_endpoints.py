"""The JSON and CSV doors: the seeds' numbers, the grammar, refusals that name the field, limits, caching."""

import csv
import io
import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from starlette.testclient import TestClient

from samestep.app.calculators import registry
from samestep.app.contract.paths import value_at
from tests.kit import agrees, cases

CASES = cases().values()
DOORS = {
    "ledger": "replica_ledger",
    "infonce": "info_nce",
    "clip": "clip_ownership",
    "overflow": "overflow_skip",
    "sampler": "sampler_padding",
}
POSTED = [case for case in CASES if case["kind"] in DOORS]
CALCULATORS = sorted(registry())


SOURCES: dict[str, dict[str, float | str]] = {
    "replica_ledger": {
        "reference.grad": 0.4,
        "current.grad": -0.5,
        "reference.theta_after_sgd": -0.04,
        "current.theta_after_sgd": 0.05,
        "reference.grad_exact": "2/5",
    },
    "info_nce": {
        "reference.loss": 2.0725389694803913,
        "current.mean_rank_loss": 2.0725389694803913,
        "reference.grad_d.0.0.0": 0.9224123290268497,
        "current.grad_d.0.0.0": -0.05960146101105878,
        "current.max_abs_diff_grad_d": 0.9820137900379085,
        "current.grad_wq": 1.8448246580536993,
        "reference.grad_wd": 1.8448246580536993,
        "current.grad_wd": 0.9224123290268497,
    },
    "clip_ownership": {
        "global_norm": 5,
        "coefficient": 0.2,
        "current.applied.0.0.grad.0": 0.6,
        "current.applied.1.0.grad.0": 0.8,
        "current.param_after.0.0.param.0": 0.94,
        "current.param_after.1.0.param.0": 0.92,
    },
    "clip_ownership?scheme=per_rank": {"current.clipped_norm": 2**0.5},
    "clip_ownership?replicated=96": {"global_norm": 13, "norm_if_every_copy_counted": 313**0.5},
    "gradient_scaling": {
        "accumulated_multiple": "4",
        "reduced_multiple": "8",
        "required_factor": "1/8",
    },
    "gradient_scaling?scale=loss": {"final_multiple": "1"},
    "gradient_scaling?all_reduce=mean": {"reduced_multiple": "4"},
    "gradient_scaling?micro_batches=1": {"reduced_multiple": "2"},
    "gradient_scaling?loss_reduction=sum": {"reduced_multiple": "64"},
    "replica_ledger?a=0": {"current.reason": "empty_cell"},
    "replica_ledger?a=0&b=0": {"decision": "skip_all_replicas"},
    "overflow_skip": {"coordinated.decision": "skip"},
    "clip_ownership?overflow=1": {"decision": "skip_all_ranks", "global_norm": "inf"},
    "clip_ownership?gradients=nan;1": {"global_norm": "nan"},
}
"""What the sources say, by addresses and the paths of their answers; texts are exact fractions and decisions."""


@pytest.mark.parametrize(
    ("address", "path", "expected"),
    [(address, path, value) for address, answer in SOURCES.items() for path, value in answer.items()],
)
def test_an_answer_holds_what_the_sources_say(
    client: TestClient, address: str, path: str, expected: float | str
) -> None:
    agrees(value_at(client.get(f"/api/{address}").json(), path), expected, rtol=1e-12, atol=0)


STORIES = {"value_if_raised_to_1_over_inf", "norm_if_experts_omitted"}
"""Fields that tell one case's story: right if present, not demanded."""


@pytest.mark.parametrize("case", POSTED, ids=[case["id"] for case in POSTED])
def test_a_case_posted_as_it_stands_gets_what_it_expects(client: TestClient, case: dict[str, Any]) -> None:
    answer = client.post(f"/api/{DOORS[case['kind']]}", json=case["inputs"])
    assert answer.status_code == 200, answer.text
    got = answer.json()
    expected = {name: value for name, value in case["expected"].items() if name in got or name not in STORIES}
    agrees(got, expected, **case["tolerance"])


@pytest.mark.parametrize("name", CALCULATORS)
def test_get_is_post_with_what_the_panel_shows(client: TestClient, name: str) -> None:
    answer = client.get(f"/api/{name}")
    assert answer.status_code == 200
    body = answer.json()
    schemes = body.get("schemes") or body.get("weight", {}).get("schemes")  # update_rounding has blocks
    if schemes:
        assert body["current"] == schemes[body["selected"]]
    else:
        assert "selected" not in body


@pytest.mark.parametrize(
    ("address", "field"),
    [
        ("replica_ledger?a=-1", "a"),
        ("replica_ledger?a=x", "a"),
        ("replica_ledger?a=", "a"),
        ("replica_ledger?a=inf", "a"),
        ("replica_ledger?a=1&a=2", "a"),
        ("replica_ledger?scheme=mine", "scheme"),
        ("replica_ledger?alpha=1", "alpha"),
        ("replica_ledger?format=xml", "format"),
        ("info_nce?tau=0", "tau"),
        ("info_nce?tau=-1", "tau"),
        ("info_nce?tau=5e-324", "tau"),
        ("clip_ownership?max_norm=-1", "max_norm"),
        ("clip_ownership?loss_scale=0", "loss_scale"),
        ("clip_ownership?overflow=7", "overflow"),
        ("overflow_skip?params=1", "params"),
        ("gradient_scaling?batch=63", "batch"),
        ("gradient_scaling?micro_batches=0", "micro_batches"),
        ("replica_ledger?body.n=2;8&body.g=1;1&a=3", "a"),
        ("replica_ledger?body.n=2;8&body.g=1;1&body.sum=3", "body.sum"),
        ("replica_ledger?body.n=2;8&body.g=1;1&scheme=none_such", "scheme"),
        ("replica_ledger?body.n=2;8&body.g=1;x", "body.g"),
        ("replica_ledger?body.microsteps=[[{]", "body.microsteps"),
        ("replica_ledger?body.n=2;8&body.g=1;1&body.theta0=0", "body.sgd_lr"),
    ],
)
def test_a_refusal_names_the_field(client: TestClient, address: str, field: str) -> None:
    answer = client.get(f"/api/{address}")
    assert answer.status_code == 422
    assert [error["loc"][:2] for error in answer.json()["detail"]] == [["query", field]]


@pytest.mark.parametrize(
    ("name", "body", "loc"),
    [
        ("replica_ledger", "{", ["body"]),
        ("replica_ledger", "[]", ["body"]),
        ("replica_ledger", '{"microsteps": [[{"n": true, "g": 1}]]}', ["body", "microsteps", "cells", 0, 0, "n"]),
        ("replica_ledger", '{"microsteps": [[{"n": NaN, "g": 1}]]}', ["body", "microsteps", "cells", 0, 0, "n"]),
        ("replica_ledger", '{"microsteps": [[{"n": 1e400, "g": 1}]]}', ["body", "microsteps", "cells", 0, 0, "n"]),
        ("replica_ledger", '{"microsteps": [[{"n": 1, "g": 1}]], "typo": 1}', ["body", "typo"]),
        ("replica_ledger", '{"microsteps": []}', ["body", "microsteps", "cells"]),
        ("replica_ledger", '{"microsteps": [[{"n": 1, "g": 1}]], "sgd_lr": true}', ["body", "sgd_lr"]),
        ("info_nce", '{"q": [[[1]]], "d": [[[1], [2]]]}', ["body", "d"]),
        ("clip_ownership", '{"ranks": [[{"id": "a", "grad": [1], "owner": false}]], "max_norm": 1}', ["body", "ranks"]),
        ("overflow_skip", '{"scaled_grads": [[1]], "scale": 0, "params": [[1]], "lr": 1}', ["body", "scale"]),
    ],
)
def test_a_refused_body_names_the_place(client: TestClient, name: str, body: str, loc: list[str]) -> None:
    answer = client.post(f"/api/{name}", content=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][: len(loc)] == loc


@pytest.mark.parametrize("name", CALCULATORS)
def test_csv_has_a_header_row_by_format_and_by_accept(client: TestClient, name: str) -> None:
    by_format = client.get(f"/api/{name}?format=csv")
    by_accept = client.get(f"/api/{name}", headers={"accept": "text/csv"})
    assert by_format.content == by_accept.content
    assert by_format.headers["content-type"].startswith("text/csv")
    first, *rows = csv.reader(io.StringIO(by_format.text))
    assert rows
    assert all(cell and not cell[0].isdigit() for cell in first)


def test_a_browser_that_holds_a_state_gets_304(client: TestClient) -> None:
    first = client.get("/api/replica_ledger?a=3")
    assert "max-age" in first.headers["cache-control"]
    again = client.get("/api/replica_ledger?a=3", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/api/replica_ledger?a=4").headers["etag"] != first.headers["etag"]


def test_a_body_above_64_mib_is_413(client: TestClient) -> None:
    answer = client.post("/api/replica_ledger", content=b" " * (64 * 1024 * 1024 + 1))
    assert answer.status_code == 413


def test_a_large_ledger_answers_from_the_worker_without_lists_per_cell(client: TestClient) -> None:
    columns = {"n": [[2] * 200] * 100, "g": [[0.5] * 200] * 100, "loss": [[1] * 200] * 100}
    answer = client.post("/api/replica_ledger", json={"microsteps": columns}).json()
    assert answer["N"] == 40_000
    assert answer["reference"]["grad"] == 0.5
    assert answer["reference"]["cell_weights"] is None


def test_more_than_a_million_cells_are_refused(client: TestClient) -> None:
    rows = [[1] * 1001] * 1000
    answer = client.post("/api/replica_ledger", json={"microsteps": {"n": rows, "g": rows}})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][:2] == ["body", "microsteps"]


def test_more_than_4096_ranks_are_refused(client: TestClient) -> None:
    answer = client.post("/api/replica_ledger", json={"microsteps": {"n": [[1]] * 4097, "g": [[1]] * 4097}})
    assert answer.status_code == 422


def test_the_openapi_document_states_the_limits_and_every_door(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    for name in CALCULATORS:
        assert {"get", "post"} <= set(document["paths"][f"/api/{name}"])
    assert '"maxItems":4096' in json.dumps(document, separators=(",", ":"))


@pytest.fixture(scope="module")
def doors(client: TestClient) -> Any:
    """The API as its own document describes it.

    Without schemathesis's coverage phase: its cases sit at limits of the lists, which are megabytes; what lies beyond
    those has tests of its own.
    """
    document = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    document.config.phases.coverage.enabled = False
    return document


@pytest.mark.parametrize("name", CALCULATORS)
def test_no_input_at_all_breaks_a_door(client: TestClient, doors: Any, name: str) -> None:
    operations = doors[f"/api/{name}"]
    assert set(operations) == {"get", "post"}
    for operation in operations.values():

        @settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False)
        @given(case=operation.as_strategy())
        def is_answered(case: schemathesis.Case) -> None:
            request = case.as_transport_kwargs(base_url="http://testserver")
            assume(len(str(request["params"])) < 50_000)  # more than that is refused by the client itself
            request.pop("cookies", None)
            body = request.pop("data", None)
            if body is not None:
                request["content"] = body
            response = client.request(**request)
            assert response.status_code in (200, 422), response.text[:500]
            if "json" in response.headers["content-type"]:
                json.loads(response.content, parse_constant=lambda token: pytest.fail(f"{token} in JSON"))

        is_answered()
