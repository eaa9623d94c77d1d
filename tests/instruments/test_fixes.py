"""What to do about a verdict: every instrument says it in one line, by the same mark, where something is to be done."""

import re
from collections.abc import Iterator
from typing import get_args
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from samestep.app.calculators import registry
from samestep.app.instruments.presets import load_presets
from samestep.app.paths import folder

FIX = re.compile(r'<p class="fix" data-fix>(.*?)</p>', re.DOTALL)
VERDICT = re.compile(r'<p class="verdict ?(\w*)" data-verdict>')


ALSO: dict[str, dict[str, tuple[str, ...]]] = {
    "batch_statistics": {"term": ("load_balance", "whiten", "batch_norm", "group_norm")},
    "fsdp_timeline": {"reshard_after_forward": ("false",)},
    "matrix_update": {"method": ("adafactor",)},
    "no_sync_timeline": {"wrapper": ("fsdp2", "hsdp"), "unused": ("one_rank", "everywhere")},
    "collectives": {"op": ("reduce_scatter",), "reduce": ("max",)},
}
"""Choices beside the scheme on which a fix depends."""


def states(name: str) -> Iterator[dict[str, str]]:
    """The defaults, every scheme in their place, and the presets."""
    yield {}
    schemes = registry()[name].query.model_fields.get("scheme")
    named = [word for word in get_args(schemes and schemes.annotation) if isinstance(word, str)]
    for field, words in [("scheme", named), *ALSO.get(name, {}).items()]:
        yield from ({field: word} for word in words)
    for preset in load_presets(folder("content")).get(name, []):
        yield dict(preset.fields)


@pytest.mark.parametrize("name", registry())
def test_a_verdict_of_another_update_comes_with_its_fix_and_one_of_the_same_without(
    client: TestClient, name: str
) -> None:
    told = 0
    for number, state in enumerate(states(name)):
        page = client.get(f"/{('zh', 'en')[number % 2]}/calculators/{name}/result?{urlencode(state)}")
        if page.status_code == 422:
            continue
        kinds, fixes = VERDICT.findall(page.text), FIX.findall(page.text)
        assert len(kinds) == 1, state
        assert len(fixes) <= 1, state
        assert kinds[0] not in ("other", "coincidence") or fixes, (state, page.text[:600])
        assert (kinds[0] != "same") or not fixes, (state, fixes)
        assert all(len(re.sub("<.*?>", "", fix)) > 20 and "None" not in fix for fix in fixes), fixes
        told += len(fixes)
    template = (folder("templates") / "calculators" / f"{name}.html").read_text("utf-8")
    assert told or "verdict other" not in template, "no state of this instrument asked for its fix"
