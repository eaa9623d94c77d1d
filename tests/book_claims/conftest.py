"""Programs of the book may set torch's default dtype, as their readers would; the next test begins with torch's own."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _torchs_own_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float32)
