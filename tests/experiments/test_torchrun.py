"""The same experiments in a world that torchrun made: on one machine, and on two hosts with addresses of their own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from samestep.experiments.registry import ROOT

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
NAMES = ["info_nce", "clip_ownership", "gradient_scaling"]
PORT = "29541"


def verdicts(folder: Path) -> dict[str, str]:
    places = {name: folder / name / "result.json" for name in NAMES}
    return {name: json.loads(place.read_text("utf-8"))["verdict"] for name, place in places.items()}


def test_run_joins_the_world_of_torchrun(tmp_path: Path) -> None:
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "-m", "experiments", "run", *NAMES]
    done = subprocess.run([*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdicts(tmp_path) == dict.fromkeys(NAMES, "holds")
    assert json.loads((tmp_path / "info_nce" / "result.json").read_text("utf-8"))["processes"] == 2
    assert done.stdout.count("info_nce holds") == 1  # one process prints


def test_another_number_of_processes_than_torchrun_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT}
    command = [sys.executable, "-m", "experiments", "run", "clip_ownership", "--processes", "3"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **world}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "samestep-lab: torchrun started 2 processes, not 3\n")


@dataclass(frozen=True)
class Host:
    """A network namespace with one address."""

    space: str
    address: str

    def command(self, *arguments: str) -> list[str]:
        return ["ip", "netns", "exec", self.space, *arguments]


@pytest.fixture
def two_hosts() -> Iterator[list[Host]]:
    """Two network namespaces joined by a cable, removed afterwards."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("two hosts need root and the `ip` command (Debian: apt-get install iproute2)")
    number = os.getpid() % 100_000
    hosts = [Host(f"samestep{side}{number}", f"10.77.0.{n}") for n, side in ((1, "a"), (2, "b"))]
    try:
        _ip("link", "add", f"va{number}", "type", "veth", "peer", "name", f"vb{number}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this system allows no network namespaces: {error.stderr.strip()}")
    try:
        for host, card in zip(hosts, (f"va{number}", f"vb{number}"), strict=True):
            _ip("netns", "add", host.space)
            _ip("link", "set", card, "netns", host.space)
            for words in (f"addr add {host.address}/24 dev {card}", f"link set {card} up", "link set lo up"):
                subprocess.run(host.command("ip", *words.split()), check=True, capture_output=True)
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.space], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", f"va{number}"], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def test_two_hosts_run_the_experiments_together(two_hosts: list[Host], tmp_path: Path) -> None:
    running = []
    for number, host in enumerate(two_hosts):
        meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(number)]
        meeting += ["--master-addr", two_hosts[0].address, "--master-port", PORT]
        command = [*TORCHRUN, *meeting, "-m", "experiments", "run", *NAMES, "--out", str(tmp_path / host.space)]
        with (tmp_path / f"{number}.log").open("w") as log:
            running.append(subprocess.Popen(host.command(*command), cwd=ROOT, stdout=log, stderr=log))
    try:
        codes = [process.wait(120) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    logs = [(tmp_path / f"{number}.log").read_text() for number in range(2)]
    assert codes == [0, 0], logs
    assert verdicts(tmp_path / two_hosts[0].space) == dict.fromkeys(NAMES, "holds")
    assert "holds" not in logs[1]  # rank 0 lives on the first host
