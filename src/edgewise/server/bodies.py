"""Bodies as messages: JSON, or a form as LibreTranslate's older clients send it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import ValidationError
from starlette.requests import Request

from edgewise.errors import ArgumentError, EdgewiseError
from edgewise.server.messages import MOST_TEXTS, Asked

Message = TypeVar("Message", bound=Asked)
TYPES = ("string_type", "list_type")
JSON, FORM = "application/json", "application/x-www-form-urlencoded"


class MediaTypeError(EdgewiseError):
    """A body of a kind that is not read."""


async def read(request: Request, kind: type[Message]) -> Message:
    """The message in a body; ArgumentError says what is wrong with it."""
    media = (request.headers.get("content-type") or JSON).partition(";")[0].strip().lower()
    body = await request.body()
    if media == FORM:
        values: Any = _form(body)
    elif media == JSON:
        values = _json(body)
    else:
        raise MediaTypeError(f"a body must be {JSON} or {FORM}; got {media}")
    if not isinstance(values, dict):
        raise ArgumentError(f"the body must be an object; got {type(values).__name__}")
    try:
        # Clients with types send null for what is not set.
        return kind.model_validate({k: v for k, v in values.items() if v is not None})
    except ValidationError as error:
        raise ArgumentError(explained(error.errors(include_url=False))) from None


def described(kind: type[Message]) -> dict[str, Any]:
    """The body for OpenAPI."""
    schema = {"schema": kind.model_json_schema(ref_template="#/components/schemas/{model}")}
    return {"requestBody": {"required": True, "content": {JSON: schema, FORM: schema}}}


def _json(body: bytes) -> Any:
    try:
        return json.loads(body.decode())
    except UnicodeDecodeError:
        raise ArgumentError("the body must be UTF-8; it is not") from None
    except RecursionError:
        raise ArgumentError("the body must be JSON; it is nested too deeply") from None
    except ValueError as error:
        raise ArgumentError(f"the body must be JSON; it is not: {error}") from None


def _form(body: bytes) -> dict[str, Any]:
    """Fields by name; q may be there several times."""
    if body.lstrip().startswith(b"{"):
        raise ArgumentError(f"the body looks like JSON, but is sent as a form: say {JSON}")
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MOST_TEXTS + 100,
        )
    except UnicodeDecodeError:
        raise ArgumentError("the body must be a form in UTF-8; it is not") from None
    except ValueError:
        raise ArgumentError(f"a form must have at most {MOST_TEXTS} texts") from None
    values: dict[str, Any] = dict(pairs)
    texts = [value for name, value in pairs if name == "q"]
    if len(texts) > 1:
        values["q"] = texts
    return values


def explained(mistakes: Sequence[Mapping[str, Any]]) -> str:
    """One of pydantic's mistakes: the field, and what was expected of it."""
    # A field of several types has a mistake for each: that of the type which came says most.
    first = next((each for each in mistakes if each["type"] not in TYPES), mistakes[-1])
    name = ".".join(str(part) for part in first["loc"] if not _is_type(part))
    if first["type"] == "missing":
        return f"{name} must be given"
    if first["type"] == "list_type":
        return f"{name} must be a string or a list of strings"
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return f"{name} {message[:1].lower()}{message[1:]}"


def _is_type(part: int | str) -> bool:
    """What is no part of a field's name: its type, or where it stands."""
    return isinstance(part, str) and (part in ("str", "query") or part.startswith("list["))
