"""An experiment at a scale: which cells it needs, which are finished, and its report."""

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewise.errors import DataError, SettingError
from edgewise.reproduction.cells import Cell, Changes, cell_of
from edgewise.reproduction.experiments import Experiment, Row, nearest
from edgewise.reproduction.report import Report, markdown, report_pair
from edgewise.reproduction.results import Result, finished, require_same_corpus, seeds_found
from edgewise.reproduction.scales import Scale, scale_names
from edgewise.storage import read_json, replacing, write_json, write_text


@dataclass(frozen=True)
class Study:
    """What a command asks of one experiment."""

    experiment: Experiment
    scale: Scale
    changes: Changes
    out: Path

    @classmethod
    def of(cls, experiment: Experiment, scale: Scale, changes: Changes, out: Path) -> "Study":
        """SettingError if the experiment cannot be made at this scale."""
        if scale.name in scale_names() and scale.name not in experiment.scales:
            raise SettingError(
                f"{experiment.name} is not made for scale {scale.name}: it has "
                f"{', '.join(experiment.scales)}"
            )
        if experiment.by_length and not scale.buckets:
            raise SettingError(f"{experiment.name} needs a scale with buckets of lengths")
        if experiment.part not in scale.parts:
            raise SettingError(
                f"{experiment.name} is measured on {experiment.part}, and scale {scale.name} on "
                f"{' and '.join(scale.parts)} only"
            )
        return cls(experiment, scale, changes, out)

    @property
    def pairs(self) -> tuple[str, ...]:
        """Of languages: the experiment's, or at a scale of one's own all it has."""
        scale, experiment = self.scale, self.experiment
        own = scale.name not in scale_names()
        return tuple(pair for pair in scale.pairs if own or pair in experiment.pairs)

    def rows(self, pair: str) -> list[Row]:
        return self.experiment.rows_of(self.scale.name, pair)

    def cell(self, row: Row, pair: str, seed: int) -> Cell:
        return cell_of(row, self.scale, pair, seed, self.changes)

    def cells(
        self, pairs: Sequence[str], rows: Sequence[str] | None, seeds: Sequence[int]
    ) -> list[Cell]:
        """Those to be run: seed after seed, so that a whole table is there first."""
        return [
            self.cell(row, pair, seed)
            for seed in seeds
            for pair in self.pairs
            if pair in pairs
            for row in self.rows(pair)
            if rows is None or row.name in rows
        ]

    def results(self, pair: str) -> dict[str, list[Result]]:
        """Of each row all that is finished, whatever the seed: an earlier command's too."""
        found = {
            row.name: [
                result
                for seed in self._seeds_found(row, pair)
                if (result := finished(self.cell(row, pair, seed), self.out)) is not None
            ]
            for row in self.rows(pair)
        }
        require_same_corpus([result for row in found.values() for result in row])
        return found

    @property
    def report_path(self) -> Path:
        """Of the Markdown; what was asked for otherwise than the scale says is in the name."""
        name = ",".join([self.experiment.name, *(f"{k}={v}" for k, v in self.changes.given())])
        return self.out / "reports" / self.scale.name / f"{name}.md"

    @property
    def command(self) -> str:
        """What makes the same report, where the cells are."""
        own = "" if self.scale.name in scale_names() else ".toml"
        changes = [part for name, value in self.changes.given() for part in (f"--{name}", value)]
        scale = f"{self.scale.name}{own}"
        return shlex.join(
            ["edgewise", "reproduce", self.experiment.name, "--scale", scale, *changes]
        )

    def write_report(self) -> Path | None:
        """Markdown, JSON and, where matplotlib is there, PNG; None if no cell is finished."""
        found = {pair: self.results(pair) for pair in self.pairs}
        pairs = tuple(
            report_pair(self.experiment, self.scale, pair, results)
            for pair, results in found.items()
            if any(results.values())
        )
        if not pairs:
            return None
        changes = tuple(self.changes.given())
        report = Report(self.experiment, self.scale, self.command, changes, pairs)
        path = self.report_path

        def draw(to: Path) -> None:
            from edgewise.reproduction.plot import plot

            plot(report, to)

        write_json(path.with_suffix(".json"), report.as_dict())  # first: it marks a report
        picture = write_picture(draw, path.with_suffix(".png"))
        write_text(path, markdown(report, picture))
        return path

    def _seeds_found(self, row: Row, pair: str) -> list[int]:
        return seeds_found(self.cell(row, pair, 1).result(self.out).parent)


def require_own_report(path: Path) -> None:
    """Raise SettingError if writing a report would replace files that are no report.

    path: of the Markdown; JSON and picture are beside it.
    """
    beside = [path.with_suffix(suffix) for suffix in (".md", ".json", ".png")]
    there = [file for file in beside if os.path.lexists(file)]
    if not there:
        return
    try:
        content = read_json(path.with_suffix(".json"))
    except (OSError, DataError):
        content = None
    if not isinstance(content, dict) or not {"command", "hardware"} & content.keys():
        raise SettingError(
            f"{there[0]} is in the place of a report and is none: move it away, or give another "
            "--out"
        )


def write_picture(draw: Callable[[Path], None], path: Path) -> Path | None:
    """What is drawn, whole or not at all; None where matplotlib is not installed."""
    try:
        with replacing(path) as (new,):
            draw(new)
    except ModuleNotFoundError:  # the plots extra
        return None
    return path


def require_known(studies: Sequence[Study], pairs: Sequence[str], rows: Sequence[str]) -> None:
    """Raise SettingError if a pair or a row is in none of the studies."""
    of = " or ".join(f"{study.experiment.name} at scale {study.scale.name}" for study in studies)
    for what, given, known in (
        ("pair", pairs, [pair for study in studies for pair in study.pairs]),
        (
            "row",
            rows,
            [row.name for s in studies for pair in s.pairs for row in s.rows(pair)],
        ),
    ):
        for name in given:
            if name not in known:
                names = list(dict.fromkeys(known))
                raise SettingError(f"{of} has no {what} {name}{nearest(name, names)}")


def unfinished(cells: Iterable[Cell], out: Path) -> list[Cell]:
    """Those whose result is not stored yet."""
    return [cell for cell in cells if finished(cell, out) is None]
