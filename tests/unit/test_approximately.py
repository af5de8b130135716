"""Stored results may differ from computed ones in their last digits, and in nothing else."""

import pytest
from approximately import assert_same_data, assert_same_text

ROW = "| k = 16 | 25.8 | -2.08 ± 1.06 | 1,000 | p 0.094* | tok:13a |"


@pytest.mark.parametrize(
    "other", [ROW, ROW.replace("-2.08", "-2.07"), ROW.replace("0.094", "0.095")]
)
def test_a_last_digit_may_differ_by_one(other: str) -> None:
    assert_same_text(ROW, other)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *[("-2.08", "-2.06"), ("-2.08", "2.08"), ("-2.08", "-2.080"), ("1,000", "1,001")],
        *[("16", "17"), ("13a", "14a"), ("k =", "K ="), (" ± 1.06", "")],
    ],
)
def test_nothing_else_may_differ(before: str, after: str) -> None:
    with pytest.raises(AssertionError):
        assert_same_text(ROW, ROW.replace(before, after))
    with pytest.raises(AssertionError):
        assert_same_text(ROW, ROW + "\nmore")


def test_data_may_differ_by_a_billionth() -> None:
    data = {"a": [1.0, 2, None, "x"], "b": 0.25}
    assert_same_data(data, {"a": [1.0 + 1e-12, 2, None, "x"], "b": 0.25})
    for other in (
        {"a": [1.0 + 1e-6, 2, None, "x"], "b": 0.25},
        {"a": [1.0, 3, None, "x"], "b": 0.25},
        {"a": [1.0, 2, None], "b": 0.25},
        {"a": [1.0, 2, None, "y"], "b": 0.25},
        {"b": 0.25, "a": [1.0, 2, None, "x"]},
        {"a": [1, 2, None, "x"], "b": 0.25},
    ):
        with pytest.raises(AssertionError):
            assert_same_data(other, data)
