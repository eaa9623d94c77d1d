"""A linear sketch of a tensor: a few numbers from which the coefficients of a sum of tensors can be solved.

A tensor x with elements x_i is laid out in rows of a prime length, i = row · 4099 + column, and

    sketch_b = Σ_i s[column] · u[row] · x_i   over the columns with column mod 64 = b

with fixed random signs s and u. It reads x once, keeps 64 numbers in float64, and adds up: over tensors of the same
shape, and over the shards of one tensor, whose `offset` is the index of their first element in the whole.

The row length is prime so that no column sum of the tensor lines up with a row: such sums can vanish (the gradient of
a language model's head summed over its vocabulary does). Rows are summed in float32 by blocks, blocks in float64:
rounding stays at 1e-7 of the norm, whatever the size. After count sketches (Charikar, Chen, Farach-Colton, 2002).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

WIDTH = 64
"""Numbers in a sketch."""
ROW = 4099
BLOCK = 256
"""Rows that are summed in float32; it also bounds the copy that low-precision tensors need."""
_PADDED = -(-ROW // WIDTH) * WIDTH

_rows: dict[torch.device, Tensor] = {}
_columns: dict[torch.device, Tensor] = {}


def _signs(count: int, seed: int) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randint(0, 2, (count,), generator=generator, device="cpu", dtype=torch.int8) * 2 - 1


_FIRST = float(_signs(4096, 7)[0])
"""The sign of the first row."""


def _row_signs(rows: int, device: torch.device) -> Tensor:
    """[≥ rows] float32; a longer one begins with the shorter one."""
    known = _rows.get(device)
    if known is None or len(known) < rows:
        size = max(4096, 1 << (rows - 1).bit_length())
        parts = [_signs(4096, 7 + part) for part in range(-(-size // 4096))]
        known = _rows[device] = torch.cat(parts).to(device, torch.float32)
    return known


def _column_signs(device: torch.device) -> Tensor:
    """[4160] float64, zero where no column is."""
    if device not in _columns:
        signs = torch.zeros(_PADDED, dtype=torch.float64, device="cpu")
        signs[:ROW] = _signs(ROW, 3)
        _columns[device] = signs.to(device)
    return _columns[device]


def sketch(tensor: Tensor, offset: int = 0) -> Tensor:
    """[64] float64 on the tensor's device. `offset`: index of its first element in the whole tensor."""
    with torch.no_grad():
        if not torch.is_autocast_enabled(tensor.device.type):
            return _sketch(_flat(tensor.detach()), offset)
        with torch.autocast(tensor.device.type, enabled=False):
            return _sketch(_flat(tensor.detach()), offset)


def _sketch(flat: Tensor, offset: int) -> Tensor:
    count = flat.numel()
    if offset == 0 and 0 < count <= ROW:  # within the first row: most tensors are this small
        signed = flat.double() * (_column_signs(flat.device)[:count] * _FIRST)
        return functional.pad(signed, (0, -count % WIDTH)).view(-1, WIDTH).sum(0)
    sums = torch.zeros(_PADDED, dtype=torch.float64, device=flat.device)
    if count:
        _add_rows(flat, offset, sums)
    return _folded(sums)


def sketch_of_shard(tensor: Tensor, whole: Sequence[int], begins: Sequence[int]) -> Tensor:
    """[64] of a block that begins at index `begins` of a tensor of shape `whole`; contiguous blocks are cheap."""
    if tuple(tensor.shape[1:]) == tuple(whole[1:]):
        return sketch(tensor, (begins[0] if begins else 0) * math.prod(whole[1:]))
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        local = tensor.detach()
        index = torch.zeros((), dtype=torch.int64, device=local.device)
        for axis, (size, begin) in enumerate(zip(local.shape, begins, strict=True)):
            along = (torch.arange(size, device=local.device) + begin) * math.prod(whole[axis + 1 :])
            index = index.unsqueeze(-1) + along
        flat, places = _flat(local).double(), index.reshape(-1)
        signed = flat * _row_signs(math.prod(whole) // ROW + 1, local.device)[places // ROW]
        sums = torch.zeros(_PADDED, dtype=torch.float64, device=local.device)
        return _folded(sums.index_add_(0, places % ROW, signed))


def _flat(tensor: Tensor) -> Tensor:
    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    return (torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense).reshape(-1)


def _folded(sums: Tensor) -> Tensor:
    return (sums * _column_signs(sums.device)).view(-1, WIDTH).sum(0)


def _add_rows(flat: Tensor, offset: int, sums: Tensor) -> None:
    """Add every row with its sign: the rest of a row that began before, whole rows, and the beginning of a last one."""
    row, column = divmod(offset, ROW)
    signs = _row_signs((offset + flat.numel()) // ROW + 2, flat.device)
    begin = 0
    if column:
        begin = min(ROW - column, flat.numel())
        sums[column : column + begin].add_(flat[:begin].double() * signs[row])
        row += 1
    whole = (flat.numel() - begin) // ROW
    if whole:
        rows = flat[begin : begin + whole * ROW].view(whole, ROW)
        kind = torch.float64 if rows.dtype == torch.float64 else torch.float32
        for first in range(0, whole, BLOCK):
            block = rows[first : first + BLOCK].to(kind)
            sums[:ROW].add_(torch.mv(block.t(), signs[row + first : row + first + len(block)].to(kind)))
        begin += whole * ROW
        row += whole
    if begin < flat.numel():
        sums[: flat.numel() - begin].add_(flat[begin:].double() * signs[row])
