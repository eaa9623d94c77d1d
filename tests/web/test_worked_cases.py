"""The worked cases of the later instruments, asked over HTTP as they stand: every value, and every refusal's field."""

import pytest
from starlette.testclient import TestClient

from tests.kit import Body, agrees, instrument_cases

CASES = instrument_cases()
REFUSED = [case for case in CASES if "status" in case["expected"]]
ANSWERED = [case for case in CASES if "status" not in case["expected"]]


@pytest.mark.parametrize("case", ANSWERED, ids=lambda case: case["id"])
def test_the_worked_case_is_met_at_its_tolerance(client: TestClient, case: Body) -> None:
    response = client.post(f"/api/{case['instrument']}", json=case["inputs"])
    assert response.status_code == 200, response.text
    agrees(response.json(), case["expected"], **case["tolerance"])


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["id"])
def test_the_worked_refusal_names_its_field(client: TestClient, case: Body) -> None:
    response = client.post(f"/api/{case['instrument']}", json=case["inputs"])
    assert response.status_code == case["expected"]["status"]
    assert case["expected"]["field"] in response.json()["detail"][0]["loc"]
