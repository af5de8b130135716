"""An experiment at a scale: which cells it needs, which are finished, and its report."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewise.errors import SettingError
from edgewise.reproduction.cells import Cell, Changes, cell_of
from edgewise.reproduction.experiments import Experiment, nearest
from edgewise.reproduction.report import PairReport, Report, markdown, report_pair
from edgewise.reproduction.results import Result, finished, require_same_corpus
from edgewise.reproduction.scales import Scale, scale_names
from edgewise.storage import write_json, write_text


@dataclass(frozen=True)
class Study:
    """What a command asks of one experiment."""

    experiment: Experiment
    scale: Scale
    pairs: tuple[str, ...]
    seeds: tuple[int, ...]
    changes: Changes
    out: Path

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        scale: Scale,
        pairs: Sequence[str] | None,
        seeds: Sequence[int],
        changes: Changes,
        out: Path,
    ) -> "Study":
        """SettingError if scale or pairs are none of the experiment's."""
        is_own = scale.name not in scale_names()
        if scale.name not in experiment.scales and not is_own:
            raise SettingError(
                f"{experiment.name} is not made for scale {scale.name}: it has "
                f"{', '.join(experiment.scales)}"
            )
        if experiment.by_length and not scale.buckets:
            raise SettingError(f"{experiment.name} needs a scale with buckets of lengths")
        theirs = scale.pairs if is_own else experiment.pairs
        known = [pair for pair in theirs if pair in scale.pairs]
        for pair in pairs or ():
            if pair not in known:
                raise SettingError(
                    f"{experiment.name} has no {pair} at scale {scale.name}{nearest(pair, known)}"
                )
        return cls(experiment, scale, tuple(pairs or known), tuple(seeds), changes, out)

    def cells(self, rows: Sequence[str] | None = None) -> list[Cell]:
        """Those to be run: seed after seed, so that a whole table is there first."""
        return [
            self._cell(pair, row.name, seed)
            for seed in self.seeds
            for pair in self.pairs
            for row in self.experiment.rows_of(self.scale.name, pair)
            if rows is None or row.name in rows
        ]

    def by_row(self, pair: str) -> dict[str, Cell]:
        """The cell of each row with the first seed."""
        rows = self.experiment.rows_of(self.scale.name, pair)
        return {row.name: self._cell(pair, row.name, self.seeds[0]) for row in rows}

    def results(self, pair: str) -> dict[str, list[Result]]:
        """Of each row all that is finished, whatever the seed: an earlier command's too."""
        return {
            row.name: [
                result
                for seed in self._seeds_found(pair, row.name)
                if (result := finished(self._cell(pair, row.name, seed), self.out)) is not None
            ]
            for row in self.experiment.rows_of(self.scale.name, pair)
        }

    @property
    def report_path(self) -> Path:
        """Of the Markdown; what was asked for otherwise than the scale says is in the name."""
        changes = [
            f"{name}={value}" for name, value in vars(self.changes).items() if value is not None
        ]
        name = ",".join([self.experiment.name, *changes])
        return self.out / "reports" / self.scale.name / f"{name}.md"

    def write_report(self) -> Path | None:
        """Markdown, JSON and, where matplotlib is there, PNG; None if no cell is finished."""
        pairs: list[PairReport] = []
        for pair in self.pairs:
            results = self.results(pair)
            require_same_corpus([each for row in results.values() for each in row])
            if any(results.values()):
                pairs.append(report_pair(self.experiment, self.scale, pair, results))
        if not pairs:
            return None
        report, path = Report(self.experiment, self.scale, tuple(pairs)), self.report_path
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = _picture(report, path.with_name(f"{path.stem}.png"))
        write_json(path.with_name(f"{path.stem}.json"), report.as_dict())
        write_text(path, markdown(report, picture))
        return path

    def _cell(self, pair: str, name: str, seed: int) -> Cell:
        rows = self.experiment.rows_of(self.scale.name, pair)
        row = next(row for row in rows if row.name == name)
        return cell_of(row, self.scale, pair, seed, self.changes)

    def _seeds_found(self, pair: str, row: str) -> list[int]:
        folder = self._cell(pair, row, self.seeds[0]).result(self.out).parent
        names = (path.stem.removeprefix("seed") for path in folder.glob("seed*.json"))
        return sorted(int(name) for name in names if name.isdecimal())


def _picture(report: Report, path: Path) -> Path | None:
    try:
        from edgewise.reproduction.plot import plot

        temporary = path.with_name(f".{path.name}.new-{os.getpid()}")
        plot(report, temporary)
    except ModuleNotFoundError:  # the plots extra
        return None
    temporary.replace(path)
    return path


def unfinished(cells: Iterable[Cell], out: Path) -> list[Cell]:
    """Those whose result is not stored yet."""
    return [cell for cell in cells if finished(cell, out) is None]
