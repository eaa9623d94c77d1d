"""How many bytes one element takes, by the names that PyTorch gives to its dtypes."""

from typing import Literal

Dtype = Literal["float64", "float32", "bfloat16", "float16", "float8_e4m3fn"]

BYTES: dict[Dtype, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
