"""An experiment at a scale: the cells it needs, those that are finished, and its report."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewise.errors import DataError, SettingError
from edgewise.reproduction.cells import Cell, Changes, cell_for
from edgewise.reproduction.experiments import Experiment, Row, nearest
from edgewise.reproduction.markdown import markdown
from edgewise.reproduction.report import Report, report_pair
from edgewise.reproduction.results import Result, finished, require_same_corpus, seeds_found
from edgewise.reproduction.scales import Scale, scale_names
from edgewise.storage import read_json, replacing, write_json, write_text


@dataclass(frozen=True)
class Study:
    """One experiment at one scale; results and reports are in `out`."""

    experiment: Experiment
    scale: Scale
    changes: Changes
    out: Path

    def __post_init__(self) -> None:
        """Raise SettingError if the experiment cannot be run at this scale."""
        experiment, scale = self.experiment, self.scale
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

    @property
    def pairs(self) -> tuple[str, ...]:
        """Return the experiment's pairs of languages; at a scale of one's own, all it has."""
        scale, experiment = self.scale, self.experiment
        is_own = scale.name not in scale_names()
        return tuple(pair for pair in scale.pairs if is_own or pair in experiment.pairs)

    def rows(self, pair: str) -> list[Row]:
        return self.experiment.rows_for(self.scale.built_in_name, pair)

    def cell(self, row: Row, pair: str, seed: int) -> Cell:
        return cell_for(row, self.scale, pair, seed, self.changes)

    def cells(
        self, pairs: Sequence[str], rows: Sequence[str] | None, seeds: Sequence[int]
    ) -> list[Cell]:
        """Return the cells to be run, seed after seed, so that a whole table comes first."""
        return [
            self.cell(row, pair, seed)
            for seed in seeds
            for pair in self.pairs
            if pair in pairs
            for row in self.rows(pair)
            if rows is None or row.name in rows
        ]

    def results(self, pair: str) -> dict[str, list[Result]]:
        """Return all finished cells of each row, with any seed; DataError if tests differ."""
        found = {
            row.name: [
                result
                for seed in seeds_found(self.cell(row, pair, 1).result(self.out).parent)
                if (result := finished(self.cell(row, pair, seed), self.out)) is not None
            ]
            for row in self.rows(pair)
        }
        results = [(row, result) for row, of_row in found.items() for result in of_row]
        require_same_corpus([result for _, result in results])
        for row, result in results:
            for name, test in result.tests.items():
                if (expected := len(results[0][1].tests[name])) != len(test):
                    raise DataError(
                        f"{self.scale.name}, {pair}: row {row}, seed {result.seed}, has "
                        f"{len(test)} sentences of {name}, and row {results[0][0]} has {expected}: "
                        "one result is damaged (move it away)"
                    )
        return found

    @property
    def report_path(self) -> Path:
        """Return the path of the Markdown; changes of the scale are part of the name."""
        name = ",".join([self.experiment.name, *(f"{k}={v}" for k, v in self.changes.given())])
        return self.out / "reports" / self.scale.name / f"{name}.md"

    @property
    def command(self) -> str:
        """Return the command of the experiment, which also writes this report."""
        scale = self.scale.name + ("" if self.scale.name in scale_names() else ".toml")
        changes = [part for name, value in self.changes.given() for part in (f"--{name}", value)]
        command = ["edgewise", "reproduce", self.experiment.name, "--scale", scale]
        return shlex.join([*command, *changes])

    def write_report(self) -> Path | None:
        """Write Markdown, JSON and, with matplotlib, PNG; None if no cell is finished."""
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
        write_json(path.with_suffix(".json"), report.as_dict())  # first: it marks a report
        picture: Path | None = path.with_suffix(".png")
        try:
            from edgewise.reproduction.plot import plot

            with replacing(path.with_suffix(".png")) as (new,):
                plot(report, new)
        except ModuleNotFoundError:  # the plots extra
            picture = None
        write_text(path, markdown(report, picture))
        return path


def require_own_report(path: Path) -> None:
    """Raise SettingError if writing a report would replace files of another kind.

    path: the path of the Markdown; JSON and picture are beside it.
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
            f"{there[0]} has the name of a report and is not one: move it away, or give another "
            "--out"
        )


def require_known(studies: Sequence[Study], pairs: Sequence[str], rows: Sequence[str]) -> None:
    """Raise SettingError if none of the studies has a pair or a row."""
    of = " or ".join(f"{study.experiment.name} at scale {study.scale.name}" for study in studies)
    known_pairs = dict.fromkeys(pair for study in studies for pair in study.pairs)
    known_rows = dict.fromkeys(
        row.name for study in studies for pair in study.pairs for row in study.rows(pair)
    )
    for what, given, known in (("pair", pairs, known_pairs), ("row", rows, known_rows)):
        for name in given:
            if name not in known:
                raise SettingError(f"{of} has no {what} {name}{nearest(name, list(known))}")
