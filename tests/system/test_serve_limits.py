"""`edgewise serve` where the system's limits are low."""

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from served import SOURCES, Server
from tiny_model import make_model, make_vocabulary


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limits") / "model"
    generation = {"max_length": 9}
    return make_model(folder, make_vocabulary(), generation=generation, languages=("en", "de"))


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """For the clients, in this process."""
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if soft < 4096 else soft, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_descriptors")
def test_more_idle_connections_than_descriptors_keep_nobody_from_being_answered(
    folder: Path,
) -> None:
    with Server("--model", folder, ulimit="-n 1024") as server, ExitStack() as stack:
        expected = server.translated(SOURCES[0])
        for number in range(1100):
            connection = stack.enter_context(server.open(b"POST /" if number % 2 else b""))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for _ in range(5):
            assert server.translated(SOURCES[0]) == expected
            server.client.get("/", headers={"connection": "close"}).raise_for_status()
        assert len("".join(server.said)) < 100_000
