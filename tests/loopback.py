"""A server on loopback that can be told to misbehave, and that counts what it sends."""

import hashlib
import re
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


@dataclass
class Loopback:
    """Serves `files` by path. Lists are used up, one entry a request."""

    files: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)  # bytes after which the connection is closed
    resets: list[int] = field(default_factory=list)  # the same, but by a reset
    holds: list[int] = field(default_factory=list)  # bytes after which nothing comes any more
    statuses: list[int] = field(default_factory=list)  # answered instead of the file
    moved: dict[str, str] = field(default_factory=dict)  # redirects
    etags: dict[str, str] = field(default_factory=dict)  # instead of strong ones
    ranges: bool = True  # whether Range is understood
    shift: int = 0  # how far from the start that was asked for a range begins
    extra: bytes = b""  # sent beyond the end
    tells_length: bool = True
    chunk: int = 1 << 16
    sleep: float = 0.0

    def __post_init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.starts: list[int] = []  # of each answer, in order
        self.requests: list[str] = []
        self.released = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "Loopback":
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def etag(self, path: str) -> str:
        return self.etags.get(path, f'"{hashlib.sha256(self.files[path]).hexdigest()}"')


def _handler(state: Loopback) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def do_GET(self) -> None:
            path = self.path.lstrip("/")
            state.requests.append(path)
            if state.statuses:
                self.send_error(state.statuses.pop(0))
            elif path in state.moved:
                self.send_response(302)
                self.send_header("Location", state.moved[path])
                self.end_headers()
            elif path not in state.files:
                self.send_error(404)
            else:
                self.answer(path, state.files[path])

        def answer(self, path: str, content: bytes) -> None:
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
            guard = self.headers["If-Range"]
            start = 0
            if asked and state.ranges and guard in (None, state.etag(path)):
                start = int(asked[1]) + state.shift
                if start >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header(
                    "Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}"
                )
            else:
                self.send_response(200)
            body = content[start:] + state.extra
            if state.tells_length:
                self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", state.etag(path))
            state.starts.append(start)  # before: the client may ask again right after
            self.end_headers()
            self.send(path, body)

        def send(self, path: str, body: bytes) -> None:
            cut = state.cuts.pop(0) if state.cuts else None
            reset = state.resets.pop(0) if state.resets else None
            hold = state.holds.pop(0) if state.holds else None
            ends = [end for end in (cut, reset, hold) if end is not None]
            body = body[: min(ends)] if ends else body
            for at in range(0, len(body), state.chunk):
                piece = body[at : at + state.chunk]
                state.sent[path] += len(piece)  # before: the client may be done right after
                try:
                    self.wfile.write(piece)
                except OSError:
                    state.sent[path] -= len(piece)
                    return
                time.sleep(state.sleep)
            if hold is not None:
                state.released.wait(30)
            if reset is not None:
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.connection.close()

    return Handler
