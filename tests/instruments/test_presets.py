"""Presets: every calculator has one, each computes, shows what it says, and stems from a report that the book cites."""

import json

import pytest

from samestep.app.calculators import registry
from samestep.app.contract.paths import value_at
from samestep.app.instruments.answers import get
from samestep.app.instruments.presets import Preset, load_presets
from tests.kit import CONTENT

PRESETS = load_presets(CONTENT)
each_preset = pytest.mark.parametrize(
    "preset", [preset for some in PRESETS.values() for preset in some], ids=lambda preset: preset.en
)


def test_every_calculator_has_a_preset() -> None:
    assert set(PRESETS) == set(registry())


@each_preset
def test_a_preset_computes_and_shows_what_it_says(preset: Preset) -> None:
    answer = get(preset.calculator, preset.state.removeprefix("?"))
    assert answer.status == 200, answer.body
    if preset.says is not None:
        shown = value_at(json.loads(answer.body), preset.says.field)
        assert (shown if isinstance(shown, str) else json.dumps(shown).removesuffix(".0")) == preset.says.value


@each_preset
@pytest.mark.parametrize("lang", ["zh", "en"])
def test_a_preset_stems_from_a_report_that_the_book_cites(preset: Preset, lang: str) -> None:
    assert any(preset.source in chapter.read_text("utf-8") for chapter in (CONTENT / lang).glob("*.md"))
