"""Check of the Host header.

A page of another site can give its own name our address (DNS rebinding), and would then be of the
same origin as this server. Addresses are safe: no name had to be resolved.
"""

import socket
from collections.abc import Collection
from ipaddress import ip_address

ANY = "*"
OURS = "localhost"


def is_our_host(header: str, names: Collection[str]) -> bool:
    """Return whether a Host header has an address, localhost, this machine's name or one of
    `names`, which are in lower case.
    """
    host = _without_port(header.strip().lower())
    if ANY in names or _is_address(host.removeprefix("[").removesuffix("]")):
        return True
    host = host.removesuffix(".")
    ours = {OURS, socket.gethostname().lower(), *names}
    return host in ours or host.endswith(f".{OURS}")


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and not port.strip("0123456789") else host


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
