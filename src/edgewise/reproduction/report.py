"""The report of an experiment beside the paper's figures, as data.

It contains no times, so that it is the same however often the cells were stopped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from edgewise.evaluation.bootstrap import Interval
from edgewise.reproduction.experiments import Comparison, Experiment
from edgewise.reproduction.measurements import CEILING, METRICS, Measurements
from edgewise.reproduction.results import Result
from edgewise.reproduction.scales import Scale
from edgewise.reproduction.statistics import Difference, difference, estimate, with_holm_correction

Results = Mapping[str, Sequence[Result]]  # results of each row, one for each seed
BySeed = Mapping[int, Measurements]
LEAST_CLUSTERS = 20  # sentences or graphs that an interval needs
PARTS = {"valid": "validation", "test": "test", "direct": "test without short cuts"}
LENGTHS = {"source_words": "source words", "target_words": "target words", "hops": "hops"}


@dataclass(frozen=True)
class Column:
    """What a column of a table is measured on: a metric on a part, or on some lengths of it."""

    heading: str
    part: str
    metric: str
    lengths: tuple[int, int] | None = None
    is_trained: bool = True  # the lengths are among those of training
    sentences: int = 0
    clusters: int = 0
    ceiling: float | None = None  # the best possible score, where questions have several answers


@dataclass(frozen=True)
class Summary:
    """The score of a row in a column."""

    values: tuple[float, ...]  # one for each seed
    mean: float
    deviation: float | None  # standard deviation over seeds; None: one seed
    interval: Interval | None  # 95 %; None: too few sentences


@dataclass(frozen=True)
class Table:
    """Scores of the rows, and differences between them."""

    title: str
    columns: tuple[Column, ...]
    scores: dict[str, tuple[Summary, ...]]  # of each row
    differences: tuple[tuple[Difference | None, ...], ...]  # of each comparison; None: not tested


@dataclass(frozen=True)
class RowReport:
    """A row of all tables."""

    name: str
    heading: str
    paper: float | None
    seeds: tuple[int, ...]
    parameters: int
    updates: tuple[int, ...]  # one for each seed


@dataclass(frozen=True)
class ComparisonReport:
    """Two rows whose difference is tested."""

    heading: str
    paper: float | None
    margin: float | None


@dataclass(frozen=True)
class PairReport:
    """Everything on one pair of languages: first the table of scores, then those by length."""

    pair: str
    rows: tuple[RowReport, ...]
    comparisons: tuple[ComparisonReport, ...]
    tables: tuple[Table, ...]
    missing: tuple[str, ...]  # rows without a finished cell
    signature: str | None  # of BLEU
    hardware: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """An experiment at a scale."""

    experiment: Experiment
    scale: Scale
    command: str
    changes: tuple[tuple[str, str], ...]  # options that change the scale
    pairs: tuple[PairReport, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the content of the JSON file."""
        return {
            "experiment": self.experiment.model_dump(mode="json"),
            "scale": self.scale.model_dump(mode="json"),
            "command": self.command,
            "pairs": [asdict(pair) for pair in self.pairs],
        }


def report_pair(experiment: Experiment, scale: Scale, pair: str, results: Results) -> PairReport:
    """Return the report of the finished cells, of which there is at least one."""
    rows = experiment.rows_for(scale.built_in_name, pair)
    done = {row.name: results[row.name] for row in rows if results.get(row.name)}
    compared = [c for c in experiment.compare if {c.row, c.against} <= done.keys()]
    heading = {row.name: row.heading for row in rows}
    paper = {row.name: row.paper.get(pair) for row in rows}
    first = next(iter(done.values()))[0]
    tables = [_scores(experiment, scale, done, compared)]
    if experiment.by_length:
        tables += _by_length(scale, pair, done, compared)
    return PairReport(
        pair=pair,
        rows=tuple(
            RowReport(
                *(row.name, row.heading, paper[row.name]),
                tuple(result.seed for result in done[row.name]),
                done[row.name][0].parameters,
                tuple(result.updates for result in done[row.name]),
            )
            for row in rows
            if row.name in done
        ),
        comparisons=tuple(
            ComparisonReport(
                f"{heading[c.row]} minus {heading[c.against]}",
                _minus(paper[c.row], paper[c.against]),
                c.margin,
            )
            for c in compared
        ),
        tables=tuple(tables),
        missing=tuple(row.name for row in rows if row.name not in done),
        signature=first.tests[scale.tests[0]].summary.get("signature"),
        hardware=tuple(sorted({r.hardware for results in done.values() for r in results})),
    )


def _scores(
    experiment: Experiment, scale: Scale, results: Results, compared: Sequence[Comparison]
) -> Table:
    """Return all metrics on all parts, the paper's part first; then each test set."""
    parts = sorted(scale.parts, key=lambda part: part != experiment.part)
    figures = [(part, metric) for part in parts for metric in scale.metrics]
    figures += [(test, scale.metrics[0]) for test in scale.tests if test not in parts]
    columns = [Column(f"{METRICS[m].title} on {PARTS.get(p, p)}", p, m) for p, m in figures]
    return _table("", scale, columns, results, compared, by_length=False)


def _by_length(
    scale: Scale, pair: str, results: Results, compared: Sequence[Comparison]
) -> list[Table]:
    """Return a table for each part but the validation set and each metric."""
    longest, tables = scale.longest_trained(pair), []
    for part in (part for part in scale.parts if part != "valid"):
        for metric in scale.metrics:
            columns, first = [], 0
            for last in scale.buckets:
                is_trained = longest is None or last <= longest
                columns.append(Column("", part, metric, (first, last), is_trained))
                first = last + 1
            title = f"{METRICS[metric].title} on {PARTS[part]}, by {LENGTHS[scale.by]}"
            tables.append(_table(title, scale, columns, results, compared, by_length=True))
    return [table for table in tables if table.columns]


def _table(
    title: str,
    scale: Scale,
    columns: Sequence[Column],
    results: Results,
    compared: Sequence[Comparison],
    *,
    by_length: bool,
) -> Table:
    """Return the table; p-values are corrected within a column, or by length within the table."""
    found, scores, tested = [], [], []
    for column in columns:
        cells = {
            row: {result.seed: _select(result, column, scale.by) for result in of_row}
            for row, of_row in results.items()
        }
        some = next(iter(next(iter(cells.values())).values()))
        if len(some) < 2:
            continue
        ceiling = None
        if CEILING in some.columns and some.clusters < len(some):
            ceiling = float(some.columns[CEILING].mean())
        heading = column.heading
        if by_length:
            heading = "-".join(str(n) for n in np.unique(np.sort(some.columns[scale.by])[[0, -1]]))
        column = replace(column, heading=heading, ceiling=ceiling)
        found.append(replace(column, sentences=len(some), clusters=some.clusters))
        scores.append({row: summarise(of_row, column.metric) for row, of_row in cells.items()})
        is_main = column.metric == scale.metrics[0] and not by_length
        margins = [c.margin if is_main else None for c in compared]
        tested.append(
            [
                compare(cells[c.row], cells[c.against], column.metric, margin)
                for c, margin in zip(compared, margins, strict=True)
            ]
        )
    if by_length:
        corrected = iter(with_holm_correction([each for column in tested for each in column]))
        tested = [[next(corrected) for _ in compared] for _ in tested]
    else:
        tested = [with_holm_correction(column) for column in tested]
    return Table(
        title=title,
        columns=tuple(found),
        scores={row: tuple(column[row] for column in scores) for row in results},
        differences=tuple(tuple(column[i] for column in tested) for i in range(len(compared))),
    )


def _select(result: Result, column: Column, by: str) -> Measurements:
    part = result.part(column.part)
    return part if column.lengths is None else part.subset(by, *column.lengths)


def summarise(cells: BySeed, metric: str) -> Summary:
    """Return the mean over seeds with its interval."""
    found = estimate({seed: cell.sample(metric) for seed, cell in cells.items()})
    interval = None
    if next(iter(cells.values())).clusters >= LEAST_CLUSTERS:
        low, high = found.interval()
        least, most = METRICS[metric].limits
        interval = max(low, least), min(high, most)
    return Summary(found.values, found.mean, found.deviation, interval)


def compare(row: BySeed, against: BySeed, metric: str, margin: float | None) -> Difference | None:
    """Return the difference of two rows; None if there are too few sentences to test it."""
    if next(iter(row.values())).clusters < LEAST_CLUSTERS:
        return None
    one, other = (
        {seed: cell.sample(metric) for seed, cell in cells.items()} for cells in (row, against)
    )
    return difference(one, other, margin)


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other
