"""Recognise samples: which rows of the reader's data a model was given.

A tensor that the audit dealt out, and every view of it however it is cut or flattened, is known by its memory: that
is the number that travels with a microbatch. A copy (a concatenation, a choice of rows) is recognised by content.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

MOST = 10_000_000
"""Numbers of a tensor up to which the rows that it touches are counted."""


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


def _by_number(numbers: Mapping[str, list[int]]) -> dict[int, str]:
    return {number: digest for digest, found in numbers.items() for number in found}


class Rows:
    """The rows of `data()`, to look up those that a forward gets. Equal rows are one digest with several numbers."""

    def __init__(self, data: Mapping[str, torch.Tensor]) -> None:
        self.numbers: dict[str, dict[str, list[int]]] = {}
        for name, tensor in data.items():
            found: dict[str, list[int]] = {}
            for number, digest in enumerate(digests(tensor)):
                found.setdefault(digest, []).append(number)
            self.numbers[name] = found
        self._digests = {name: _by_number(found) for name, found in self.numbers.items()}
        self._dealt: dict[int, tuple[str, torch.Tensor, Sequence[int]]] = {}
        self.deal(data, range(len(next(iter(data.values()), ()))))

    def deal(self, data: Mapping[str, torch.Tensor], samples: Sequence[int]) -> None:
        """Remember where these samples' rows are. The tensors are kept, so that no other takes their memory."""
        for name, tensor in data.items():
            if name in self.numbers and tensor.numel():
                self._dealt[tensor.untyped_storage().data_ptr()] = (name, tensor, samples)

    def dealt(self, tensor: torch.Tensor) -> tuple[str, list[int]] | None:
        """The field and the samples that this view of a dealt tensor touches; None for any other tensor."""
        if type(tensor) is not torch.Tensor or tensor.is_sparse or tensor.dim() == 0 or not 0 < tensor.numel() <= MOST:
            return None
        known = self._dealt.get(tensor.untyped_storage().data_ptr())
        if known is None or known[1].stride(0) == 0:
            return None
        name, base, samples = known
        place = torch.tensor(int(tensor.storage_offset()) - int(base.storage_offset()))
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            place = place[..., None] + torch.arange(size) * stride
        rows = torch.unique(place // base.stride(0)).tolist()
        return name, [samples[int(row)] for row in rows]

    def digests_of(self, name: str, samples: Iterable[int]) -> list[str]:
        """The digests of these samples' rows."""
        return [self._digests[name][sample] for sample in samples]

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
