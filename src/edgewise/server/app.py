"""The application: paths, failures, the page, the description of it all."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from edgewise import __version__
from edgewise.errors import ArgumentError, SettingError
from edgewise.server import messages
from edgewise.server.api import LINES, Api, GoneError, LateError
from edgewise.server.bodies import MediaTypeError, described, explained
from edgewise.server.guard import GONE, Guard
from edgewise.server.limits import Limits
from edgewise.server.metrics import CONTENT_TYPE, Metrics
from edgewise.server.models import Models, UnknownError
from edgewise.server.work import BusyError, Work

PAGE = Path(__file__).parent / "page"
ABOUT = """Translation by models with relative positions. `/translate` and `/languages` are as in
LibreTranslate, whose clients can be used; the rest is ours."""
LONGEST = 500  # characters of a message
Responses = dict[int | str, dict[str, Any]]
REFUSALS: Responses = {
    status: {"model": messages.Error, "description": description}
    for status, description in {
        400: "What was asked for cannot be.",
        408: "The body did not come in time.",
        413: "The body is too large.",
        415: "The body is neither JSON nor a form.",
        421: "The Host header has a name that is not this server's.",
        503: "Too much is waiting, or it took too long: see Retry-After.",
    }.items()
}


class Application(Guard):
    """All of it, with its queue."""

    def __init__(self, models: Models, limits: Limits, thread: ThreadPoolExecutor) -> None:
        metrics = Metrics()
        self.work = Work(metrics, thread, waiting=limits.waiting, seconds=limits.seconds)
        api = Api(models, limits, metrics, self.work)

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            running = asyncio.create_task(self.work.run())
            yield
            running.cancel()

        app = FastAPI(
            title="edgewise",
            version=__version__,
            description=ABOUT,
            lifespan=lifespan,
            docs_url=None,
            redoc_url=None,
        )
        _add_paths(app, api)
        _add_page(app)
        _add_failures(app)
        super().__init__(app, limits, metrics)


def _add_paths(app: FastAPI, api: Api) -> None:
    post: dict[str, Any] = {"methods": ["POST"], "responses": REFUSALS}
    translate = described(messages.TranslateRequest)
    app.add_api_route(
        "/translate",
        api.translate,
        **post,
        openapi_extra=translate,
        response_model_exclude_none=True,
    )
    lines: Responses = {
        200: {
            "description": "A line of JSON for each sentence.",
            "content": {LINES: {"schema": messages.StreamedSentence.model_json_schema()}},
        }
    }
    app.add_api_route(
        "/translate/stream",
        api.stream,
        methods=["POST"],
        responses={**lines, **REFUSALS},
        openapi_extra=translate,
        response_class=Response,
    )
    app.add_api_route(
        "/alternatives",
        api.alternatives,
        **post,
        openapi_extra=described(messages.AlternativesRequest),
    )
    app.add_api_route(
        "/explain",
        api.explain,
        **post,
        openapi_extra=described(messages.ExplainRequest),
        response_model=messages.ExplainAnswer,
    )
    few: Responses = {status: REFUSALS[status] for status in (400, 421, 503)}
    app.add_api_route("/tables", api.tables, response_model=messages.TablesAnswer, responses=few)
    app.add_api_route("/languages", api.languages)
    app.add_api_route("/models", api.models)
    app.add_api_route("/health", api.health)
    app.add_api_route("/ready", api.ready, responses={503: REFUSALS[503]})
    text: Responses = {
        200: {"content": {CONTENT_TYPE.partition(";")[0]: {"schema": {"type": "string"}}}}
    }
    app.add_api_route("/metrics", api.metrics, response_class=Response, responses=text)


def _add_page(app: FastAPI) -> None:
    """The page, and that of the API's description, whose script comes with a package."""
    package = find_spec("fastapi_offline")
    if package is None or not package.submodule_search_locations:
        raise SettingError("the server needs fastapi-offline: pip install 'edgewise[server]'")
    swagger = Path(package.submodule_search_locations[0]) / "static"

    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    async def docs() -> FileResponse:
        return FileResponse(PAGE / "docs.html")

    app.add_api_route("/", page, include_in_schema=False)
    app.add_api_route("/docs", docs, include_in_schema=False)
    app.mount("/page", StaticFiles(directory=PAGE))
    app.mount("/swagger", StaticFiles(directory=swagger))
    plain = app.openapi

    def without_422() -> dict[str, Any]:
        """FastAPI describes what it would answer to a mistake; here that is 400."""
        described = plain()
        for path in described["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            described["components"]["schemas"].pop(name, None)
        return described

    app.openapi = without_422  # type: ignore[method-assign]


def _add_failures(app: FastAPI) -> None:
    """Everything that can go wrong, as a status and a sentence."""

    def failed(status: int, error: Exception, pause: int | None = None) -> JSONResponse:
        headers = {} if pause is None else {"Retry-After": str(pause)}
        return JSONResponse({"error": messages.shortened(str(error), LONGEST)}, status, headers)

    for kind, status in ((ArgumentError, 400), (UnknownError, 400), (MediaTypeError, 415)):

        async def refused(request: Request, error: Exception, status: int = status) -> Response:
            return failed(status, error)

        app.add_exception_handler(kind, refused)

    async def busy(request: Request, error: Exception) -> Response:
        assert isinstance(error, BusyError)
        return failed(503, error, error.pause)

    async def late(request: Request, error: Exception) -> Response:
        return failed(503, error, 1)

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=GONE)

    async def mistaken(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return failed(400, ArgumentError(explained(error.errors())))

    async def standard(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        method, path = map(messages.shortened, (request.method, request.url.path))
        message = f"{method} {path}: {error.detail} (/docs has all paths)"
        return JSONResponse({"error": message}, error.status_code, error.headers)

    async def unexpected(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": "the server has failed; its log says how"}, 500)

    app.add_exception_handler(BusyError, busy)
    app.add_exception_handler(LateError, late)
    app.add_exception_handler(GoneError, gone)
    app.add_exception_handler(RequestValidationError, mistaken)
    app.add_exception_handler(HTTPException, standard)
    app.add_exception_handler(Exception, unexpected)
