"""The FastAPI application: routes, the web page, the OpenAPI description."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from edgewise import __version__
from edgewise.errors import SettingError
from edgewise.server import messages
from edgewise.server.api import LINES, Api
from edgewise.server.bodies import described
from edgewise.server.failures import add_failures
from edgewise.server.guard import Guard
from edgewise.server.limits import Limits
from edgewise.server.metrics import CONTENT_TYPE, Metrics
from edgewise.server.models import Models
from edgewise.server.work import Work

PAGE = Path(__file__).parent / "page"
ABOUT = """Translation by models with relative positions. `/translate` and `/languages` are as in
LibreTranslate, whose clients can be used; the rest is ours."""
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
        add_failures(app)
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
