"""Numbers in a line of a training log: `loss: 2.31 grad_norm: 0.42`, `{'loss': 2.31, 'grad_norm': 0.42}`,
`| lm loss: 2.31E+00 | loss scale: 1.0 | grad norm: 0.420 |`, `loss=2.31, gnorm=0.42`.
"""

import re
from collections.abc import Callable, Mapping

from samestep.app.contract.numbers import NUMBER

LONGEST_LOG = 100_000
_PAIR = re.compile(
    rf"([A-Za-z][\w/. -]{{0,80}}?)['\"]?\s*[:=]\s*['\"]?((?>{NUMBER}|[+-]?(?:nan|inf)\b))(?![\w%/]|[.,][0-9])",
    re.IGNORECASE,
)
"""A name and its number. What goes on behind a number makes it another one (`2,31`, `1/3`, `7B`): that is not read."""
_BREAK = re.compile(r"[^a-z0-9]+")
_NOT_TRAINING = {"eval", "val", "valid", "validation", "test", "avg", "mean", "num"}
_A_TERM = {"aux", "moe", "router", "balance", "balancing", "z", "mtp", "kl", "entropy", "policy", "pg", "value", "vf"}
"""Losses that are one term of the training loss, and stand beside it."""
_A_LIMIT = {"max", "min", "clip", "clipped"}
"""`max_grad_norm` is the bound of clipping, not the norm."""


def _is_norm(words: list[str]) -> bool:
    named = words[-1] == "gnorm" or words[-2:] in (["grad", "norm"], ["gradient", "norm"], ["total", "norm"])
    return named and not _A_LIMIT & set(words)


def _is_loss(words: list[str]) -> bool:
    return words[-1] == "loss" and not (_NOT_TRAINING | _A_TERM) & set(words)


_KINDS: Mapping[str, Callable[[list[str]], bool]] = {"loss": _is_loss, "gradient_norm": _is_norm}


def read_log(text: str) -> dict[str, str]:
    """The training loss and the gradient norm that a log names, as it writes them; of several lines those of the last.

    Empty where the text is no log of them.
    """
    found: dict[str, str] = {}
    if len(text) > LONGEST_LOG:
        return found
    for name, number in _PAIR.findall(text):
        words = [word for word in _BREAK.split(name.lower()) if word]
        for kind, fits in _KINDS.items():
            if fits(words):
                found[kind] = number
    return found
