"""`import samestep.experiments.watch.on` as the first line of a script: watched to its end, reported by rank 0."""

import atexit

from samestep.experiments.watch import session
from samestep.experiments.watch.front import Watching

if session.current() is None:
    watching = Watching()
    watching.begin()
    begun = session.current()
    assert begun is not None
    session.whole_life(begun)
    atexit.register(watching.end)  # runs before the session's own end: the last that was registered comes first
