"""What is told of a body that cannot be used: a sentence of ours, whatever came."""

import itertools
import json
from typing import Any

import pytest
from messages import assert_mentions
from pydantic import ValidationError

from edgewise.errors import ArgumentError
from edgewise.server.bodies import _json, explained
from edgewise.server.messages import AlternativesRequest, ExplainRequest, TranslateRequest

KINDS = (TranslateRequest, AlternativesRequest, ExplainRequest)
GOOD = {"q": "a", "target": "de"}
ODD = (
    *(
        True,
        False,
        3,
        -1,
        10**17,
        10**500,
        1.5,
        1e300,
        "",
        "x" * 300,
        "\0",
        "\ud800",
        [],
        ["a", 1],
        [True],
    ),
    *(["a"] * 1001, {}, {"a": 1}, [["a"]]),
)


def refusal(kind: type[TranslateRequest], values: dict[str, Any]) -> str | None:
    try:
        kind.model_validate(values)
    except ValidationError as error:
        return explained(error.errors(include_url=False))
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_short_and_plain_whatever_a_field_has(kind: type[TranslateRequest]) -> None:
    refused = 0
    for name, value in itertools.product(kind.model_fields, ODD):
        message = refusal(kind, {**GOOD, name: value})
        if message is None:
            continue
        refused += 1
        assert message.startswith(name)
        assert "must" in message and len(message) < 120, message
        for theirs in ("Input", "pydantic", "http", "should", "validation", "Value error"):
            assert theirs not in message
    assert refused > 30


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_may_be_true_or_false(kind: type[TranslateRequest]) -> None:
    for name, value in itertools.product(kind.model_fields, (True, False)):
        assert refusal(kind, {**GOOD, name: value}) is not None, name
    assert_mentions(refusal(TranslateRequest, {**GOOD, "alternatives": True}), "true")


def test_numbers_may_be_strings_as_in_forms() -> None:
    assert TranslateRequest(**GOOD, alternatives="3").alternatives == 3
    assert_mentions(refusal(TranslateRequest, {**GOOD, "alternatives": "x"}), "whole number")
    assert_mentions(refusal(TranslateRequest, {**GOOD, "alternatives": 11}), 10)
    assert_mentions(refusal(AlternativesRequest, {**GOOD, "alternatives": 0}), 1)


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        ("NaN", ("NaN",)),
        ('{"a": -Infinity}', ("-Infinity",)),
        ("9" * 5000, (5000, 600)),
        ('{"a": ' + "9" * 601 + "}", (601, 600)),
        ('{"a": }', ("line 1", "column 7")),
        ("[1,", ("line 1", "column 4")),
        ("[" * 100_000, ("nested",)),
    ],
)
def test_what_is_not_json_is_told_without_pythons_words(
    body: str, facts: tuple[object, ...]
) -> None:
    with pytest.raises(ArgumentError) as caught:
        _json(body.encode())
    assert_mentions(str(caught.value), *facts)
    assert "sys." not in str(caught.value) and "char " not in str(caught.value)


def test_numbers_of_all_usual_sizes_are_read() -> None:
    values = {"a": [0, -1, 10**17, 1.5, -2e-3, 1e300], "b": None}
    assert _json(json.dumps(values).encode()) == values
