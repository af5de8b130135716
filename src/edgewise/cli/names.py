"""Settings that are misspelled or out of range, in words that help."""

import difflib
import os
import re
from collections.abc import Iterable

import pydantic
from cyclopts import CycloptsError

from edgewise.settings import describe_mistakes, one_line, show

PREFIX = "EDGEWISE_"


def explain_settings(error: CycloptsError | pydantic.ValidationError) -> str:
    """Return what is wrong: the setting, what was expected, what was received."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, pydantic.ValidationError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        return describe_mistakes(cause, flags=True)
    message = re.sub(r'"\[(.*?)\]"', lambda m: m[1].replace("][", "."), str(error))
    return one_line(re.sub(r'"[^"]{61,}"', lambda m: show(m[0][1:-1]), message))


def unknown_variables(known: Iterable[str]) -> str:
    """What to say of EDGEWISE_* variables that name no setting; "" if all do."""
    names = {PREFIX + re.sub(r"[.-]", "_", name).upper() for name in known}
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            return f"the environment variable {name} names no setting{meant}"
    return ""
