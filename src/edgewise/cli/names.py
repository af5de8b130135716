"""Settings that are misspelled or out of range, in words that help."""

import difflib
import os
import re
from collections.abc import Iterable

import pydantic
from cyclopts import CycloptsError

PREFIX = "EDGEWISE_"


def explain_settings(error: CycloptsError | pydantic.ValidationError) -> str:
    """One line a mistake: the setting, what was expected, what came."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, pydantic.ValidationError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return re.sub(r'"\[(.*?)\]"', lambda m: m[1].replace("][", "."), str(error))
    lines = []
    for mistake in cause.errors():
        name = ".".join(str(part) for part in mistake["loc"])
        message = mistake["msg"].removeprefix("Value error, ")
        expected = message.replace("Input should be", "must be")
        if not name or mistake["type"] == "value_error":
            lines.append(f"{name}: {message}" if name else message)
        elif mistake["type"] == "missing":
            lines.append(f"{name} must be set, in the file or as --{name.replace('_', '-')}")
        else:
            lines.append(f"{name} {expected}; got {mistake['input']!r}")
    return "\n".join(lines)


def unknown_variables(known: Iterable[str]) -> str:
    """What to say of EDGEWISE_* variables that name no setting; "" if all do."""
    names = {PREFIX + re.sub(r"[.-]", "_", name).upper() for name in known}
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            return f"the environment variable {name} names no setting{meant}"
    return ""
