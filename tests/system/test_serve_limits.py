"""`edgewise serve` where the system's limits are low."""

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from messages import assert_mentions
from served import SOURCES, Server
from tiny_model import make_model, make_vocabulary
from waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With few descriptors. The first layer of a sentence of 5,000 tokens takes 650 MB."""
    folder = make_model(
        *(tmp_path_factory.mktemp("limits") / "model", make_vocabulary()),
        generation={"max_length": 9},
        languages=("en", "de"),
        d_ff=1 << 15,
    )
    options = ("--max-source-tokens", "99999", "--max-characters", "99999")
    with Server("--model", folder, *options, ulimit="-n 1024") as started:
        yield started


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """For the clients, in this process."""
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if soft < 4096 else soft, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_descriptors")
def test_more_idle_connections_than_descriptors_keep_nobody_from_being_answered(
    server: Server,
) -> None:
    with ExitStack() as stack:
        expected = server.translated(SOURCES[0])
        for number in range(1100):
            connection = stack.enter_context(server.open(b"POST /" if number % 2 else b""))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for _ in range(5):
            # The server may close a connection that is kept, just when it is used again.
            server.client.close()
            server.connect()
            assert server.translated(SOURCES[0]) == expected
            server.client.get("/", headers={"connection": "close"}).raise_for_status()
        assert len("".join(server.said)) < 100_000


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits are set from outside by Linux")
def test_a_request_that_needs_too_much_memory_is_refused_and_the_next_is_answered(
    server: Server,
) -> None:
    expected = server.translated(SOURCES[0])
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[0]
    size = int(pages) * resource.getpagesize() + (256 << 20)
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
    long, before = "dog " * 5000, len(server.said)
    refused = server.post("/translate", {"q": long})
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    assert_mentions(refused.json()["error"], "memory")
    line = server.post("/translate/stream", {"q": long}).text
    assert_mentions(json.loads(line)["error"], "memory")
    assert server.translated(SOURCES[0]) == expected
    wait_until(lambda: len(server.said) == before + 2)
    assert_mentions(server.said[-1], "memory", "batch_tokens")
