"""SameStep: is it still the same update?"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("samestep")
except PackageNotFoundError:  # a checkout that was not installed
    __version__ = "0+checkout"
