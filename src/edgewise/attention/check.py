"""Checks of arguments: each raises ArgumentError with what was expected and what was received.

A message is formatted only if its check fails: every step of decoding runs these checks, and inside
torch.compile, formatting a symbolic size would add a guard.
"""

import reprlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from edgewise.errors import ArgumentError

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def type_of(name: str, given: object, expected: str, kind: type) -> None:
    """Raise ArgumentError unless an argument is of a class; `expected` describes it in words."""
    if not isinstance(given, kind):
        raise ArgumentError(f"{name} must be {expected}; got {received(given)}")


def tensor(
    name: str, given: Any, expected: str, dtypes: Sequence[torch.dtype], *ranks: int
) -> None:
    """Raise ArgumentError unless an argument is a tensor of these dtypes and ranks (none: any)."""
    is_tensor = isinstance(given, Tensor) and given.dtype in dtypes
    if not is_tensor or (ranks and given.dim() not in ranks):
        raise ArgumentError(f"{name} must be {expected}; got {received(given)}")


def shape(name: str, tensor: Tensor, expected: str, *shapes: tuple[int | str, ...]) -> None:
    """Raise ArgumentError unless a tensor has one of these shapes; a string is any size.

    expected: a format string for the message, with {} for each shape.
    """
    if tensor.shape in shapes:
        return  # most shapes are equal, without strings: that is compared without a loop
    for sizes in shapes:
        fits = (isinstance(x, str) or x == y for x, y in zip(sizes, tensor.shape, strict=False))
        if len(sizes) == tensor.dim() and all(fits):
            return
    shown = (f"[{', '.join(map(str, sizes))}]" for sizes in shapes)
    raise ArgumentError(f"{name} must be {expected.format(*shown)}; got {list(tensor.shape)}")


def device(name: str, tensor: Tensor, other: Tensor, of: str = "the query") -> None:
    """Raise ArgumentError unless a tensor is on the device of another."""
    if tensor.device != other.device:
        expected = f"on the device of {of}, {other.device}"
        raise ArgumentError(f"{name} must be {expected}; got {tensor.device}")


def like_query(name: str, tensor: Tensor, query: Tensor) -> None:
    """Raise ArgumentError unless a tensor has the query's dtype and device."""
    dtype, given = query.dtype, tensor.dtype
    if given != dtype:
        raise ArgumentError(f"{name} must have the query's dtype ({name}.to({dtype})); got {given}")
    device(name, tensor, query)


def dropout(dropout: float) -> None:
    """Raise ArgumentError unless a probability of dropping is at least 0 and below 1."""
    if not 0.0 <= dropout < 1.0:
        raise ArgumentError(f"dropout must be in [0, 1); got {dropout}")


def received(given: object) -> str:
    """Return an argument as messages show it: dtype and shape, or type and value."""
    if isinstance(given, Tensor):
        return f"{given.dtype} {list(given.shape)}"
    return f"{type(given).__name__} {reprlib.repr(given)}"
