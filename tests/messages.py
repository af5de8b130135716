"""Checks of error messages: the facts in them, not their wording."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NUMBER = re.compile(r"-?\d[\d.,]*")


def assert_mentions(message: str, *facts: object) -> None:
    """Assert that each fact occurs in the message as a whole word, number or path.

    A fact is a name, an expected or received value, a path or a flag, spelled as users see it: `5`
    is not found in `15`, `-5` or `0.5`, and `mask` not in `masked`. Digits inside a
    path that is itself a fact do not count.
    """
    rest = message
    for path in sorted((str(fact) for fact in facts if isinstance(fact, Path)), reverse=True):
        rest = rest.replace(path, " ")
    missing = [
        fact
        for fact in facts
        if not _pattern(str(fact)).search(rest if NUMBER.fullmatch(str(fact)) else message)
    ]
    assert not missing, f"{missing} not in {message!r}"


@contextmanager
def raises(
    kind: type[BaseException] | tuple[type[BaseException], ...], *facts: object
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """`pytest.raises` that checks the facts in the message instead of a pattern."""
    with pytest.raises(kind) as caught:
        yield caught
    assert_mentions(str(caught.value), *facts)


def error_lines(said: str) -> list[str]:
    """Return the error messages in the output of a command."""
    return [line for line in said.splitlines() if line.startswith("edgewise:")]


def _pattern(fact: str) -> re.Pattern[str]:
    assert fact, "a fact must not be empty"
    if NUMBER.fullmatch(fact):
        return re.compile(r"(?<![\w-])(?<!\d[.,])" + re.escape(fact) + r"(?!\w|[.,]\d)")
    before = r"(?<!\w)(?<!\d\.)" if fact[0].isalnum() else ""
    after = r"(?!\w|\.\d)" if fact[-1].isalnum() else ""
    return re.compile(before + re.escape(fact) + after)
