"""A report as Markdown."""

from pathlib import Path

from edgewise.evaluation.bootstrap import RESAMPLES
from edgewise.reproduction.experiments import Experiment
from edgewise.reproduction.measurements import METRICS
from edgewise.reproduction.report import LEAST_CLUSTERS, Column, PairReport, Report, Summary, Table
from edgewise.reproduction.statistics import LEVEL, Difference

EXPLANATION = f"""\
± is the standard deviation over seeds. Intervals of 95 % contain the variance over seeds (Student's
distribution) and over sentences ({RESAMPLES:,} bootstrap resamples). Differences are between cells
with the same seed on the same sentences. p-values have Holm's correction, within a column or, by
length, within a table; intervals have none. "Equivalent" means that two one-sided tests at 5 %
reject a difference beyond the margin. *: one seed; the variance over seeds is unknown, so that
nothing is tested and p is of the sentences only. Columns with fewer than {LEAST_CLUSTERS} sentences
or graphs have no interval and no test."""


def markdown(report: Report, picture: Path | None) -> str:
    """Return the report as Markdown."""
    experiment, scale = report.experiment, report.scale
    lines = [f"# {scale.heading}{experiment.title}", "", experiment.finding, ""]
    lines += [f"At scale `{scale.name}`: {scale.title}.", ""]
    lines += [scale.note, ""] if scale.note and not report.changes else []
    for pair in report.pairs:
        lines += [f"## {pair.pair}", "", *_scores(experiment, pair), ""]
        if pair.comparisons:
            lines += [*_differences(experiment, pair), ""]
        for table in pair.tables[1:]:
            lines += [f"### {table.title}", "", *_by_length(pair, table), ""]
        if pair.missing:
            lines += [f"Not finished: {', '.join(pair.missing)}.", ""]
        lines += [f"- BLEU: {pair.signature}"] if pair.signature else []
        lines += [f"- Hardware: {'; '.join(pair.hardware)}", ""]
    if picture is not None:
        lines += [f"![{experiment.title}]({picture.name})", ""]
    lines += ["## What differs", ""]
    lines += [f"- {each}" for each in scale.differs]
    lines += [f"- changed on the command line: {n} {value}" for n, value in report.changes]
    lines += ["", EXPLANATION, "", f"`{report.command}`"]
    return "\n".join(lines) + "\n"


def _paper(experiment: Experiment, pair: PairReport) -> list[str]:
    """Return the heading of the paper's figures, if there are any."""
    return [experiment.paper] if any(row.paper is not None for row in pair.rows) else []


def _lines(*rows: list[str]) -> list[str]:
    """Return a Markdown table; the first row is its heading."""
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return [head, "|---" * len(rows[0]) + "|", *rest]


def _scores(experiment: Experiment, pair: PairReport) -> list[str]:
    table, paper = pair.tables[0], _paper(experiment, pair)
    heads = [f"{column.heading} ({column.sentences:,})" for column in table.columns]
    rows = [["mean ± deviation (95 % interval)", *paper, *heads, "seeds", "updates", "parameters"]]
    for row in pair.rows:
        scores = zip(table.scores[row.name], table.columns, strict=True)
        cells = [row.heading, *([_figure(row.paper, "g")] if paper else [])]
        cells += [f"{_mean(s, c)}{_between(s.interval, c)}" for s, c in scores]
        cells.append(", ".join(map(str, row.seeds)) + ("*" if len(row.seeds) == 1 else ""))
        cells.append(", ".join(f"{count:,}" for count in dict.fromkeys(row.updates)))
        rows.append([*cells, f"{row.parameters:,}"])
    return _lines(*rows)


def _differences(experiment: Experiment, pair: PairReport) -> list[str]:
    table, paper = pair.tables[0], _paper(experiment, pair)
    heads = [column.heading for column in table.columns]
    rows = [["difference (95 % interval), p", *paper, *heads, f"result, {heads[0]}"]]
    for comparison, found in zip(pair.comparisons, table.differences, strict=True):
        cells = [comparison.heading, *([_figure(comparison.paper, "+.1f")] if paper else [])]
        cells += [_difference(each, c) for each, c in zip(found, table.columns, strict=True)]
        rows.append([*cells, verdict(found[0], comparison.margin, table.columns[0].metric)])
    return _lines(*rows)


def verdict(found: Difference | None, margin: float | None, metric: str) -> str:
    """Return what the tests of a difference say."""
    if found is None or found.seeds == 1:
        return "not tested" if found is None else "one seed"
    results = []
    if found.p_value < LEVEL:
        results.append("higher" if found.value > 0 else "lower")
    if found.equivalence is not None and found.equivalence < LEVEL:
        results.append(f"equivalent within {margin:g} {metric}")
    return " and ".join(results) or "undecided"


def _by_length(pair: PairReport, table: Table) -> list[str]:
    columns = table.columns
    heads = [c.heading + ("" if c.is_trained else ", longer than in training") for c in columns]
    rows = [["", *heads]]
    for row in pair.rows:
        scores = zip(table.scores[row.name], columns, strict=True)
        heading = row.heading + ("*" if len(row.seeds) == 1 else "")
        rows.append([heading, *(_mean(score, column) for score, column in scores)])
    if any(column.ceiling is not None for column in columns):
        rows.append(["best possible", *(_figure(c.ceiling, ".3f") for c in columns)])
    counts = [
        f"{c.sentences:,}" + (f", {c.clusters:,} graphs" if c.clusters < c.sentences else "")
        for c in columns
    ]
    lines = _lines(*rows, ["examples", *counts])
    if not any(each for found in table.differences for each in found):
        return lines
    rows = [["difference (95 % interval), p", *heads]]
    for comparison, found in zip(pair.comparisons, table.differences, strict=True):
        cells = (_difference(each, column) for each, column in zip(found, columns, strict=True))
        rows.append([comparison.heading, *cells])
    return [*lines, "", *_lines(*rows)]


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def _mean(score: Summary, column: Column) -> str:
    digits = METRICS[column.metric].digits
    around = "" if score.deviation is None else f" ± {score.deviation:.{digits}f}"
    return f"{score.mean:.{digits}f}{around}"


def _difference(found: Difference | None, column: Column) -> str:
    if found is None:
        return ""
    value = f"{found.value:+.{METRICS[column.metric].digits}f}"
    p_value = f"{found.p_value:.3f}" if found.p_value >= 0.001 else "< 0.001"
    mark = "*" if found.seeds == 1 else ""
    return f"{value}{_between(found.interval, column, '+')}, {p_value}{mark}"


def _between(ends: tuple[float, float] | None, column: Column, sign: str = "") -> str:
    form = f"{sign}.{METRICS[column.metric].digits}f"
    return "" if ends is None else f" ({ends[0]:{form}} to {ends[1]:{form}})"
