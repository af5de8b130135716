"""Where a model runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from edgewise.errors import EdgewiseError, SettingError


def device_named(name: str, setting: str = "device", local: int | None = None) -> torch.device:
    """The device of a name; auto: a GPU if there is one. SettingError if it is not there.

    local: of several processes that share out the GPUs, which one this is.
    """
    wanted = name
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
        if local is not None and device == torch.device("cuda"):
            device = torch.device("cuda", local)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        raise SettingError(
            f"{setting} must be auto, cpu, or a GPU of this machine such as cuda:0; got "
            f"{name!r}: {str(error).splitlines()[0].split('. ')[0]}"
        ) from None
    return device


class OutOfMemoryError(EdgewiseError):
    """Memory does not suffice."""


@contextmanager
def within_memory(message: str) -> Iterator[None]:
    """Where memory does not suffice, OutOfMemoryError with this message."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        known = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        if not known and "can't allocate memory" not in str(error):
            raise
        raise OutOfMemoryError(f"out of memory {message}") from None
