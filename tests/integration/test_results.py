"""The results that are kept: reports follow from cells, and cells from the entries of data."""

import json
import shutil
from pathlib import Path

import pytest

from edgewise.reproduction.cells import Changes
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
    path for path in RESULTS.glob("reports/*/*.md") if asked(path)[0].measure == "BLEU"
)
CELLS = sorted(RESULTS.glob("cells/**/*.json"))


def test_there_are_results() -> None:
    assert CELLS and REPORTS


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_report_is_what_its_cells_give(report: Path, tmp_path: Path) -> None:
    (experiment, changes), scale = asked(report), read_scale(report.parent.name)
    shutil.copytree(RESULTS / "cells", tmp_path / "cells")
    written = Study.of(experiment, scale, changes, tmp_path).write_report()
    assert written is not None
    assert written.read_text() == report.read_text()
    for path in (report, written):
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert written.with_suffix(".json").read_text() == report.with_suffix(".json").read_text()


@pytest.mark.parametrize("cell", CELLS, ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_cell_has_figures_and_no_text(cell: Path) -> None:
    content = json.loads(cell.read_text())
    assert cell.stat().st_size < 200_000
    for part in content["parts"].values():
        for values in part["by_sentence"].values():
            assert len(values.split()) == part["sentences"]
            assert values.replace(" ", "").isdecimal()
