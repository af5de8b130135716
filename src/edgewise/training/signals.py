"""SIGTERM and SIGINT end a run between two updates, after saving; a second one at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from edgewise.errors import EdgewiseError


class InterruptedRunError(EdgewiseError):
    """A signal ended the run; everything up to its last update is saved."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(number).name} after update {step}, which is saved; the "
            "same command goes on from there"
        )
        self.number = number


class Stop:
    """Which signal has come, 0 if none."""

    number = 0


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Catch the two signals for as long as it lasts."""
    stop = Stop()

    def received(number: int, frame: FrameType | None) -> None:
        stop.number = number
        for each, handler in before.items():  # a second one is not caught
            signal.signal(each, handler)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number in before:
            signal.signal(number, received)
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
