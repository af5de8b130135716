"""`edgewise serve` under more load than it can bear, and for long."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

import httpx2
import pytest
from served import SOURCES, Server
from tiny_model import make_model, make_vocabulary

MEBIBYTE = 1 << 20
LIMIT = 5.0  # seconds that an answer may take
# What a client measures has its own delays, and the machine's.
PATIENCE = 10.0
MANY = "\n".join(SOURCES[:8])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence takes some dozen milliseconds."""
    generation = {"min_length": 30, "max_length": 30}
    folder = tmp_path_factory.mktemp("load") / "model"
    return make_model(folder, make_vocabulary(), generation=generation, languages=("en", "de"))


def client(server: Server) -> httpx2.AsyncClient:
    unlimited = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx2.AsyncClient(
        base_url=server.url, timeout=LIMIT + PATIENCE, limits=unlimited, trust_env=False
    )


async def bearable(server: Server, body: dict[str, str]) -> float:
    """Requests a second, with as many clients as make full batches."""
    count = 24
    async with client(server) as asking:
        left = iter(range(count))

        async def one() -> None:
            for _ in left:
                assert (await asking.post("/translate", json=body)).status_code == 200

        began = time.monotonic()
        await asyncio.gather(*(one() for _ in range(4)))
        return count / (time.monotonic() - began)


async def overloaded(
    server: Server, body: dict[str, str], rate: float, seconds: float
) -> tuple[list[httpx2.Response], list[int]]:
    """All answers to so many requests a second, and the memory meanwhile.

    The client is a few lines: httpx takes so long with hundreds of open connections that the server
    closes those that have sent nothing.
    """
    content = json.dumps(body).encode()
    head = (
        f"POST /translate HTTP/1.1\r\nHost: {server.host}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    memory = []

    async def one(delay: float) -> httpx2.Response:
        await asyncio.sleep(delay)
        async with asyncio.timeout(LIMIT + PATIENCE):
            reader, writer = await asyncio.open_connection(server.host, server.port)
            writer.write(head.encode() + content)
            lines, _, answer = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
        first, *fields = lines.decode().split("\r\n")
        headers = [(name, value) for name, _, value in (each.partition(": ") for each in fields)]
        return httpx2.Response(int(first.split()[1]), headers=headers, content=answer)

    load = asyncio.gather(*(one(i / rate) for i in range(int(rate * seconds))))
    while not load.done():
        memory.append(server.resident())
        await asyncio.sleep(0.2)
    return await load, memory


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.long)])
def test_ten_times_the_load_is_answered_in_time_or_refused(folder: Path, seconds: int) -> None:
    options = ("--timeout", str(LIMIT), "--max-waiting", "16")
    with Server("--model", folder, *options) as server:
        body = {"q": MANY, "source": "en", "target": "de"}
        alone = server.post("/translate", body).json()
        rate = 10 * asyncio.run(bearable(server, body))
        answers, memory = asyncio.run(overloaded(server, body, rate, seconds))
        statuses = Counter(answer.status_code for answer in answers)
        print(f"{rate:.0f} requests a second for {seconds} s: {dict(statuses)}")
        print(f"{memory[0] / MEBIBYTE:.0f} MiB before, {max(memory) / MEBIBYTE:.0f} at most")
        assert set(statuses) == {200, 503}
        for answer in answers:
            if answer.status_code == 200:
                assert answer.json() == alone
            else:
                assert int(answer.headers["retry-after"]) >= 1
                assert "try again in" in answer.json()["error"] or "no answer" in answer.text
        # In a minute it answers more requests than may wait at once.
        assert statuses[200] > (16 if seconds >= 60 else 1)
        assert max(memory) < memory[0] + 64 * MEBIBYTE
        # And when the load is gone, all is as before.
        assert server.post("/translate", body).json() == alone
        assert server.metric("edgewise_waiting_requests") == 0


async def soaked(server: Server, count: int) -> None:
    """Requests of all kinds, good and bad, by eight clients."""
    left = iter(range(count))
    async with client(server) as asking:

        async def one() -> None:
            for i in left:
                text = SOURCES[i % len(SOURCES)]
                body = {"q": text, "source": "en", "target": "de"}
                path = "/translate"
                if i % 20 == 3:
                    path, body["translation"] = "/explain", "der Hund"
                elif i % 20 == 5:
                    path = "/alternatives"
                elif i % 20 == 7:
                    body["target"] = "xx"
                elif i % 20 == 9:
                    path = "/translate/stream"
                answer = await asking.post(path, json=body)
                assert answer.status_code == (400 if body["target"] == "xx" else 200)

        await asyncio.gather(*(one() for _ in range(8)))


@pytest.mark.parametrize("count", [80, pytest.param(10_000, marks=pytest.mark.long)])
def test_memory_is_flat_however_many_requests_come(folder: Path, count: int) -> None:
    with Server("--model", folder) as server:
        asyncio.run(soaked(server, 60))  # buffers and code are there once
        before = server.resident()
        for _ in range(4):
            asyncio.run(soaked(server, count // 4))
            print(f"{server.resident() / MEBIBYTE:.1f} MiB")
        assert server.resident() - before < 24 * MEBIBYTE
