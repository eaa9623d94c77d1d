"""Whether a chapter is the same in both languages: ids, formulas, panels, checked numbers."""

from collections import Counter
from collections.abc import Iterator

from samestep.app.book.markdown.pieces import CalculatorRef, Document, EvidenceRef, Ref, Section


def differences(one: Document, other: Document) -> Iterator[tuple[int, str]]:
    """What `one` has and `other` lacks, as pairs of a line of `one` and a description."""
    for identifier, line in one.anchors.items():
        if identifier not in other.anchors:
            yield line, f"the id “{identifier}”"
    order, expected = ([s.id for s in _flat(document)] for document in (one, other))
    if order != expected and set(order) == set(expected):
        yield 1, "the order of the headings"
    panels = {ref.id: ref for ref in _refs(other)}
    for ref in _refs(one):
        twin = panels.get(ref.id)
        if twin and _state(twin) != _state(ref):
            yield ref.line, f"the content of the panel “{ref.id}”"
    theirs = Counter((number.source, number.field) for number in other.checked)
    for number in one.checked:
        theirs[number.source, number.field] -= 1
        if theirs[number.source, number.field] < 0:
            yield number.line, f"the checked number “{number.text}” ({number.source}, {number.field})"
    if one.formulas > other.formulas:
        yield 1, f"{one.formulas} display formulas (the other has {other.formulas})"


def _flat(document: Document) -> Iterator[Section]:
    for section in document.sections:
        yield section
        yield from section.children


def _refs(document: Document) -> list[Ref]:
    return [*document.calculators, *document.evidence, *document.figures]


def _state(ref: Ref) -> object:
    if isinstance(ref, CalculatorRef):
        return ref.name, ref.fields
    return (ref.name, ref.rows, ref.keys) if isinstance(ref, EvidenceRef) else ref.name
