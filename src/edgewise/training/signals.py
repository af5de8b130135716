"""SIGTERM and SIGINT end a run between two updates, after saving; a second one at once.

Under torchrun the same signal may come twice, from whoever sent it and from torchrun, which also
sends one to all when one of them has ended: there a second one is not heard, nor is one that comes
when the run has ended before its time. (torchrun itself kills after half a minute.)
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Which signal has come, 0 if none."""

    number = 0


@contextmanager
def stop_signals(*, patient: bool = False) -> Iterator[Stop]:
    """Catch the two signals for as long as it lasts; if patient, also the second."""
    stop = Stop()

    def received(number: int, frame: FrameType | None) -> None:
        stop.number = stop.number or number
        if patient:
            return
        for each, handler in before.items():  # a second one is not caught
            signal.signal(each, handler)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ended = False
    try:
        for number in before:
            signal.signal(number, received)
        yield stop
        ended = True
    finally:
        if ended or not patient:
            for number, handler in before.items():
                signal.signal(number, handler)
