"""The whole experiment: which cells are finished, and the report."""

from pathlib import Path

from edgewise.errors import DataError
from edgewise.reproduction.clutrr.cells import GraphCell, GraphResult, finished
from edgewise.reproduction.clutrr.report import GraphReport, markdown, report_set
from edgewise.reproduction.clutrr.settings import GraphExperiment
from edgewise.reproduction.results import require_same_corpus, seeds_found
from edgewise.reproduction.study import write_picture
from edgewise.storage import write_json, write_text

COMMAND = "edgewise reproduce clutrr"


def results_of(experiment: GraphExperiment, out: Path) -> dict[str, dict[str, list[GraphResult]]]:
    """By set and row all that is finished, whatever the seed; DataError if tests differ."""
    found: dict[str, dict[str, list[GraphResult]]] = {}
    for each in experiment.sets:
        rows: dict[str, list[GraphResult]] = {}
        for row in experiment.rows:
            folder = GraphCell.of(experiment, each, row, 1).result(out).parent
            cells = (GraphCell.of(experiment, each, row, seed) for seed in seeds_found(folder))
            rows[row.name] = [r for cell in cells if (r := finished(cell, out)) is not None]
        results = [result for row in rows.values() for result in row]
        require_same_corpus(results)
        for result in results:
            if _shape(result) != _shape(results[0]):
                raise DataError(
                    f"{result.of} has answers to other questions than {results[0].of}: one of "
                    "both is damaged (move it away)"
                )
        found[each.name] = rows
    return found


def _shape(result: GraphResult) -> dict[int, list[int]]:
    return {hops: test.graphs.tolist() for hops, test in result.tests.items()}


def report_path(out: Path) -> Path:
    """Return where the Markdown of the report is written."""
    return out / "reports" / "clutrr" / "clutrr.md"


def write_report(experiment: GraphExperiment, out: Path) -> Path | None:
    """Markdown, JSON and, where matplotlib is there, PNG; None if no cell is finished."""
    results = results_of(experiment, out)
    sets = tuple(
        report_set(experiment, each, results[each.name])
        for each in experiment.sets
        if any(results[each.name].values())
    )
    if not sets:
        return None
    report = GraphReport(experiment, COMMAND, sets)
    path = report_path(out)

    def draw(to: Path) -> None:
        from edgewise.reproduction.clutrr.plot import plot

        plot(report, to)

    write_json(path.with_suffix(".json"), report.as_dict())  # first: it marks a report
    picture = write_picture(draw, path.with_suffix(".png"))
    write_text(path, markdown(report, picture))
    return path
