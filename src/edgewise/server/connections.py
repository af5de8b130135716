"""Connections: deadlines, how many there may be, and clients that have closed their side.

A client that has closed its side for writing looks like one that is gone: both send the same. It is
sent interim responses: whoever is gone answers these with a reset, which ends the connection.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgewise.server.failures import is_shortage
from edgewise.server.limits import Limits

logger = logging.getLogger("uvicorn.error")
# Connections that are accepted at a time.
BACKLOG = 64
# Descriptors for models, libraries and files other than those of the page.
RESERVE = 64
FEWEST, MOST = 8, 10_000
INTERIM = h11.InformationalResponse(status_code=102, headers=[], reason=b"Processing")
# Seconds before the first, the second and all other interim responses.
PROBES = (0.1, 0.1, 0.5)


def capacity() -> int:
    """Return how many connections fit into the process's limit of file descriptors.

    Each may have a file of the page open, and those that are accepted or closed at once count as
    well.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return MOST
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return MOST
    folder = Path("/dev/fd")
    used = len(list(folder.iterdir())) if folder.is_dir() else RESERVE
    return min(MOST, max(FEWEST, (limit - used - RESERVE - 2 * BACKLOG) // 2))


def log_once() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return an exception handler of an event loop.

    asyncio reports a connection that the system does not give us for each one that waits. It logs
    a line for all of these within a minute.
    """
    last = -math.inf

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal last
        error = context.get("exception")
        if not is_shortage(error) or "accept" not in str(context.get("message")):
            loop.default_exception_handler(context)
        elif loop.time() - last > 60:
            last = loop.time()
            logger.error("connections cannot be accepted: %s (see ulimit -n)", error)

    return handle


class _Deadline:
    """Something happens, unless it is called off in time."""

    timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float, act: Callable[[], None]) -> None:
        if self.timer is None:
            self.timer = asyncio.get_running_loop().call_later(seconds, act)

    def call_off(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def limited_protocol(limits: Limits, most: int) -> type[H11Protocol]:
    """Return uvicorn's protocol with our limits.

    It closes connections whose headers take long, or whose client does not read its answer. If
    there are more than `most`, it closes the one that has waited longest for a request.
    """
    waiting: dict[H11Protocol, None] = {}  # for a request; the first ones have waited longest

    class Protocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.reading, self.writing, self.probing = _Deadline(), _Deadline(), _Deadline()
            self.probes = 0
            self._await_request()
            if len(self.connections) > most:
                oldest = next(iter(waiting))  # this one, if all others are being answered
                del waiting[oldest]
                oldest.transport.close()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._await_request()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self._is_waiting():  # but for a request that came with the one before
                return
            waiting.setdefault(self)
            if self.probes:  # no more can come
                self.transport.close()

        def connection_lost(self, error: Exception | None) -> None:
            super().connection_lost(error)
            waiting.pop(self, None)
            for deadline in (self.reading, self.writing, self.probing):
                deadline.call_off()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.writing.begin(limits.seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self.writing.call_off()

        def eof_received(self) -> bool:  # type: ignore[override]
            """Return whether the connection stays open: its request is there to be answered."""
            if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
                return False
            self._probe()
            return True

        def _probe(self) -> None:
            """Write an interim response again and again, if the response has not begun."""
            is_new = self.conn.their_http_version == b"1.1"  # older clients know none
            if self.probes and is_new and self.conn.our_state is h11.SEND_RESPONSE:
                self.transport.write(self.conn.send(INTERIM) or b"")
            self.probing.call_off()
            self.probing.begin(PROBES[min(self.probes, len(PROBES) - 1)], self._probe)
            self.probes += 1

        def _is_waiting(self) -> bool:
            return self.conn.their_state is h11.IDLE and not self.transport.is_closing()

        def _await_request(self) -> None:
            """Start the deadline while headers are incomplete, and stop it when they are there."""
            if self._is_waiting():
                waiting.setdefault(self)
                self.reading.begin(limits.header_seconds, self.transport.close)
            else:
                waiting.pop(self, None)
                self.reading.call_off()

    return Protocol
