"""What a panel's form calls its fields: read from the form, so that a message speaks of them by the same words."""

import re
from collections.abc import Mapping

from samestep.app.contract.languages import Lang

_LABEL = re.compile(
    r'<label for="(?P<id>[^"]+)">(?P<words>.*?)</label>'
    r'|<fieldset [^>]*?\bid="(?P<set>[^"]+)"[^>]*>\s*<legend>(?P<legend>.*?)</legend>',
    re.DOTALL,
)
_SCHEMES = re.compile(r'<select id="[^"]+-scheme".*?</select>', re.DOTALL)
_OPTION = re.compile(r'<option value="([^"]+)"[^>]*>(.*?)</option>', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_NAME = re.compile(r"“[^”]*”|(?<![\w.])[A-Za-z_][\w.]*\w(?![\w.])", re.ASCII)
_QUOTED_AMONG_HAN = re.compile(r"(?<=[\u4e00-\u9fff]) (?=“)|(?<=”) (?=[\u4e00-\u9fff])")


def labels_in(form: str, panel: str) -> dict[str, str]:
    """The words of labels and legends in a form's HTML, by field, and of schemes by their name.

    `panel` is the id that its controls begin with.
    """
    schemes = _SCHEMES.search(form)
    found = dict(_OPTION.findall(schemes[0])) if schemes else {}
    for match in _LABEL.finditer(form):
        name = (match["id"] or match["set"]).removeprefix(f"{panel}-")
        found[name] = " ".join(_TAG.sub("", match["words"] or match["legend"]).split())
    return found


def in_words(message: str, field: str, labels: Mapping[str, str], lang: Lang) -> str:
    """A message with the names of fields (`second_counts`, `observed.loss`) said as the form does.

    A name that the label says too (`dp`) stays, like a plain word in an English sentence and what somebody typed, which
    is in quotation marks.
    """
    message = message.removeprefix(f"{field}: ").removeprefix(f"{field}：")

    def word(found: re.Match[str]) -> str:
        label = labels.get(found[0].replace(".", "_"), "")
        said = found[0] in label.split() or (lang == "en" and found[0].isalpha())
        return found[0] if said or not label else f"“{label}”"

    return _QUOTED_AMONG_HAN.sub("", _NAME.sub(word, message))
