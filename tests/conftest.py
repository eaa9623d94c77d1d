"""What tests share: the application in process, a real server, and the rule that in CI nothing is skipped."""

import contextlib
import gc
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import settings
from starlette.testclient import TestClient
from starlette.types import ASGIApp
from xdist.scheduler import LoadScopeScheduling

from samestep.experiments.ranks import parent
from tests import warm

ROOT = Path(__file__).parents[1]
APP = (sys.executable, "-m", "app")

# How long something takes is a benchmark's matter, and a run that lands asks no question that was not asked before:
# `--hypothesis-profile=explore` asks new ones.
settings.register_profile("explore", deadline=None, print_blob=True)
settings.register_profile("tests", deadline=None, derandomize=True)
settings.load_profile("tests")

collect_ignore = ["recipe"]  # laid over a copy of the tree by test_recipe.py, and tested there


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """With SAMESTEP_NO_SKIP=1 a skipped test has failed."""
    report = yield
    if report.skipped and os.environ.get("SAMESTEP_NO_SKIP") == "1" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
    return report


class ByFile(LoadScopeScheduling):
    """Workers share the tests file by file; files that look at one run of processes stay together."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return shared_run(file) or file


@cache
def shared_run(file: str) -> str | None:
    """What a test file takes of one run for many, as its text says: the scheduler knows only names."""
    found = re.search(r"\b(lab: (?:Lab|Any)|loops: Loops|audit\.asked)\b", (ROOT / file).read_text("utf-8"))
    return found and found[1].partition(":")[0]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What collecting makes stays, so that looking for garbage in it would double its time and find none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that no worker is left alone with it at the end."""
    files = ("html", "pages", "panels", "recipe", "serving", "wheel")
    long = {"browser", "experiments", *(f"test_{name}.py" for name in files)}
    items.sort(key=lambda item: not {item.path.relative_to(ROOT).parts[1], item.path.name} & long)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    """Beside the process that starts the workers is one that has torch, and forks ranks for all of them."""
    forks = sys.platform == "linux" and not hasattr(config, "workerinput")
    with warm.warmed() if forks else contextlib.nullcontext():
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def ranks_are_forks() -> Iterator[None]:
    """On Linux; elsewhere they begin as they do for readers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parent, "subprocess", warm.starter())
        yield


class Client(TestClient):
    """Asks from inside the application's loop, and for nothing compressed unless a test says so.

    From outside, as Starlette's client asks, a request goes eight times from thread to thread: most of what a short
    answer costs.
    """

    def __init__(self, application: ASGIApp) -> None:
        self._inside = httpx2.AsyncClient(transport=httpx2.ASGITransport(application))
        super().__init__(application, headers={"accept-encoding": "identity"}, follow_redirects=False)

    def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        if stream or self.portal is None:
            return super().send(request, stream=stream, **options)
        return self.portal.call(partial(self._inside.send, request, **options))


@pytest.fixture(scope="session")
def client() -> Iterator[TestClient]:
    """The application in this process."""
    from samestep.app.main import create_app
    from samestep.app.settings import Settings

    with Client(create_app(Settings())) as client:
        yield client


BASE = "https://wiki.example.org"
DISCUSSIONS = "https://forum.example.org/new?lang={lang}&about={slug}%23{section}"


@pytest.fixture(scope="session")
def below() -> Iterator[TestClient]:
    """The wiki below a root path, with a base of its own and a place for discussions: one book for all who ask it."""
    from samestep.app.main import create_app
    from samestep.app.settings import Settings
    from tests.kit import compiling

    with compiling():
        application = create_app(Settings("/wiki", base_url=BASE, discuss_url=DISCUSSIONS))
    with Client(application) as client:
        yield client


class Server:
    """`python -m app`, or another command for it, as a process of its own, on a free port of the loopback.

    A test reads few pages of it, so that none is made before it is asked for, unless `ahead`.
    """

    def __init__(self, *options: str, checkout: Path = ROOT, command: Sequence[str] = APP, ahead: bool = False) -> None:
        lazy = () if ahead else ("--no-ahead",)
        whole = [*command, "--host", "127.0.0.1", "--port", "0", *lazy, *options]
        self.process = subprocess.Popen(
            whole, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self.lines: list[str] = []
        found: queue.Queue[str] = queue.Queue()

        def read() -> None:
            assert self.process.stdout is not None
            with self.process.stdout as output:
                for line in output:
                    self.lines.append(line)
                    if match := re.search(r"http://\S+", line):
                        found.put(match[0].rstrip("/"))
            found.put("")

        threading.Thread(target=read, daemon=True).start()
        try:
            self.url = found.get(timeout=60)
        except queue.Empty:
            self.url = ""
        if not self.url:
            self.stop()
            raise RuntimeError("the server did not start:\n" + "".join(self.lines))

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    """Starts servers of a test's own; what is left of them and of their workers is ended after it."""
    running: list[Server] = []

    def start(*options: str, **where: Any) -> Server:
        running.append(Server(*options, **where))
        return running[-1]

    yield start
    for one in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait(10)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One real server for all tests that need one."""
    running = Server()
    try:
        yield running
    finally:
        running.stop()
