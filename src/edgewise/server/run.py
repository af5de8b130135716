"""The server as a process: a socket, signals, deadlines of connections."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgewise.errors import SettingError
from edgewise.server.app import Application
from edgewise.server.limits import Limits
from edgewise.server.models import Models
from edgewise.server.work import Work

KEEP_ALIVE_SECONDS = 15


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address; SettingError if there is none. Nobody can connect to it yet."""
    if not 0 <= port <= 65535:  # which the system would take modulo 65,536
        raise SettingError(f"--port must be from 0 to 65535; got {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingError(
            f"nothing can be served at --host {host} --port {port}: {reason} (--port 0 takes any "
            "that is free)"
        ) from None
    return found


def serve(
    models: Models, limits: Limits, listener: socket.socket, listening: Callable[[], None]
) -> int:
    """Answer requests until a signal comes, then those that are there; which signal it was.

    listening: called when requests can come.
    """
    app = Application(models, limits)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # not what strangers send
    config = uvicorn.Config(
        app,
        http=_deadline_for_headers(limits.header_seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
    )
    server = _Server(config, app.work, listening)
    server.run([listener])
    return server.number


class _Server(uvicorn.Server):
    """Signals end it in order; uvicorn would raise them again at its end."""

    def __init__(self, config: uvicorn.Config, work: Work, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self.work, self.listening, self.number = work, listening, 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        def received(number: int, frame: FrameType | None) -> None:
            if self.should_exit:  # the second one: there is nothing to save
                os._exit(128 + number)
            self.should_exit = self.work.draining = True
            self.number = number

        before = {each: signal.signal(each, received) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def _deadline_for_headers(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol, which closes a connection whose headers take longer."""

    class Protocol(H11Protocol):
        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, error: Exception | None) -> None:
            super().connection_lost(error)
            self._unwatch()

        def _watch(self) -> None:
            """Begin to wait when headers do, and end when they are there."""
            if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
                self._unwatch()
            elif self.deadline is None:
                self.deadline = self.loop.call_later(seconds, self.transport.close)

        def _unwatch(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

    return Protocol
