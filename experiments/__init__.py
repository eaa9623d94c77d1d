"""Experiments that run for real: offline, float64, one question each. Only here is torch imported."""

import sys
from pathlib import Path

if __name__ == "experiments":  # `python -m experiments`: the code of this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).parents[1] / ".src"))
