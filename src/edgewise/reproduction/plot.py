"""A report as a picture: scores with intervals beside the paper's, differences, or lengths."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.reproduction.measurements import METRICS
from edgewise.reproduction.report import PairReport, Report, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, PAPER, MARGIN = "#1f5fa8", "#c8792b", "#dfe8f2"
COLOURS = ("#1f5fa8", "#c8792b", "#3f8f5e", "#8a5aa8", "#777777")
STYLES = ("-", "--", ":", "-.")


def plot(report: Report, path: Path) -> None:
    """Write the picture; needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    by_length = len(report.pairs[0].tables) > 1
    count = sum(len(p.tables) - 1 if by_length else 1 + bool(p.comparisons) for p in report.pairs)
    most = max(len(pair.rows) for pair in report.pairs)
    across = 2 if by_length and count > 3 else count
    high = -(-count // across)
    size = (5.6 * across + 2.4, 4.2 * high) if by_length else (5.6 * count, 1.9 + 0.42 * most)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    panels = iter(figure.subplots(high, across, squeeze=False).flat)
    for pair in report.pairs:
        if by_length:
            for table in pair.tables[1:]:
                _lines(next(panels), pair, table)
        else:
            _rows(next(panels), report, pair)
            if pair.comparisons:
                _differences(next(panels), pair)
    for axes in figure.axes:
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    if by_length:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    scale = report.scale
    figure.suptitle(f"{scale.heading}{report.experiment.title}\n{scale.title}", fontsize=11)
    # Without time and version, so that the same figures give the same file.
    figure.savefig(path, dpi=120, format="png", metadata={"Software": None})


def _rows(axes: "Axes", report: Report, pair: PairReport) -> None:
    """Draw the scores of the first column with intervals, and the paper's figures."""
    table = pair.tables[0]
    column, digits = table.columns[0], METRICS[table.columns[0].metric].digits
    for place, row in enumerate(pair.rows):
        score = table.scores[row.name][0]
        low, high = score.interval or (score.mean, score.mean)
        errors = [[max(0.0, score.mean - low)], [max(0.0, high - score.mean)]]
        label = None if place else "ours: mean, 95 % interval, seeds"
        axes.errorbar(score.mean, place, xerr=errors, fmt="o", color=OURS, capsize=3, label=label)
        axes.plot(score.values, [place] * len(score.values), "|", color=OURS, markersize=9)
        text = f"{score.mean:.{digits}f}"
        axes.text(score.mean, place - 0.2, text, ha="center", fontsize=8, color=OURS)
    known = [(row.paper, i) for i, row in enumerate(pair.rows) if row.paper is not None]
    if known:
        label = f"{report.experiment.paper}, on its own test set"
        axes.plot(*zip(*known, strict=True), "D", color=PAPER, mfc="none", label=label)
    _name_rows(axes, [row.heading for row in pair.rows])
    axes.set_title(pair.pair, fontsize=10)
    axes.set_xlabel(f"{column.heading} ({column.sentences:,} sentences)", fontsize=9)
    axes.legend(frameon=False, fontsize=8, loc="best")


def _differences(axes: "Axes", pair: PairReport) -> None:
    """Draw differences with intervals, margins of equivalence, and the paper's differences."""
    column = pair.tables[0].columns[0]
    for place, each in enumerate(pair.comparisons):
        found = pair.tables[0].differences[place][0]
        if each.margin is not None:
            axes.barh(place, 2 * each.margin, left=-each.margin, height=0.7, color=MARGIN)
        if found is not None:
            low, high = found.interval
            errors = [[found.value - low], [high - found.value]]
            fill = OURS if found.seeds > 1 else "none"
            axes.errorbar(found.value, place, xerr=errors, fmt="o", color=OURS, capsize=3, mfc=fill)
        if each.paper is not None:
            axes.plot(each.paper, place, "D", color=PAPER, mfc="none")
    axes.axvline(0, color="0.4", linewidth=0.8)
    _name_rows(axes, [each.heading.replace(" minus ", "\nminus ") for each in pair.comparisons])
    axes.set_title(f"{pair.pair}: differences (open circle: one seed)", fontsize=10)
    shaded = "; shaded: equivalent" if any(each.margin for each in pair.comparisons) else ""
    axes.set_xlabel(f"difference in {column.heading}, 95 % interval{shaded}", fontsize=9)


def _name_rows(axes: "Axes", names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.6)
    axes.grid(axis="x", linewidth=0.5, alpha=0.5)


def _lines(axes: "Axes", pair: PairReport, table: Table) -> None:
    """Draw a line for each row; left of the dotted line are lengths of training."""
    places = range(len(table.columns))
    for i, row in enumerate(pair.rows):
        scores = table.scores[row.name]
        colour, style = COLOURS[i % len(COLOURS)], STYLES[i // len(COLOURS) % len(STYLES)]
        means = [score.mean for score in scores]
        axes.plot(places, means, style, marker="o", markersize=3, color=colour, label=row.heading)
        if len(pair.rows) <= len(COLOURS):
            low, high = zip(*(s.interval or (s.mean, s.mean) for s in scores), strict=True)
            axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    trained = sum(column.is_trained for column in table.columns)
    if 0 < trained < len(table.columns):
        axes.axvline(trained - 0.5, color="0.4", linewidth=0.8, linestyle=":")
    axes.set_xticks(list(places), [column.heading for column in table.columns], fontsize=8)
    note = "left of the dots as in training" if trained else "all longer than in training"
    axes.set_title(f"{pair.pair}: {table.title}\n({note})", fontsize=10)
    axes.set_ylabel(f"{table.columns[0].metric}, mean of seeds, 95 %", fontsize=9)
    axes.grid(axis="y", linewidth=0.5, alpha=0.5)
    if METRICS[table.columns[0].metric].limits[0] == 0:
        axes.set_ylim(bottom=0)
