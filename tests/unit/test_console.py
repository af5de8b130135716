"""Messages on the terminal."""

import pytest

from edgewise.cli.console import say
from edgewise.cli.main import USAGE, run

BRACKETS = "[bold]a[/] [/b] [red"


def test_brackets_in_a_message_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    say(BRACKETS)
    assert capsys.readouterr() == ("", f"{BRACKETS}\n")


def test_brackets_in_an_error_message_are_printed_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["train", f"{BRACKETS}.toml"]) == USAGE
    assert f"{BRACKETS}.toml" in capsys.readouterr().err
