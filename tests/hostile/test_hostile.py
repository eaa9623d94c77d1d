"""A bounded share of the hostile requests; `python -m tests.hostile --requests 100000` sends as many as one likes."""

from tests.conftest import Server
from tests.hostile.__main__ import attack, send
from tests.hostile.seeds import Request


def test_no_hostile_request_ends_in_a_fault(server: Server) -> None:
    """How long they take is no fact here, where the machine may be busy: the program measures it."""
    found = attack(server, requests=600, seed=1)
    slow = [fault for fault in found.faults if " took " in fault or "waited" in fault]
    assert [fault for fault in found.faults if fault not in slow] == []
    assert sum(found.statuses.values()) == 600
    assert {200, 404, 422} <= set(found.statuses)


def test_a_state_whose_body_leaves_float64_has_no_file_and_says_so(server: Server) -> None:
    """½(θ − t)² of a target of 1e308 is a loss that no body holds, though nothing of it was asked for."""
    state = Request("/en/calculators/replica_ledger/case", [("target_a", "1e308"), ("a", "0"), ("b", "0")])
    status, _, body = send(server, state)
    assert status == 422
    assert body
