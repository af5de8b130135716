"""The result of a cell: a JSON file with its settings and what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from edgewise.errors import DataError, SettingError
from edgewise.reproduction.cells import Cell
from edgewise.reproduction.measurements import METRICS, Measurements, pooled
from edgewise.reproduction.scales import Scale
from edgewise.storage import read_json, write_json

VERSION = 1


@dataclass(frozen=True)
class Outcome:
    """What training and measuring a cell gave."""

    parameters: int
    updates: int
    losses: list[tuple[int, float]]  # validation loss by update
    tests: dict[str, Measurements]
    about: dict[str, Any]  # times and versions, which reports do not contain


@dataclass(frozen=True)
class Result(Outcome):
    """A finished cell."""

    asked: dict[str, Any]
    corpus: dict[str, str]  # sha256 of each file
    hardware: str

    @property
    def seed(self) -> int:
        return int(self.asked["training"]["seed"])

    def part(self, name: str) -> Measurements:
        """Return the measurements of a part; `test` is all test sets together."""
        if name in self.tests:
            return self.tests[name]
        return pooled([test for name, test in self.tests.items() if name != "valid"])

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        tests = {name: test.as_json(self.asked["metrics"]) for name, test in self.tests.items()}
        rest = {name: value for name, value in vars(self).items() if name != "tests"}
        write_json(path, {"version": VERSION, **rest, "parts": tests})

    @classmethod
    def read(cls, path: Path) -> "Result":
        content = read_json(path)
        try:
            if content["version"] != VERSION:
                raise DataError(
                    f"{path} has version {content['version']} of its format; this edgewise reads "
                    f"version {VERSION}"
                )
            tests = {
                str(name): Measurements.from_json(part) for name, part in content["parts"].items()
            }
            return cls(
                asked=dict(content["asked"]),
                corpus=dict(content["corpus"]),
                parameters=int(content["parameters"]),
                updates=int(content["updates"]),
                losses=[(int(step), float(loss)) for step, loss in content["losses"]],
                tests=tests,
                hardware=str(content["hardware"]),
                about=dict(content["about"]),
            )
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise DataError(
                f"{path} is damaged: it is not the result of a cell (move it away)"
            ) from None


def finished(cell: Cell, out: Path) -> Result | None:
    """Return the result of a cell if it exists; SettingError if it has other settings."""
    path = cell.result(out)
    if not path.is_file():
        return None
    result = Result.read(path)
    if differs := differences(with_defaults(result.asked, cell.scale), cell.asked()):
        raise SettingError(
            f"{path} was measured with other settings: {differs} (remove it and {cell.work(out)}, "
            "or give another --out)"
        )
    columns = {name for metric in cell.scale.metrics for name in METRICS[metric].columns}
    columns |= {cell.scale.by} if cell.scale.buckets else set()
    tests, names = result.tests, cell.scale.tests
    if tests.keys() != set(names) or any(columns - test.columns.keys() for test in tests.values()):
        raise DataError(
            f"{path} is damaged: its parts must be {', '.join(names)}, with the columns "
            f"{', '.join(sorted(columns))} (move it away)"
        )
    return result


def with_defaults(asked: dict[str, Any], scale: Scale) -> dict[str, Any]:
    """Return stored settings, completed by the defaults of settings that did not exist then."""
    result = {"metrics": ["BLEU"]} | asked
    for section in ("model", "training", "decoding"):
        settings, stored = getattr(scale, section, None), asked.get(section)
        if settings is not None and isinstance(stored, dict):
            fields = type(settings).model_fields.items()
            defaults = {name: field.default for name, field in fields if not field.is_required()}
            result[section] = to_jsonable_python(defaults) | stored
    return result


def differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return the settings that differ, for a message; empty if none does."""
    old, new = _flat(before), _flat(now)
    return "; ".join(
        f"{name} was {old.get(name)}, is {new.get(name)}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )


def require_same_corpus(results: Sequence[Result], corpus: dict[str, str] | None = None) -> None:
    """Raise DataError unless all cells were trained and measured on the same files.

    corpus: hashes of the files that they must be.
    """
    for result in results:
        corpus = corpus or result.corpus
        if result.corpus != corpus:
            names = sorted(result.corpus.keys() | corpus.keys())
            name = next(n for n in names if result.corpus.get(n) != corpus.get(n))
            asked = result.asked
            raise DataError(
                f"the corpus changed between cells: {name} is not the file that seed "
                f"{result.seed} at scale {asked['scale']}, {asked['pair']}, was trained and "
                "measured with (restore it, or give another --out)"
            )


def seeds_found(folder: Path) -> list[int]:
    """Return the seeds whose results are in a folder."""
    names = (path.stem.removeprefix("seed") for path in folder.glob("seed*.json"))
    return sorted(int(name) for name in names if name.isdecimal())


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            result |= _flat(value, f"{prefix}{name}.")
        else:
            result[prefix + name] = value
    return result
