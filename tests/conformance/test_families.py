"""Frameworks in environments of their own, in those that are here already (`run conformance --family …`).

What each takes stands beside its pins, in `families.FAMILIES`.
"""

from pathlib import Path

import pytest

from samestep.experiments.conformance import families, lab
from samestep.experiments.conformance.families import FAMILIES
from samestep.experiments.conformance.frameworks import FRAMEWORKS


@pytest.mark.parametrize("name", [name for name, each in FRAMEWORKS.items() if each.family])
def test_every_setting_does_what_is_said_of_it(name: str, tmp_path: Path) -> None:
    framework = FRAMEWORKS[name]
    if not families.made(FAMILIES[framework.family]):
        pytest.skip(f"no environment yet: samestep-lab run conformance --family {framework.family}")
    made = lab.run(tmp_path, {"framework": [name]}, lambda step, done: None)
    assert [row["id"] for row in made["rows"] if not row["met"]] == []
    assert made["verdict"] == "holds"
