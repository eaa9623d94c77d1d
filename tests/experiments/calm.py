"""An adapter that does nothing wrong."""

from troublesome import SETTINGS as THEIRS, run as run

SETTINGS = tuple(each for each in THEIRS if each.id == "good")
