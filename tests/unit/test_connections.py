"""Limits of connections that need no server."""

import asyncio
import errno
import logging
import os
import resource

import pytest

from edgewise.server import connections
from edgewise.server.connections import BACKLOG, capacity, log_once


@pytest.mark.parametrize("limit", [64, 1024, 4096, 1 << 20, resource.RLIM_INFINITY])
def test_connections_and_their_files_fit_into_the_limit_of_descriptors(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    found = capacity()
    assert connections.FEWEST <= found <= connections.MOST
    if 1024 <= limit < 1 << 20:
        used = len(os.listdir("/dev/fd"))
        assert limit / 4 < 2 * found + 2 * BACKLOG + used < limit


def test_lack_of_descriptors_is_logged_once_and_other_failures_as_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, handle = asyncio.new_event_loop(), log_once()
    with caplog.at_level(logging.ERROR):
        for _ in range(1000):
            error = OSError(errno.EMFILE, "Too many")
            handle(loop, {"message": "socket.accept() out of system resource", "exception": error})
        assert [record.exc_info for record in caplog.records] == [None]
        assert "Too many" in caplog.text and "ulimit -n" in caplog.text
        handle(loop, {"message": "another", "exception": ValueError("bad")})
        handle(loop, {"message": "elsewhere", "exception": MemoryError()})
        assert "another" in caplog.text and "elsewhere" in caplog.text
    loop.close()
