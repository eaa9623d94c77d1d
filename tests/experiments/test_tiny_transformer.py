"""The fixed model: 298,176 parameters, causal, and with the sums of losses that the experiments rely on."""

import math
from collections.abc import Iterator

import pytest
import torch

from samestep.experiments.tiny import tiny_transformer as tiny


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def test_the_parameter_count_is_298_176() -> None:
    model = tiny.TinyTransformer()
    assert tiny.parameter_count(model) == tiny.PARAMETERS == 298_176
    assert len(list(model.parameters())) == 28
    block = (96 * 288 + 288) + (96 * 96 + 96) + (96 * 384 + 384) + (384 * 96 + 96) + 2 * 192
    assert 2 * 387 * 96 + 2 * block + 192 == 298_176


def test_a_position_does_not_see_what_comes_after_it() -> None:
    model = tiny.TinyTransformer()
    tokens = torch.randint(0, tiny.VOCABULARY, (1, 12))
    changed = tokens.clone()
    changed[0, 8:] = 5
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


def test_written_out_attention_is_the_usual_one() -> None:
    block, x = tiny.Block(), torch.randn(2, 7, tiny.WIDTH)
    query, key, value = block.query_key_value(x).view(2, 7, 3, tiny.HEADS, 24).permute(2, 0, 3, 1, 4)
    usual = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    wanted = block.attention_out(usual.transpose(1, 2).reshape(2, 7, tiny.WIDTH))
    assert torch.allclose(block.attention(x), wanted, rtol=0, atol=1e-12)


def test_sums_and_means_over_labels() -> None:
    logits = torch.zeros(1, 4, tiny.VOCABULARY)
    labels = torch.tensor([[1, 2, tiny.IGNORED, tiny.IGNORED]])
    assert float(tiny.loss_sum(logits, labels)) == pytest.approx(2 * math.log(387))
    assert float(tiny.loss_mean(logits, labels)) == pytest.approx(math.log(387))
    nothing = torch.full((1, 4), tiny.IGNORED)
    assert float(tiny.loss_sum(logits, nothing)) == 0.0
    assert math.isnan(float(tiny.loss_mean(logits, nothing)))


def test_initial_weights_depend_on_the_seed_alone() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(11)
        models.append(tiny.TinyTransformer())
        tiny.initialise(models[-1])
    one, other = (dict(model.named_parameters()) for model in models)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert float(one["head.weight"].detach().std()) == pytest.approx(0.02, rel=0.02)
