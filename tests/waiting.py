"""Waiting for what happens in another process or thread."""

import time
from collections.abc import Callable
from typing import TypeVar

# Longer than anything that is waited for; a test that would hang fails after these seconds.
PATIENCE = 60.0
Value = TypeVar("Value")


def wait_until(condition: Callable[[], Value], seconds: float = PATIENCE) -> Value:
    """Return the condition's value once it is true; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"still not so after {seconds:g} s"
        time.sleep(0.01)
    return value
