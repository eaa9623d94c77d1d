"""Recognise samples by content: which rows of the reader's data a model was given, however they were sliced."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch


def digests(tensor: torch.Tensor) -> list[str]:
    """One short digest a row: of its bytes, shape and type."""
    rows = tensor.detach().cpu().contiguous()
    head = f"{tuple(rows.shape[1:])}{rows.dtype}".encode()
    flat = rows.reshape(len(rows), -1).view(torch.uint8) if rows.numel() else rows
    return (
        [hashlib.blake2b(head + bytes(row.numpy()), digest_size=8).hexdigest() for row in flat] if rows.numel() else []
    )


def tensors_in(value: Any) -> Iterable[torch.Tensor]:
    """The tensors among the arguments of a call, one level of lists and dictionaries deep."""
    for each in value.values() if isinstance(value, Mapping) else value:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple, Mapping)) and each:
            yield from tensors_in(each)


class Rows:
    """The rows of `data()`, to look up those that a forward gets. Equal rows are one digest with several numbers."""

    def __init__(self, data: Mapping[str, torch.Tensor]) -> None:
        self.numbers: dict[str, dict[str, list[int]]] = {}
        for name, tensor in data.items():
            found: dict[str, list[int]] = {}
            for number, digest in enumerate(digests(tensor)):
                found.setdefault(digest, []).append(number)
            self.numbers[name] = found

    def matched(self, tensor: torch.Tensor) -> tuple[str, list[str]] | None:
        """The field whose rows these are, and their digests; None where a row belongs to no field."""
        if tensor.dim() == 0 or (tensor.is_floating_point() and tensor.requires_grad):
            return None
        got = digests(tensor)
        for name, known in self.numbers.items():
            if all(digest in known for digest in got) and (got or tensor.shape[0] == 0):
                return name, got
        return None

    def samples(self, name: str, got: Iterable[str]) -> list[int] | None:
        """The samples of these rows; None where equal rows make that ambiguous."""
        found = [self.numbers[name][digest] for digest in got]
        return [numbers[0] for numbers in found] if all(len(numbers) == 1 for numbers in found) else None
