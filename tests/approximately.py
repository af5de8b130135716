"""Compare text or JSON; computed numbers may differ in their last digits.

These depend on the CPU: one machine has stored a report, another one computes it again.
"""

import re
from typing import Any

import pytest

NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]*\w)")


def assert_same_text(actual: str, expected: str) -> None:
    """Assert equal text; a number with decimals may differ by one unit of its last decimal."""
    actual_lines, expected_lines = actual.splitlines(), expected.splitlines()
    assert len(actual_lines) == len(expected_lines)
    for got, wanted in zip(actual_lines, expected_lines, strict=True):
        assert NUMBER.split(got) == NUMBER.split(wanted)
        for one, other in zip(NUMBER.findall(got), NUMBER.findall(wanted), strict=True):
            if one != other:
                unit = 10.0 ** -len(other.partition(".")[2])
                assert "." in other and len(one.partition(".")[2]) == len(other.partition(".")[2])
                assert float(one) == pytest.approx(float(other), rel=0, abs=1.001 * unit), got


def assert_same_data(actual: Any, expected: Any, path: str = "") -> None:
    """Assert equal JSON data; floats may differ by 1e-9, absolute or relative."""
    assert type(actual) is type(expected), path
    if isinstance(expected, dict):
        assert list(actual) == list(expected), path
        for name, value in expected.items():
            assert_same_data(actual[name], value, f"{path}.{name}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), path
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_same_data(one, other, f"{path}[{i}]")
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True), path
    else:
        assert actual == expected, path
