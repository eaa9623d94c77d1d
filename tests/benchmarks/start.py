"""From the start of the process to the first page: caches warm and cold; what the idle server weighs."""

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from serving import CHAPTER, ROOT, free_port


def first_page(cache: Path) -> tuple[float, float]:
    """Seconds until the first page has answered, and the server's resident megabytes afterwards."""
    port = free_port()
    environment = {**os.environ, "SAMESTEP_CACHE_DIR": str(cache)}
    start = time.perf_counter()
    command = [sys.executable, "-m", "app", "--port", str(port)]
    server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{CHAPTER}", timeout=30).read()
                break
            except OSError:
                time.sleep(0.02)
        seconds = time.perf_counter() - start
        time.sleep(3)
        status = Path(f"/proc/{server.pid}/status").read_text()
        return seconds, int(status.split("VmRSS:")[1].split()[0]) / 1024
    finally:
        server.terminate()
        server.wait(15)


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        cold, _ = first_page(Path(cache))
        warm, weight = first_page(Path(cache))
    bare = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import fastapi, uvicorn, numpy"], check=True)
    bare = time.perf_counter() - bare
    print(f"first page, cold: {cold:.1f} s (goal 20 s)")
    print(f"first page, warm: {warm:.1f} s (goal 2 s) = {warm / bare:.1f} × importing fastapi, uvicorn and numpy")
    print(f"idle: {weight:.0f} MB (goal 120 MB)")


if __name__ == "__main__":
    main()
