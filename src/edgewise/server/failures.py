"""What a client is told when something goes wrong: a status and a sentence of ours."""

import errno
import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from edgewise.decoding.device import OutOfMemoryError
from edgewise.errors import ArgumentError, EdgewiseError
from edgewise.server.bodies import MediaTypeError, explained
from edgewise.server.guard import GONE
from edgewise.server.messages import shortened
from edgewise.server.models import UnknownError
from edgewise.server.work import BusyError

LONGEST = 500  # characters of a message
# What the system may lack for a while: descriptors, memory.
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
logger = logging.getLogger("uvicorn.error")


class GoneError(Exception):
    """The client did not wait for its answer."""


class LateError(EdgewiseError):
    """The answer took too long."""


def is_shortage(error: BaseException | None) -> bool:
    """Return whether the system lacks something, of which there may be enough later."""
    if isinstance(error, OSError):
        return error.errno in SHORTAGES
    return isinstance(error, MemoryError | OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    )


def told(error: Exception) -> tuple[int, str, int | None]:
    """Return the status, the message and the pause in seconds for Retry-After.

    What is not the client's mistake is logged in a line, and its details are for the log only.
    """
    if isinstance(error, ArgumentError | UnknownError):
        return 400, str(error), None
    if isinstance(error, MediaTypeError):
        return 415, str(error), None
    if isinstance(error, BusyError):
        return 503, str(error), error.pause
    if isinstance(error, LateError):
        return 503, str(error), 1
    logger.error("a request failed: %s", (str(error) or type(error).__name__).splitlines()[0])
    if is_shortage(error):
        return (
            503,
            "the server lacks memory or file descriptors: try again later, or send less text",
            1,
        )
    return 500, "internal server error: see the server's log", None


def add_failures(app: FastAPI) -> None:
    """Answer everything that can go wrong."""

    async def failed(request: Request, error: Exception) -> Response:
        if isinstance(error, RuntimeError) and not is_shortage(error):
            raise error  # a mistake of ours: the log has where
        status, message, pause = told(error)
        headers = {} if pause is None else {"Retry-After": str(pause)}
        return JSONResponse({"error": shortened(message, LONGEST)}, status, headers)

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=GONE)

    async def mistaken(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await failed(request, ArgumentError(explained(error.errors())))

    async def standard(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        method, path = map(shortened, (request.method, request.url.path))
        message = f"{method} {path}: {error.detail} (/docs has all paths)"
        return JSONResponse({"error": message}, error.status_code, error.headers)

    async def unexpected(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": "internal server error: see the server's log"}, 500)

    for kind in (EdgewiseError, OSError, MemoryError, RuntimeError):
        app.add_exception_handler(kind, failed)
    app.add_exception_handler(GoneError, gone)
    app.add_exception_handler(RequestValidationError, mistaken)
    app.add_exception_handler(HTTPException, standard)
    app.add_exception_handler(Exception, unexpected)
