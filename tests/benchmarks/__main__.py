"""All benchmarks, one after the other: `python tests/benchmarks`. They print ratios against named baselines."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

for name in ("calculators", "search", "serving", "start", "first_view", "slider", "watching"):
    print(f"\n{name}", flush=True)
    subprocess.run([sys.executable, HERE / f"{name}.py"], cwd=HERE.parents[1], check=True)
