"""Whole numbers within bounds, one or a list of them, as they are typed in a body or a text field."""

from collections.abc import Callable

from pydantic import WithJsonSchema

from samestep.app.contract.errors import InputError
from samestep.app.contract.numbers import whole
from samestep.app.contract.rows import split_rows


def between(lowest: int, largest: int) -> Callable[[object], int]:
    """A reader of one whole number."""

    def read(value: object) -> int:
        number = value if type(value) is int else whole(value)
        if number < lowest:
            raise InputError(f"must be {lowest} or more", f"不能小于 {lowest}", code="greater_than_equal")
        if number > largest:
            raise InputError(f"must be at most {largest:,}", f"不能大于 {largest:,}", code="less_than_equal")
        return number

    return read


def integers(lowest: int, largest: int) -> Callable[[object], tuple[int, ...]]:
    """A reader of one number, a list, or a text with `,`, `;`, tabs or newlines between; errors name the place."""
    read = between(lowest, largest)

    def read_all(value: object) -> tuple[int, ...]:
        cells = [cell for row in split_rows(value) for cell in row] if isinstance(value, str) else value
        if not isinstance(cells, list | tuple):
            return (read(cells),)
        numbers: list[int] = []
        try:
            for cell in cells:
                numbers.append(read(cell))
        except InputError as error:
            place = len(numbers) + 1
            raise InputError(f"value {place} {error.en}", f"第 {place} 个值{error.zh}", code=error.code) from None
        return tuple(numbers)

    return read_all


def schema(lowest: int, largest: int) -> WithJsonSchema:
    """JSON schema of one whole number."""
    return WithJsonSchema({"type": "integer", "minimum": lowest, "maximum": largest})


def list_schema(lowest: int, largest: int) -> WithJsonSchema:
    """JSON schema of one whole number, a list of them, or their text."""
    one = {"type": "integer", "minimum": lowest, "maximum": largest}
    return WithJsonSchema({"anyOf": [{"type": "array", "items": one}, one, {"type": "string", "examples": ["9,4,7"]}]})


def as_text(numbers: tuple[int, ...]) -> str:
    """A list in the grammar of GET fields."""
    return ",".join(map(str, numbers))
