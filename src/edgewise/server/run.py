"""The server as a process: a socket and signals."""

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import uvicorn

from edgewise.errors import SettingError
from edgewise.server.app import Application
from edgewise.server.connections import BACKLOG, capacity, limited_protocol, log_once
from edgewise.server.limits import Limits
from edgewise.server.models import Models

KEEP_ALIVE_SECONDS = 15
QUEUE = 1024  # connections that the system holds until we accept them


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address; SettingError if there is none. Who connects has to wait."""
    if not 0 <= port <= 65535:  # which the system would take modulo 65,536
        raise SettingError(f"--port must be from 0 to 65535; got {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen()  # another server that is just starting would else have the same
    except (OSError, OverflowError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingError(
            f"nothing can be served at --host {host} --port {port}: {reason} (--port 0 takes any "
            "that is free)"
        ) from None
    return found


def compute_thread() -> ThreadPoolExecutor:
    """The one thread that ever calls PyTorch, to load models too.

    A second one would have worker threads of its own, and more threads than cores no longer wait
    for their next piece of work, but are woken for each: 2.5 times slower, on two cores.
    """
    return ThreadPoolExecutor(1, thread_name_prefix="compute")


@dataclass(frozen=True)
class Ended:
    """By which signal, and how many requests had taken too long to be answered."""

    signal: int
    cut_off: int


class Server(uvicorn.Server):
    """Answers requests until it is stopped, then those that it has accepted.

    thread: the one that computes, see `compute_thread`. listening: called when requests can come.
    """

    def __init__(
        self,
        models: Models,
        limits: Limits,
        listener: socket.socket,
        thread: ThreadPoolExecutor,
        listening: Callable[[], None],
    ) -> None:
        app = Application(models, limits, thread)
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # not what strangers send
        super().__init__(
            uvicorn.Config(
                app,
                http=limited_protocol(limits, capacity()),
                backlog=BACKLOG,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=int(limits.seconds) + 1,
            )
        )
        self.work, self.listener, self.listening = app.work, listener, listening
        self.signal = self.cut_off = 0

    def serve_until_stopped(self) -> Ended:
        """Serve, and return when all accepted requests are answered or have timed out."""
        self.run([self.listener])
        return Ended(self.signal, self.cut_off)

    def stop(self, number: int) -> None:
        """Stop accepting requests.

        number: signal number to return as `Ended.signal`.
        """
        self.should_exit = self.work.draining = True
        self.signal = number

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(log_once())
        await super().startup(sockets)
        self.listener.listen(QUEUE)  # asyncio accepts `BACKLOG` of them at a time
        self.listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        self.cut_off = len(self.server_state.tasks)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop the server on SIGTERM and SIGINT, and do not raise them again, as uvicorn does."""
        # Python allows signal handlers in the main thread only.
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def received(number: int, frame: FrameType | None) -> None:
            if self.should_exit:  # the second one: there is nothing to save
                os._exit(128 + number)
            self.stop(number)

        before = {each: signal.signal(each, received) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
