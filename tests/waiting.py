"""Waiting for what happens in another process or thread."""

import time
from collections.abc import Callable
from typing import TypeVar

# Default timeout in seconds; a test that would hang fails after it.
PATIENCE = 60.0
Value = TypeVar("Value")


def wait_until(condition: Callable[[], Value], seconds: float = PATIENCE) -> Value:
    """Return the first true value of `condition()`; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"condition still false after {seconds:g} s"
        time.sleep(0.01)
    return value
