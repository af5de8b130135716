"""Which Host headers are this server's."""

import socket

import pytest

from edgewise.server.hosts import is_our_host


@pytest.mark.parametrize(
    "header",
    [
        *("localhost", "localhost:8000", "LOCALHOST.", "a.b.localhost:1", " localhost "),
        *("127.0.0.1", "127.0.0.1:8000", "192.168.1.7:80", "[::1]", "[::1]:8000", "[fe80::1]:1"),
        *("ours.example", "Ours.Example:443", "ours.example.", socket.gethostname() + ":80"),
    ],
)
def test_addresses_and_our_names_are_ours(header: str) -> None:
    assert is_our_host(header, {"ours.example"})


@pytest.mark.parametrize(
    "header",
    [
        *("", ":80", ".", "evil.example", "ours.example.evil.example", "evilours.example"),
        *("localhost.evil.example", "evillocalhost", "127.0.0.1.evil.example", "1.2.3"),
        *("localhost@evil.example", "evil.example:80:localhost", "[evil.example]", "0x7f000001"),
        "ours.example:x",
    ],
)
def test_other_names_are_not(header: str) -> None:
    assert not is_our_host(header, {"ours.example"})
    assert is_our_host(header, {"*"})
