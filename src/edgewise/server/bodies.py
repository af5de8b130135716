"""Bodies as messages: JSON, or a form as LibreTranslate's older clients send it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import ValidationError
from starlette.requests import Request

from edgewise.errors import ArgumentError, EdgewiseError
from edgewise.server.messages import MOST_TEXTS, Asked, shortened

Message = TypeVar("Message", bound=Asked)
TYPES = ("string_type", "list_type")
# What pydantic's mistakes mean, by their types; all others are of numbers.
MEANINGS = {
    "missing": "must be given",
    "string_type": "must be a string",
    "list_type": "must be a string or a list of strings",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be {ge} or more; got {input}",
    "less_than_equal": "must be {le} or less; got {input}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_long": "must have at most {max_length} items",
    "value_error": "{error}",
}
MOST_DIGITS = 600  # Python reads as many, however it is set
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
        raise MediaTypeError(f"a body must be {JSON} or {FORM}; got {shortened(media)!r}")
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
        return json.loads(body.decode(), parse_constant=_no_number, parse_int=_whole_number)
    except UnicodeDecodeError:
        raise ArgumentError("the body must be UTF-8; it is not") from None
    except RecursionError:
        raise ArgumentError("the body must be JSON; it is nested too deeply") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ArgumentError(f"the body must be JSON; it is not: {error.msg} ({where})") from None


def _no_number(name: str) -> None:
    raise ArgumentError(f"the body must be JSON, which has no {name}")


def _whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ArgumentError(
            f"a number of the body must have at most {MOST_DIGITS} digits; one has {len(digits)}"
        )
    return int(digits)


def _form(body: bytes) -> dict[str, Any]:
    """Fields by name; q may be there several times."""
    if body.lstrip().startswith(b"{"):
        raise ArgumentError(
            f"the body looks like JSON, but is sent as a form: send Content-Type: {JSON}"
        )
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
    meaning = MEANINGS.get(first["type"], "must be a whole number")
    given = {"input": shortened(str(first["input"])), **first.get("ctx", {})}
    return f"{name} {meaning.format_map(given)}"


def _is_type(part: int | str) -> bool:
    """What is no part of a field's name: its type, or where it stands."""
    return isinstance(part, str) and (part in ("str", "query") or part.startswith("list["))
