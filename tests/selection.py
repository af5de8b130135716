"""Which cases of a parametrised test run in `make test`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def long_except(often: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Mark all cases as long but those that run often."""
    missing = [case for case in often if case not in list(cases)]
    assert not missing, f"no such cases: {missing}"
    return [pytest.param(each, marks=() if each in often else pytest.mark.long) for each in cases]
