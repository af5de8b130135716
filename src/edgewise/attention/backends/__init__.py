"""The backends of `relation_attention`. `register` adds one: docs/attention.md shows how."""

import math

from edgewise.attention.backends import (
    blockwise,
    chunked_gather,
    diagonal,
    gather,
    nonlinear,
    reference,
    sdpa,
    sparse,
)
from edgewise.attention.backends.base import Backend
from edgewise.attention.inputs import AttentionInputs
from edgewise.errors import ArgumentError

__all__ = ["Backend", "cheapest", "check_method", "method_names", "register", "requested"]

_MODULES = (sdpa, diagonal, blockwise, gather, chunked_gather, nonlinear, sparse, reference)
_BACKENDS: dict[str, Backend] = {module.BACKEND.name: module.BACKEND for module in _MODULES}


def method_names() -> list[str]:
    """Return what `method=` takes."""
    return ["auto", *_BACKENDS]


def register(backend: Backend) -> None:
    """Make a backend available by its name, and to `auto`."""
    if backend.name in method_names():
        raise ArgumentError(f"backend.name must be new; got {backend.name!r}")
    _BACKENDS[backend.name] = backend


def cheapest(inputs: AttentionInputs) -> Backend:
    """Return the backend with the lowest cost among those that support the inputs."""
    best, lowest = reference.BACKEND, math.inf
    for backend in _BACKENDS.values():
        if backend.supports(inputs) is None and (cost := backend.cost(inputs)) < lowest:
            best, lowest = backend, cost
    return best


def check_method(method: str) -> None:
    """Raise ArgumentError unless `method=` takes this name."""
    if method not in method_names():
        names = ", ".join(method_names())
        raise ArgumentError(f"method must be one of {names}; got {method!r}")


def requested(method: str, inputs: AttentionInputs) -> Backend:
    """Return the backend of this name; ArgumentError if it cannot run the inputs."""
    check_method(method)
    backend = _BACKENDS[method]
    if (reason := backend.supports(inputs)) is not None:
        raise ArgumentError(f"method={method!r} {reason} (method='auto' selects a backend)")
    return backend
