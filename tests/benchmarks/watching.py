"""A training step of a model with 10 million parameters, watched and not: time and memory as ratios.

Steps alternate in one process of one thread, and its own processor time is counted, so that what else the machine does
falls on neither; medians are compared. Memory is the peak of a process that only watches, and of one that does not.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STEPS, TOKENS, VOCABULARY, WIDTH, LAYERS = 7, 1024, 8000, 256, 8


def train(steps: int, watch_every: int) -> list[float]:
    """Seconds of every step; each `watch_every`-th is watched (0: none)."""
    import torch
    from torch import nn
    from torch.nn import functional

    from samestep.experiments.watch.session import Order, start, stop

    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)]
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(VOCABULARY, (TOKENS // 128, 128))
    labels = tokens.roll(-1, 1)
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for step in range(steps):
            watched = bool(watch_every) and step % watch_every == watch_every - 1
            session = start(Order(folder, updates=9)) if watched else None
            if session is not None:
                session.windows.names = {}  # parameters are named once a run, not once a step
            began = time.process_time()
            functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.process_time() - began)
            if session is not None:
                stop(session)
    return seconds


def peak(watch_every: int) -> float:
    """Megabytes of a process of its own."""
    code = f"import watching as w; w.train(4, {watch_every}); print(w.resident())"
    here = str(Path(__file__).parent)
    path = f"{here}:{ROOT / '.src'}"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, check=True)
    return float(done.stdout)


def resident() -> float:
    """The largest size that this process has had, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    seconds = train(2 * STEPS + 2, 2)[2:]
    plain, watched = statistics.median(seconds[0::2]), statistics.median(seconds[1::2])
    without, within = peak(0), peak(1)
    print(f"a step of {TOKENS} tokens: {plain * 1e3:.0f} ms, watched {watched * 1e3:.0f} ms = {watched / plain:.3f} ×"
          " (goal 1.1 ×)")  # fmt: skip
    print(f"memory: {without:.0f} MB, watched {within:.0f} MB = {within / without:.3f} × (goal 1.05 ×)")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / ".src"))
    main()
