"""SameStep: is it still the same update?"""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

if __name__ == "app":  # `python -m app`: the code of this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).parents[1] / ".src"))

try:
    __version__ = version("samestep")
except PackageNotFoundError:  # a checkout that was not installed
    __version__ = "0+checkout"
