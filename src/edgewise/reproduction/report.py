"""What came out of an experiment, beside the paper's figures: as data, and as Markdown.

It says nothing of when or how fast, so that it is the same however often the cells were stopped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgewise.evaluation.bootstrap import SentenceStatistics
from edgewise.reproduction.experiments import Experiment, Row
from edgewise.reproduction.results import Result
from edgewise.reproduction.scales import Scale
from edgewise.reproduction.statistics import Difference, Spread, difference

PARTS = {"valid": "validation", "test": "test"}
Results = Mapping[str, Sequence[Result]]  # of each row, by seed


@dataclass(frozen=True)
class RowReport:
    """A row of the table."""

    name: str
    heading: str
    paper: float | None
    seeds: tuple[int, ...]
    bleu: dict[str, Spread]  # by part
    chrf: dict[str, float]
    parameters: int
    updates: tuple[int, ...]  # of each seed


@dataclass(frozen=True)
class ComparisonReport:
    """Two rows."""

    row: str
    against: str
    paper: float | None
    difference: dict[str, Difference]  # by part


@dataclass(frozen=True)
class BucketReport:
    """The sentences whose source has `first` to `last` words."""

    first: int
    last: int
    trained: bool
    sentences: int
    bleu: dict[str, Spread]  # by row
    difference: tuple[Difference, ...]  # in the order of the comparisons


@dataclass(frozen=True)
class PairReport:
    """All there is of one pair of languages."""

    pair: str
    sentences: dict[str, int]
    rows: tuple[RowReport, ...]
    comparisons: tuple[ComparisonReport, ...]
    buckets: tuple[BucketReport, ...]
    missing: tuple[str, ...]  # rows of which no cell is finished
    signature: str
    chrf_signature: str
    hardware: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """An experiment at a scale."""

    experiment: Experiment
    scale: Scale
    command: str
    changes: tuple[tuple[str, str], ...]  # what was asked for otherwise than the scale says
    pairs: tuple[PairReport, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "experiment": self.experiment.model_dump(mode="json"),
            "scale": self.scale.model_dump(mode="json"),
            "command": self.command,
            "pairs": [asdict(pair) for pair in self.pairs],
        }


def report_pair(experiment: Experiment, scale: Scale, pair: str, results: Results) -> PairReport:
    """The report of what is finished; at least one cell is."""
    rows = experiment.rows_of(scale.name, pair)
    done = [row for row in rows if results.get(row.name)]
    there = {row.name for row in done}
    compared = [c for c in experiment.compare if {c.row, c.against} <= there]
    first = results[done[0].name][0]

    def of(row: str, part: str) -> list[SentenceStatistics]:
        return [result.parts[part].statistics for result in results[row]]

    paper = {row.name: row.paper.get(pair) for row in rows}
    comparisons = [
        ComparisonReport(
            row=each.row,
            against=each.against,
            paper=_minus(paper[each.row], paper[each.against]),
            difference={
                part: difference(of(each.row, part), of(each.against, part)) for part in scale.parts
            },
        )
        for each in compared
    ]
    buckets = _buckets(scale, done, results, compared) if experiment.by_length else ()
    every = [result for row in done for result in results[row.name]]
    return PairReport(
        pair=pair,
        sentences={part: len(first.parts[part].words) for part in scale.parts},
        rows=tuple(_row(row, pair, results[row.name], scale.parts) for row in done),
        comparisons=tuple(comparisons),
        buckets=buckets,
        missing=tuple(row.name for row in rows if row.name not in there),
        signature=first.parts[scale.parts[0]].statistics.signature,
        chrf_signature=first.parts[scale.parts[0]].chrf_signature,
        hardware=tuple(sorted({result.hardware for result in every})),
    )


def _row(row: Row, pair: str, results: Sequence[Result], parts: Sequence[str]) -> RowReport:
    first = results[0]
    return RowReport(
        name=row.name,
        heading=row.heading,
        paper=row.paper.get(pair),
        seeds=tuple(result.asked["training"]["seed"] for result in results),
        bleu={part: Spread.of([r.parts[part].statistics for r in results]) for part in parts},
        chrf={part: sum(r.parts[part].chrf for r in results) / len(results) for part in parts},
        parameters=first.parameters,
        updates=tuple(result.updates for result in results),
    )


def _buckets(
    scale: Scale, rows: Sequence[Row], results: Results, compared: Sequence[Any]
) -> tuple[BucketReport, ...]:
    words = results[rows[0].name][0].parts["test"].words
    found = []
    for first, last in zip((0, *(most + 1 for most in scale.buckets)), scale.buckets, strict=False):
        chosen = (words >= first) & (words <= last)
        if chosen.sum() < 2:
            continue
        parts = {
            row.name: [r.parts["test"].statistics.part(chosen) for r in results[row.name]]
            for row in rows
        }
        found.append(
            BucketReport(
                first=first,
                last=last,
                trained=last <= (scale.max_source_words or last),
                sentences=int(chosen.sum()),
                bleu={name: Spread.of(part) for name, part in parts.items()},
                difference=tuple(difference(parts[c.row], parts[c.against]) for c in compared),
            )
        )
    return tuple(found)


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def markdown(report: Report, picture: Path | None) -> str:
    """For people."""
    experiment, scale = report.experiment, report.scale
    lines = [f"# {experiment.title}", "", experiment.finding, ""]
    lines += [f"At scale `{scale.name}`: {scale.title}.", ""]
    for pair in report.pairs:
        lines += [f"## {pair.pair}", "", *_table(experiment, pair), ""]
        if pair.comparisons:
            lines += [*_comparisons(experiment, pair), ""]
        if pair.buckets:
            lines += [*_by_length(pair), ""]
        if pair.missing:
            lines += [f"Not finished: {', '.join(pair.missing)}.", ""]
        lines += [f"- BLEU: {pair.signature}", f"- chrF: {pair.chrf_signature}"]
        lines += [f"- Hardware: {'; '.join(pair.hardware)}", ""]
    if picture is not None:
        lines += [f"![{experiment.title}]({picture.name})", ""]
    lines += ["## What differs", ""]
    lines += [f"- {each}" for each in scale.differs]
    lines += [f"- but here {name} {value}, as was asked for" for name, value in report.changes]
    lines += ["", *EXPLANATION, "", f"`{report.command}`"]
    return "\n".join(lines) + "\n"


EXPLANATION = (
    "± is the standard deviation over seeds. Intervals of 95 % and p are by 1,000 resamples of the",
    "sentences and of the seeds, the same sentences for both rows. Where a row has one seed (*),",
    "other seeds may differ by more than the interval says.",
)


def _table(experiment: Experiment, pair: PairReport) -> list[str]:
    parts = _order(experiment, pair)
    heads = [f"{PARTS[part]} BLEU ({pair.sentences[part]:,}) | 95 % interval" for part in parts]
    lines = [
        f"| | {experiment.paper} | {' | '.join(heads)} | chrF | seeds | updates | parameters |",
        "|---" * (6 + 2 * len(parts)) + "|",
    ]
    for row in pair.rows:
        paper = "" if row.paper is None else f"{row.paper:g}"
        seeds = ", ".join(map(str, row.seeds))
        updates = ", ".join(f"{count:,}" for count in dict.fromkeys(row.updates))
        scores = [
            f"{_mean(row.bleu[part])} | {_between(row.bleu[part].interval)}" for part in parts
        ]
        lines.append(
            f"| {row.heading} | {paper} | {' | '.join(scores)} | {row.chrf[parts[0]]:.1f} | "
            f"{seeds} | {updates} | {row.parameters:,} |"
        )
    return lines


def _order(experiment: Experiment, pair: PairReport) -> list[str]:
    """What the paper measured on comes first."""
    return sorted(pair.sentences, key=lambda part: part != experiment.part)


def _comparisons(experiment: Experiment, pair: PairReport) -> list[str]:
    heading = {row.name: row.heading for row in pair.rows}
    parts = _order(experiment, pair)
    heads = " | ".join(f"{PARTS[part]} | 95 % interval | p" for part in parts)
    lines = [f"| | {experiment.paper} | {heads} |", "|---" * (2 + 3 * len(parts)) + "|"]
    for each in pair.comparisons:
        paper = "" if each.paper is None else f"{each.paper:+.1f}"
        cells = " | ".join(_difference(each.difference[part]) for part in parts)
        lines.append(f"| {heading[each.row]} minus {heading[each.against]} | {paper} | {cells} |")
    return lines


def _by_length(pair: PairReport) -> list[str]:
    names = [row.heading for row in pair.rows]
    heading = {row.name: row.heading for row in pair.rows}
    compared = [f"{heading[c.row]} minus {heading[c.against]}" for c in pair.comparisons]
    heads = [*names, *(head for name in compared for head in (name, "95 % interval", "p"))]
    lines = [
        f"| source words | test sentences | {' | '.join(heads)} |",
        "|---" * (2 + len(heads)) + "|",
    ]
    for bucket in pair.buckets:
        name = f"{bucket.first}-{bucket.last}" + (" (as in training)" if bucket.trained else "")
        scores = [_mean(bucket.bleu[row.name]) for row in pair.rows]
        differences = [_difference(each) for each in bucket.difference]
        lines.append(f"| {name} | {bucket.sentences:,} | {' | '.join([*scores, *differences])} |")
    return lines


def _mean(spread: Spread) -> str:
    around = "" if spread.deviation is None else f" ± {spread.deviation:.2f}"
    return f"{spread.mean:.2f}{around}"


def _difference(each: Difference) -> str:
    mark = "*" if each.one_seed else ""
    return f"{each.value:+.2f} | {_between(each.interval, '+')} | {each.p_value:.3f}{mark}"


def _between(middle: tuple[float, float] | None, sign: str = "") -> str:
    return "" if middle is None else f"{middle[0]:{sign}.2f} to {middle[1]:{sign}.2f}"
