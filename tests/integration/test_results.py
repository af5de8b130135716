"""The results that are kept: reports follow from cells, and cells from the entries of data."""

import json
import shutil
from pathlib import Path

import pytest
from approximately import assert_same_data, assert_same_text

from edgewise.reproduction.cells import Changes
from edgewise.reproduction.clutrr.settings import read_graph_experiment
from edgewise.reproduction.clutrr.study import write_report
from edgewise.reproduction.experiments import Experiment, read_experiment
from edgewise.reproduction.scales import read_scale
from edgewise.reproduction.study import Study

RESULTS = Path(__file__).parents[2] / "results"


def asked(report: Path) -> tuple[Experiment, Changes]:
    """The experiment of a report, and what was asked for otherwise: both,budget=4500.md."""
    name, *given = report.stem.split(",")
    changes = (each.split("=") for each in given)
    return read_experiment(name), Changes(**{option: int(value) for option, value in changes})


# Not those of times, which cannot be made again.
REPORTS = sorted(
    path
    for path in RESULTS.glob("reports/*/*.md")
    if path.stem != "clutrr" and asked(path)[0].measure == "BLEU"
)
CELLS = sorted(RESULTS.glob("cells/**/*.json"))
GRAPH_CELLS = sorted(RESULTS.glob("cells/clutrr/**/*.json"))


def assert_same_report(written: Path, stored: Path) -> None:
    assert_same_text(written.read_text(), stored.read_text())
    data = [json.loads(path.with_suffix(".json").read_text()) for path in (written, stored)]
    assert_same_data(*data)
    for path in (written, stored):
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_there_are_results() -> None:
    assert CELLS and REPORTS


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_report_is_what_its_cells_give(report: Path, tmp_path: Path) -> None:
    (experiment, changes), scale = asked(report), read_scale(report.parent.name)
    shutil.copytree(RESULTS / "cells", tmp_path / "cells")
    written = Study.of(experiment, scale, changes, tmp_path).write_report()
    assert written is not None
    assert_same_report(written, report)


@pytest.mark.parametrize(
    "cell", sorted({*CELLS} - {*GRAPH_CELLS}), ids=lambda path: str(path.relative_to(RESULTS))
)
def test_a_cell_has_figures_and_no_text(cell: Path) -> None:
    content = json.loads(cell.read_text())
    assert cell.stat().st_size < 200_000
    for part in content["parts"].values():
        for values in part["by_sentence"].values():
            assert len(values.split()) == part["sentences"]
            assert values.replace(" ", "").isdecimal()


def test_the_report_of_graphs_is_what_its_cells_give(tmp_path: Path) -> None:
    shutil.copytree(RESULTS / "cells" / "clutrr", tmp_path / "cells" / "clutrr")
    written = write_report(read_graph_experiment(), tmp_path)
    assert written is not None
    report = RESULTS / "reports" / "clutrr" / "clutrr.md"
    assert_same_report(written, report)


@pytest.mark.parametrize("cell", GRAPH_CELLS, ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_cell_of_graphs_has_figures_and_no_text(cell: Path) -> None:
    content = json.loads(cell.read_text())
    assert cell.stat().st_size < 20_000
    for test in content["tests"].values():
        assert set(test) == {"accuracy", "best_possible", "graph", "distance", "correct"}
        assert set(test["correct"].split()) <= {"0", "1"}
        assert all(test[name].replace(" ", "").isdecimal() for name in ("graph", "distance"))
