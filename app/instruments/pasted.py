"""Lines of a log in the place of a number: what they name goes to the fields that it belongs to."""

from collections.abc import Mapping

from samestep.app.calculators import Calculator
from samestep.app.contract.log_lines import read_log


def read_from_log(calculator: Calculator, fields: Mapping[str, str]) -> dict[str, str]:
    """The fields of a panel that a pasted log line gives, by name: its own, blank where the line does not name it, and
    those beside it that the line names too. Empty where nothing was pasted.
    """
    read: dict[str, str] = {}
    for group in calculator.query.logged:
        for field in group.values():
            found = read_log(fields.get(field, ""))
            if found:
                read |= {field: ""} | {group[kind]: number for kind, number in found.items()}
    return read
