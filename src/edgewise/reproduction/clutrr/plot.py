"""The report as a picture: accuracy by hops, a line for each row."""

from pathlib import Path

from edgewise.reproduction.clutrr.report import GraphReport
from edgewise.reproduction.clutrr.settings import GraphModelSettings

# Colours say where the vectors are, lines how they are used.
COLOURS = {(True, True): "#1f5fa8", (True, False): "#c8792b", (False, True): "#3f8f5e"}
LINES = {"dot": "-", "additive": "--", "gated": ":"}
WITH_CONTENT = "-."


def plot(report: GraphReport, path: Path) -> None:
    """Write the picture; the caller has seen to it that matplotlib is there."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    experiment = report.experiment
    count = len(report.sets)
    figure = Figure(figsize=(5.2 * count + 2.4, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    for i, each in enumerate(report.sets):
        axes = figure.add_subplot(1, count, i + 1)
        tests = each.part(without_short_cuts=False)
        places = list(range(len(tests)))
        for row in experiment.rows:
            if row.name in each.seeds:
                means = [test.rows[row.name].mean for test in tests]
                colour, line = _style(experiment.model_of(row))
                axes.plot(
                    places, means, line, marker="o", markersize=3, color=colour, label=row.title
                )
        trained = sum(test.is_trained for test in tests)
        axes.axvline(trained - 0.5, color="0.4", linewidth=0.8, linestyle=":")
        axes.set_xticks(places, [f"{test.hops}\n{test.graphs}" for test in tests], fontsize=9)
        axes.set_xlabel("hops, graphs in the test; left of the dots as in training", fontsize=9)
        axes.set_ylim(0, 1.03)
        axes.set_title(each.title, fontsize=10)
        axes.grid(axis="y", linewidth=0.5, alpha=0.5)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if i == 0:
            axes.set_ylabel("accuracy, mean of seeds")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    figure.suptitle(experiment.title, fontsize=11)
    # Without the time and version, so that the same figures give the same file.
    figure.savefig(path, dpi=120, format="png", metadata={"Software": None})


def _style(model: GraphModelSettings) -> tuple[str, str]:
    colour = COLOURS.get((model.on_keys, model.on_values), "#777777")
    return colour, WITH_CONTENT if model.content else LINES[model.compatibility]
