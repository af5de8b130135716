"""What a file of another toolkit says of its model: honoured, or refused by name."""

import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from edgewise.errors import DataError

T = TypeVar("T", bound=str | int | float)


class Fields:
    """Values by name; one that is missing, or None, is that toolkit's default."""

    def __init__(self, values: object, file: Path) -> None:
        if not isinstance(values, Mapping):
            raise DataError(f"{file} must hold settings by name; it holds {reprlib.repr(values)}")
        self.values, self.file = values, file

    def whole(self, name: str, default: int) -> int:
        value = self.get(name, default)
        if type(value) is not int:
            raise self.refusal(name, "a whole number", value)
        return value

    def number(self, name: str, default: float) -> float:
        value = self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.refusal(name, "a number", value)
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.refusal(name, "true or false", value)
        return value

    def text(self, name: str, default: str) -> str:
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self.refusal(name, "a string", value)
        return value

    def chosen(self, name: str, default: T, supported: Sequence[T]) -> T:
        """One of the values that are supported; anything else is refused."""
        value = self.get(name, default)
        for each in supported:
            # Types first: what a file holds need not be comparable.
            if isinstance(value, str | int | float) and value == each:
                return each
        raise self.refusal(name, " or ".join(map(repr, supported)), value)

    def agreed(self, name: str, default: int, found: int) -> int:
        """A size as the weights have it; what is said of it must be the same."""
        value = self.whole(name, default)
        if value != found:
            raise self.refusal(name, f"{found}, as the weights are,", value)
        return found

    def get(self, name: str, default: object) -> object:
        value = self.values.get(name)
        return default if value is None else value

    def refusal(self, name: str, expected: str, value: object) -> DataError:
        """Of a value that is there, or that is the default."""
        return DataError(
            f"{self.file}: {name} must be {expected} to be imported; it is {reprlib.repr(value)}"
        )
