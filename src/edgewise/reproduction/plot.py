"""The report as a picture: ours and the paper's figures, row by row."""

from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.reproduction.report import PairReport, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, PAPER = "#1f5fa8", "#c8792b"
LINES = ("#c8792b", "#1f5fa8", "#5a8f4e", "#8a5aa8")


def plot(report: Report, path: Path) -> None:
    """Write the picture; the caller has seen to it that matplotlib is there."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(report.pairs)
    figure = Figure(figsize=(6.4 * count, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    for i, pair in enumerate(report.pairs):
        axes = figure.add_subplot(1, count, i + 1)
        if pair.buckets:
            _by_length(axes, pair)
        else:
            _rows(axes, report, pair)
        axes.set_title(f"{report.scale.name}, {pair.pair}", fontsize=10)
        axes.grid(axis="y", linewidth=0.5, alpha=0.5)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    figure.suptitle(report.experiment.title, fontsize=11)
    # Without the time and version, so that the same figures give the same file.
    figure.savefig(path, dpi=120, format="png", metadata={"Software": None})


def _rows(axes: "Axes", report: Report, pair: PairReport) -> None:
    part = report.experiment.part
    places = list(range(len(pair.rows)))
    spreads = [row.bleu[part] for row in pair.rows]
    means = [spread.mean for spread in spreads]
    low, high = (
        [
            0.0 if s.interval is None else max(0.0, sign * (s.interval[side] - s.mean))
            for s in spreads
        ]
        for side, sign in ((0, -1), (1, 1))
    )
    axes.errorbar(
        places, means, yerr=[low, high], fmt="o", color=OURS, capsize=3, label="ours, 95 %"
    )
    for place, spread in zip(places, spreads, strict=True):
        if len(spread.values) > 1:
            x = [place] * len(spread.values)
            axes.plot(x, spread.values, "_", color=OURS, markersize=12)
    known = [(i, row.paper) for i, row in enumerate(pair.rows) if row.paper is not None]
    if known:
        axes.plot(
            *zip(*known, strict=True), "D", color=PAPER, mfc="none", label=report.experiment.paper
        )
    headings = [row.heading for row in pair.rows]
    axes.set_xticks(places, headings, fontsize=8, rotation=0 if len(places) < 5 else 20)
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"BLEU ({part})")


def _by_length(axes: "Axes", pair: PairReport) -> None:
    places = range(len(pair.buckets))
    for row, colour in zip(pair.rows, LINES * 3, strict=False):
        spreads = [bucket.bleu[row.name] for bucket in pair.buckets]
        axes.plot(places, [s.mean for s in spreads], "o-", color=colour, label=row.heading)
        middles = [s.interval or (s.mean, s.mean) for s in spreads]
        low, high = zip(*middles, strict=True)
        axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    seen = sum(bucket.trained for bucket in pair.buckets)
    axes.axvline(seen - 0.5, color="0.4", linewidth=0.8, linestyle=":")
    names = [f"{bucket.first}-{bucket.last}\n{bucket.sentences:,}" for bucket in pair.buckets]
    axes.set_xticks(list(places), names, fontsize=8)
    axes.set_xlabel("source words, sentences; left of the dots as in training")
    axes.set_ylabel("BLEU (test)")
    axes.set_ylim(bottom=0)
