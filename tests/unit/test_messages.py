"""`assert_mentions` finds whole words, numbers and paths only."""

from pathlib import Path

import pytest
from messages import assert_mentions, raises

MESSAGE = "--last must be at least 1; got -15 (model.keep is 0.25, 1,024 tokens) in /tmp/run-7/a b"


@pytest.mark.parametrize(
    "fact", ["--last", 1, -15, 0.25, "1,024", "model.keep", "keep", "tokens", Path("/tmp/run-7")]
)
def test_a_whole_name_number_or_path_is_found(fact: object) -> None:
    assert_mentions(MESSAGE, fact)


@pytest.mark.parametrize("fact", [15, 5, 25, 0, 24, "1.0", "las", "token", "run", "least 2"])
def test_a_part_of_a_name_or_number_is_not_found(fact: object) -> None:
    with pytest.raises(AssertionError):
        assert_mentions(MESSAGE.replace("run-7", "runs"), fact)


def test_a_number_is_not_found_in_a_path_that_is_a_fact() -> None:
    assert_mentions("there is no /tmp/run/7/a", 7)
    with pytest.raises(AssertionError):
        assert_mentions("there is no /tmp/run/7/a", Path("/tmp/run/7/a"), 7)


def test_an_error_of_another_kind_or_without_its_facts_is_not_accepted() -> None:
    with raises(ValueError, "beam", 3):
        raise ValueError("beam must be 1; got 3")
    with pytest.raises(AssertionError), raises(ValueError, "beam", 4):
        raise ValueError("beam must be 1; got 3")
    with pytest.raises(KeyError), raises(ValueError, "beam"):
        raise KeyError("beam")
