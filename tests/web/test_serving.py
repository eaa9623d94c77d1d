"""The server as a process: how it starts, what it says when it cannot, and that it leaves nothing behind."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from samestep.app.__main__ import main
from tests.conftest import DISCUSSIONS
from tests.kit import ROOT, lay_out_first_chapter

HUNDRED_RANKS = {"n": [[3] * 10_000] * 100, "g": [[0.5] * 10_000] * 100}
"""A ledger of 1,000,000 cells, as columns."""

Start = Callable[..., Any]


def port_of(running: Any) -> int:
    return int(running.url.split(":")[2].split("/")[0])


def get(running: Any, path: str) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(running), timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer, answer.read().decode()


def status(running: Any, path: str) -> int:
    return get(running, path)[0].status


def body(running: Any, path: str) -> str:
    return get(running, path)[1]


def post(running: Any, path: str, body: bytes) -> http.client.HTTPConnection:
    """A request that is sent in full; its answer is still to come."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(running), timeout=120)
    connection.request("POST", path, body, {"content-type": "application/json"})
    return connection


def alive(running: Any) -> bool:
    """Whether any process of the server's group is left."""
    try:
        os.killpg(running.process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone_within(running: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        running.process.poll()
        if not alive(running):
            return True
        time.sleep(0.05)
    return False


def run(*options: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """`python -m app` where it is expected to end by itself."""
    command = [sys.executable, "-m", "app", "--port", "0", *options]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_the_first_line_says_the_address_to_open(server: Any) -> None:
    assert server.lines[0] == f"SameStep: {server.url}/\n"
    assert server.url.startswith("http://127.0.0.1:")
    answer, _ = get(server, "/")
    assert answer.status == 307
    assert status(server, str(answer.getheader("location"))) == 200


def test_a_server_says_nothing_else_while_all_is_well(start_server: Start) -> None:
    server = start_server(ahead=True)  # the shared one is attacked by other tests, and says so
    for path in ("/zh/parallel-correctness", "/en/calculators/info_nce?tau=0", "/zh/nothing", "/api/info_nce?tau=x"):
        get(server, path)
    assert server.lines[1:] == []


def test_a_server_does_not_say_what_it_is_made_of(server: Any) -> None:
    assert get(server, "/en/")[0].getheader("server") is None


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_a_busy_port_is_one_line_that_says_what_to_do(options: tuple[str, ...]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = run("--port", str(port), *options)
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert f"port {port}" in line
    assert "--port" in line


@pytest.mark.parametrize(
    "options", [("--port", "port"), ("--port", "70000"), ("--workers", "0"), ("--no-such-option",)]
)
def test_a_wrong_option_is_named(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    assert options[0] in capsys.readouterr().err


@pytest.fixture
def chapter(tmp_path: Path) -> Path:
    """The file of the one chapter in a checkout of its own, in which it and code may be spoiled."""
    shutil.copytree(ROOT / "app", tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("static", "templates", "experiments"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / ".src", tmp_path / ".src", symlinks=True)
    return lay_out_first_chapter(tmp_path / "content")


def test_a_broken_chapter_is_named_with_its_line_and_the_server_does_not_start(chapter: Path, tmp_path: Path) -> None:
    lines = chapter.read_text().split("\n")
    place = lines.index("```{calculator} gradient_scaling")
    lines[place] = "```{calculator} gradient_scalding"
    chapter.write_text("\n".join(lines))
    ended = run(cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert f"{chapter.name}:{place + 1}" in ended.stderr
    assert "gradient_scalding" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_with_reload_a_saved_chapter_and_saved_code_show_by_themselves(
    chapter: Path, tmp_path: Path, start_server: Start
) -> None:
    running = start_server("--reload", checkout=tmp_path)
    chapter.write_text(chapter.read_text().replace('\ntitle = "', '\ntitle = "Fresh: ', 1))
    assert "Fresh: " in body(running, "/en/gradient-scaling")
    code = tmp_path / "app" / "web" / "pages" / "errors.py"
    code.write_text(code.read_text().replace("There is no such page", "Nothing is here"))
    deadline = time.monotonic() + 20
    while "Nothing is here" not in body(running, "/en/nothing") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert "Nothing is here" in body(running, "/en/nothing")
    running.process.terminate()
    assert gone_within(running, 10)


def test_two_workers_answer_and_end_without_orphans(start_server: Start) -> None:
    running = start_server("--workers", "2")
    for _ in range(6):
        assert status(running, "/zh/gradient-scaling") == 200
    posted = post(running, "/api/replica_ledger", body_of(20_000))
    assert posted.getresponse().status == 200
    posted.close()
    running.process.terminate()
    assert gone_within(running, 10)


def body_of(cells: int) -> bytes:
    return json.dumps({"microsteps": {"n": [[3] * cells], "g": [[0.5] * cells]}}).encode()


def test_the_root_path_is_part_of_the_address_and_may_be_cut_off(
    start_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAMESTEP_DISCUSS_URL", DISCUSSIONS)  # the book of `below`, which is compiled once
    running = start_server("--root-path", "/wiki")
    assert running.url.endswith("/wiki")
    for path in ("/wiki/zh/", "/zh/"):
        assert status(running, path) == 200
    assert get(running, "/")[0].getheader("location") in ("/wiki/zh/", "/wiki/en/")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_within_five_seconds_though_a_browser_keeps_its_connection(
    start_server: Start, how: signal.Signals
) -> None:
    running = start_server()
    kept = http.client.HTTPConnection("127.0.0.1", port_of(running), timeout=30)
    kept.request("GET", "/zh/")
    kept.getresponse().read()
    with socket.create_connection(("127.0.0.1", port_of(running))):  # and another that never asks
        running.process.send_signal(how)
        assert gone_within(running, 5)
    kept.close()
    assert "Traceback" not in "".join(running.lines)


def test_a_server_ends_within_ten_seconds_in_the_midst_of_a_large_request(start_server: Start) -> None:
    running = start_server()
    with contextlib.closing(post(running, "/api/replica_ledger", json.dumps({"microsteps": HUNDRED_RANKS}).encode())):
        time.sleep(0.3)
        running.process.terminate()
        assert gone_within(running, 10)


def test_a_server_that_is_asked_to_end_under_load_answers_whole_or_not_at_all(start_server: Start) -> None:
    running = start_server()
    cut: list[str] = []
    answered: list[int] = []

    def ask() -> None:
        with contextlib.suppress(ConnectionError, http.client.RemoteDisconnected):
            while running.process.poll() is None:
                asked = http.client.HTTPConnection("127.0.0.1", port_of(running), timeout=30)
                asked.request("GET", "/en/parallel-correctness?replica_ledger.a=5")
                answer = asked.getresponse()
                try:
                    answered.append(len(answer.read()))
                except http.client.IncompleteRead as error:
                    cut.append(str(error))
                asked.close()

    readers = [threading.Thread(target=ask) for _ in range(8)]
    for reader in readers:
        reader.start()
    time.sleep(1)
    running.process.terminate()
    assert gone_within(running, 10)
    for reader in readers:
        reader.join(30)
    assert answered
    assert cut == []
    assert "Traceback" not in "".join(running.lines)


def test_a_killed_server_leaves_no_worker_behind(start_server: Start) -> None:
    running = start_server()
    with contextlib.closing(post(running, "/api/replica_ledger", body_of(20_000))) as posted:
        assert posted.getresponse().status == 200  # the worker for large requests runs now
    running.process.kill()
    assert gone_within(running, 10)


def test_a_page_asked_for_during_a_large_request_comes_first(server: Any) -> None:
    order: list[str] = []
    posted = post(server, "/api/replica_ledger", json.dumps({"microsteps": HUNDRED_RANKS}).encode())

    def await_large() -> None:
        answer = posted.getresponse()
        assert answer.status == 200
        assert json.loads(answer.read())["N"] == 3_000_000
        order.append("large")

    waiting = threading.Thread(target=await_large)
    waiting.start()
    for lang in ("zh", "en"):
        assert status(server, f"/{lang}/parallel-correctness?replica_ledger.a=5") == 200
        order.append(f"page {lang}")
    waiting.join(120)
    posted.close()
    assert order == ["page zh", "page en", "large"]


def test_an_idle_server_is_small_and_has_not_loaded_torch(start_server: Start) -> None:
    """Asked of the operating system: every library that a process has loaded is mapped into its memory. Pages that are
    made ahead come on top, each in one form."""
    running = start_server()
    for path in ("/zh/", "/en/parallel-correctness", "/zh/calculators/info_nce?tau=2", "/api/replica_ledger"):
        assert status(running, path) == 200
    process = Path("/proc") / str(running.process.pid)
    if not process.is_dir():
        pytest.skip("needs /proc: run this test on Linux")
    assert "numpy" in (process / "maps").read_text()
    assert "torch" not in (process / "maps").read_text()
    (resident,) = [line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS")]
    assert int(resident.split()[1]) < 140_000
