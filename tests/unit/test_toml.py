"""Files of settings that cannot be used, and mistakes in settings: one line of plain words each."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from messages import assert_mentions, raises
from pydantic import ValidationError

from edgewise.cli.main import USAGE, run
from edgewise.decoding.settings import DecodingSettings
from edgewise.errors import SettingError
from edgewise.model.settings import ModelSettings
from edgewise.reproduction.experiments import read_row
from edgewise.reproduction.scales import read_scale
from edgewise.settings import LARGEST_FILE, describe_mistakes, read_toml
from edgewise.training.settings import RunSettings

DEEP = 5000
READERS = {
    "read_toml": read_toml,
    "a run": RunSettings.read,
    "a row": read_row,
    "a scale": lambda path: read_scale(str(path)),
}
DIGITS = "1" * 5000
UNUSABLE = {
    "nested arrays": ("a = " + "[" * DEEP + "]" * DEEP, ("nested",)),
    "nested tables": ("[" + "a." * DEEP + "b]", ("nested",)),
    "nested inline tables": ("a = " + "{b=" * DEEP + "1" + "}" * DEEP, ("nested",)),
    "too many digits": (f"seed = {DIGITS}", ("integer", "digits")),
    "too many hexadecimal digits": (f"seed = 0x{DIGITS}", ("integer", "digits")),
    "too many binary digits in a list": (f"a = [[0b{DIGITS}]]", ("integer", "digits")),
    "a NUL character": (r'out = "a\u0000b"', ("NUL",)),
    "no value": ("a =\nb = 1", ("TOML", "line 1")),
    "a long key twice": (f"a = {{{'b' * 9999} = 1, {'b' * 9999} = 2}}", ("TOML",)),
    "control characters": ("a = '\x1b[31m\r'", ("TOML", "line 1")),
    "too large": ("a = 1\n" + "#" * LARGEST_FILE, (f"{LARGEST_FILE:,}",)),
}


def assert_plain(message: str) -> None:
    """One line that Python and pydantic did not write."""
    assert message.isprintable() and len(message) < 1000, message
    for raw in ("set_int_max_str_digits", "pydantic", "Input should", "NoneType", "recursion"):
        assert raw not in message, message


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_file_that_cannot_be_settings_is_refused_with_the_reason(
    reader: str, kind: str, tmp_path: Path
) -> None:
    text, facts = UNUSABLE[kind]
    path = tmp_path / "own.toml"
    path.write_text(text)
    with raises(SettingError, path, *facts) as error:
        READERS[reader](path)
    assert_plain(str(error.value))


@pytest.mark.parametrize("kind", UNUSABLE)
def test_the_command_exits_with_2_and_one_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, facts = UNUSABLE[kind]
    path = tmp_path / "own.toml"
    path.write_text(text)
    assert run(["train", str(path)]) == USAGE
    (said,) = capsys.readouterr().err.splitlines()
    assert_mentions(said, path, *facts)


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_is_not_utf8_is_refused_with_the_byte(reader: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_bytes(b"a = '\xff'")
    with raises(SettingError, path, "UTF-8", 6):
        READERS[reader](path)


def folder(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def nothing(path: Path) -> None: ...


def loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("make", [folder, pipe, nothing, loop])
def test_what_is_no_plain_file_is_refused_and_not_waited_for(
    reader: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "own.toml"
    make(path)
    with raises(SettingError, path, "TOML"):
        READERS[reader](path)


def test_32_levels_and_integers_of_4096_bits_are_read(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f"a = {'[' * 30}{1 << 4095}{']' * 30}")
    value: Any = read_toml(path)["a"]
    for _ in range(30):
        (value,) = value
    assert value == 1 << 4095


# Mistakes.


def mistakes_of(kind: type[DecodingSettings | ModelSettings | RunSettings], values: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(values)
    message = describe_mistakes(caught.value)
    assert_plain(message)
    return message


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        ({"beam": 0}, ("beam", 1, 0)),
        ({"beam": "wide"}, ("beam", "integer", "'wide'")),
        ({"beam": DIGITS}, ("beam", "integer", "digits")),
        ({"beam": 1 << 20_000}, ("beam", 64, "20,001 bits")),
        ({"beam": None}, ("beam", "integer", "None")),
        ({"beam": {"a": [[[[[["x" * 999]]]]]]}}, ("beam", "integer")),
        ({"beam": "a\nb\x1b[31m"}, ("beam", r"'a\nb\x1b[31m'")),
        ({"beams": 4}, ("beams", "setting", 4)),
        ({"a\nb": 4}, (r"'a\nb'", "setting", 4)),
        ({"x" * 5000: 4}, ("setting", 4)),
        ({"length_penalty": float("nan")}, ("length_penalty", 10, "nan")),
        ({"beam": 2, "n_best": 3}, ("n_best", 3, "beam", 2)),
        ({"beam": 0, "n_best": 0}, ("beam", "n_best")),
        ([4], ("table", "[4]")),
        (None, ("table", "None")),
    ],
    ids=range(15),
)
def test_a_mistake_names_the_setting_what_was_expected_and_what_was_received(
    values: Any, facts: tuple[object, ...]
) -> None:
    assert_mentions(mistakes_of(DecodingSettings, values), *facts)


def test_settings_within_others_have_dotted_names() -> None:
    message = mistakes_of(RunSettings, {"corpus": "a", "model": {"heads": 3, "d_model": 8}})
    assert_mentions(message, "model", "d_model", 8, "heads", 3, "out must be set")
    assert_mentions(mistakes_of(RunSettings, {"training": {"keep": 0}}), "training.keep", 2, 0)
    assert_mentions(mistakes_of(RunSettings, {"training": 7}), "training", "table", 7)


@pytest.mark.parametrize("option", ["--beam", "--threads", "--sample"])
def test_a_long_value_of_a_flag_is_shortened(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["translate", f"{option}={DIGITS}"]) == USAGE
    (said,) = capsys.readouterr().err.splitlines()
    assert_plain(said)
