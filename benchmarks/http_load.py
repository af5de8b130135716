"""Shared by the benchmarks of the server: one in a process of its own, and clients that ask it.

The client is a few lines over asyncio's streams: a whole HTTP library would take as much of the
two cores as the server.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What came, and when: seconds after the first request was to be sent."""

    status: int
    body: bytes
    sent: float
    seconds: float
    retry_after: bool


class Server:
    """`edgewise serve` with one model."""

    def __init__(self, model: Path, *options: str) -> None:
        command = [sys.executable, "-m", "edgewise", "serve", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--model", f"en-de={model}", *options], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:(\d+) ", line):
                self.port = int(found[1])
                return
        raise SystemExit("the server did not start")

    @property
    def resident(self) -> int:
        """Bytes of memory."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextlib.contextmanager
def served(model: Path, *options: str) -> Iterator[Server]:
    server = Server(model, *options)
    try:
        yield server
    finally:
        if server.end() != 0:
            raise SystemExit("the server did not end well")


def post(path: str, body: dict[str, Any]) -> bytes:
    """A request as it goes over the wire, from English to German."""
    content = json.dumps({"source": "en", "target": "de", **body}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def request(texts: str | Sequence[str]) -> bytes:
    """A request for translation."""
    return post("/translate", {"q": texts})


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, content: bytes, began: float
) -> Answer:
    sent = time.perf_counter()
    writer.write(content)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = re.search(r"content-length: (\d+)", head)
    assert length is not None
    body = await reader.readexactly(int(length[1]))
    seconds = time.perf_counter() - sent
    status = int(head.split(" ", 2)[1])
    return Answer(status, body, sent - began, seconds, "\nretry-after:" in head)


async def by_clients(port: int, requests: Sequence[bytes], clients: int) -> list[Answer]:
    """So many clients, each of which asks again when it has its answer."""
    answers: list[Answer | None] = [None] * len(requests)
    numbers = iter(range(len(requests)))
    began = time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            answers[number] = await ask(reader, writer, requests[number], began)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return [answer for answer in answers if answer is not None]


async def at_rate(port: int, content: bytes, rate: float, seconds: float) -> list[Answer]:
    """So many requests a second, each on a connection of its own, whether answers come or not."""
    began = time.perf_counter()

    async def one(at: float) -> Answer:
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            return await ask(reader, writer, content, began)
        finally:
            writer.close()

    return await asyncio.gather(*(one(i / rate) for i in range(int(rate * seconds))))
