"""Is my own parallel step still the same update? The reader's file, run once on one process and once on several.

In the reader's own test suite:

    from samestep.experiments.audit import audit

    def test_my_step_is_still_the_same_update():
        report = audit("my_step.py")
        assert report.verdict == "same", report

The processes are started from the file, so it does not matter what pytest has imported. This package's front imports no
torch; everything that does lives in the ranks.
"""

from samestep.experiments.audit.call import audit, audit_many
from samestep.experiments.audit.settings import Settings
from samestep.experiments.audit.telling.report import Report

__all__ = ["Report", "Settings", "audit", "audit_many"]
