"""What every request passes first: its host must be ours, its body must be small and soon there,
its answer gets safe headers and is counted.

Plain ASGI. What the application receives after the body is then the client's going away.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgewise.server.hosts import is_our_host
from edgewise.server.limits import Limits
from edgewise.server.messages import shortened
from edgewise.server.metrics import Metrics

# Scripts, styles and pictures of our own only; nothing inline, nothing framed.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
GONE = 499  # what proxies log where a client did not wait
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class RefusedError(Exception):
    """A request that is not taken, whatever it asks for."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class Guard:
    """Around the application."""

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self.open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # the same without its body, which is not sent
            scope = {**scope, "method": "GET"}
        began, status = time.perf_counter(), GONE
        start: Message = {}

        async def counted(message: Message) -> None:
            nonlocal status, start
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                # Files of the page are asked for again, but not sent again if they are the same.
                headers.setdefault("Cache-Control", "no-cache" if "etag" in headers else "no-store")
                start = message  # sent with what follows: whether a client is gone shows before
                return
            if start:
                status = start["status"]
                await send(start)
                start = {}
            await send(message)

        self.open += 1
        try:
            await self._answered(scope, receive, counted)
        except asyncio.CancelledError:  # the server ends, and has waited as long as it may
            if status == GONE:
                await _refused(RefusedError(503, "the server has shut down"), counted)
        finally:
            self.open -= 1
            path = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(path, status).inc()
            self.metrics.request_seconds.labels(path).observe(time.perf_counter() - began)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = Headers(scope=scope)
            refusal = self._refusal(scope["path"], headers)
            # Closing a connection while its client sends resets it: the response would be lost.
            body = await self._body(headers, receive, keep=refusal is None)
            if refusal is not None:
                raise refusal
        except RefusedError as error:
            await _refused(error, send)
            return
        if body is None:  # nobody is there any more
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, replayed, send)

    def _refusal(self, path: str, headers: Headers) -> RefusedError | None:
        """Check what is known before the body; return the refusal, or None."""
        if self.open > self.limits.requests and path != "/health":
            return RefusedError(
                503, "too many requests at a time: try again", **{"retry-after": "1"}
            )
        host = headers.get("host")  # which HTTP/1.0 need not have
        if host is not None and not is_our_host(host, self.limits.hosts):
            return RefusedError(
                421,
                f"this server does not answer to the host {shortened(host)!r}: use its address, or "
                "start it with --allow-host and this name",
            )
        return None

    async def _body(self, headers: Headers, receive: Receive, *, keep: bool) -> bytes | None:
        """Read the body; return None if the client has disconnected. keep: otherwise discard it."""
        limit, seconds = self.limits.body_bytes, self.limits.body_seconds
        told = headers.get("content-length", "0")
        size, body = 0, bytearray()
        try:
            async with asyncio.timeout(seconds):
                more = True
                while more:
                    if max(size, int(told)) > self.limits.discarded_bytes:
                        break
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part = message.get("body", b"")
                    size += len(part)
                    if keep and size <= limit:
                        body += part
                    more = message.get("more_body", False)
        except TimeoutError:
            raise RefusedError(408, f"the body must arrive within {seconds:g} s") from None
        if max(size, int(told)) > limit:
            came = f"; it has {int(told):,}" if int(told) > limit else ""
            raise RefusedError(413, f"a body must have at most {limit:,} bytes{came}")
        return bytes(body)


async def _refused(error: RefusedError, send: Callable[[Message], Awaitable[None]]) -> None:
    content = json.dumps({"error": str(error)}).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(content)),
        "connection": "close",  # more of the body may come
        **error.headers,
    }
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": content})
