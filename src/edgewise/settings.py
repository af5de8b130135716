"""Settings from files, flags and the environment: validation, and errors in plain words."""

import re
import reprlib
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from edgewise.errors import SettingError

LARGEST_FILE = 1 << 16
DEEPEST = 32
_LARGEST_INTEGER = 1 << 4096  # Python prints no integer of more than 4,300 digits
_LONGEST_MESSAGE = 500
_MOST_MISTAKES = 10


class Settings(BaseModel):
    """Validated once, then frozen; an unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _none(cls, values: Any) -> Any:
        """TOML and flags have no null: the word none stands for it."""
        if not isinstance(values, dict):
            return values
        return {name: None if value == "none" else value for name, value in values.items()}


def read_toml(path: Path, expected: str = "a TOML file") -> dict[str, Any]:
    """Return the content of a TOML file; SettingError if it is none, or cannot be settings.

    expected: what the file must be, for the message.
    """
    if not path.is_file():  # also of a pipe, which could be waited for without end
        problem = "is not a plain file" if path.exists() else "does not exist"
        raise SettingError(f"{path} must be {expected}; it {problem}")
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise SettingError(f"{path} must have at most {LARGEST_FILE:,} bytes; it has more")
    try:
        # surrogatepass: a run in a folder whose name is not UTF-8 writes it so.
        values = tomllib.loads(content.decode(errors="surrogatepass"))
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 at byte {error.start + 1}"
    except RecursionError:
        reason = "it is nested too deeply"
    except tomllib.TOMLDecodeError as error:
        reason = f"it is not TOML: {one_line(str(error))}"
    except ValueError:  # the only other one: Python reads no integer of more than 4,300 digits
        reason = "an integer has too many digits"
    else:
        if not (reason := _unusable(values)):
            return values
    raise SettingError(f"{path} must be {expected}; {reason}") from None


def _unusable(values: dict[str, Any]) -> str:
    """Return why values cannot be settings, or "" if they can."""
    level: list[Any] = [values]
    for _ in range(DEEPEST):
        if any(isinstance(each, int) and abs(each) >= _LARGEST_INTEGER for each in level):
            return "an integer has too many digits"
        if any(isinstance(each, str) and "\0" in each for each in level):
            return "a string has a NUL character"
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return ""
    return f"it is nested too deeply, in more than {DEEPEST} levels"


def describe_mistakes(error: ValidationError, *, flags: bool = False) -> str:
    """Return each mistake in one line of text: the setting, what was expected, what was received.

    flags: settings that are missing can be given on the command line.
    """
    mistakes = error.errors(include_url=False)
    described = [_described(mistake, flags) for mistake in mistakes[:_MOST_MISTAKES]]
    more = len(mistakes) - len(described)
    return "; ".join([*described, *([f"and {more:,} more mistakes"] if more else [])])


def _described(mistake: Any, flags: bool) -> str:
    kind, parts = mistake["type"], mistake["loc"]
    name = ".".join(p if re.fullmatch(r"[\w-]{1,60}", p) else show(p) for p in map(str, parts))
    message = one_line(mistake["msg"].removeprefix("Value error, "))
    if kind == "value_error":  # a sentence of our own
        return f"{name}: {message}" if name else message
    if kind == "missing":
        return f"{name} must be set" + (f", in the file or as --{_flag(name)}" if flags else "")
    if kind == "extra_forbidden":
        expected = "is not a setting"
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        expected = "must be a table of settings"
    elif kind == "int_parsing_size":
        expected = "must be an integer of fewer digits"
    else:
        expected = re.sub(r"^[A-Z]\w* should ", "must ", message)
        expected = expected if expected.startswith("must ") else f"cannot be used: {message}"
    return f"{name or 'the content'} {expected}; got {show(mistake['input'])}"


def _flag(name: str) -> str:
    return name.replace("_", "-")


class _Shortened(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxlong = self.maxother = 60
        self.maxlevel = 3

    def repr_int(self, x: int, level: int) -> str:
        if abs(x) < _LARGEST_INTEGER:
            return super().repr_int(x, level)
        return f"an integer of {x.bit_length():,} bits"


def show(value: object) -> str:
    """Return the representation of a received value, shortened."""
    return _Shortened().repr(value)


def one_line(text: str) -> str:
    """Return a text from elsewhere without control characters, shortened."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:_LONGEST_MESSAGE])
    return text if len(text) < _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"
