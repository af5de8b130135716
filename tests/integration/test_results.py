"""The stored results: reports follow from cells, and cells contain numbers only."""

import json
import re
import shutil
from pathlib import Path

import pytest
from approximately import assert_same_data, assert_same_text

from edgewise.reproduction.cells import Changes
from edgewise.reproduction.experiments import Experiment, read_experiment
from edgewise.reproduction.results import Result
from edgewise.reproduction.scales import read_scale
from edgewise.reproduction.study import Study

RESULTS = Path(__file__).parents[2] / "results"
NUMBERS = re.compile(r"-?\d+(\.\d+)?(e-\d+)?( -?\d+(\.\d+)?(e-\d+)?)*")


def parse_name(report: Path) -> tuple[Experiment, Changes]:
    """Return the experiment of a report and the changes in its name, as in both,budget=4500.md."""
    name, *given = report.stem.split(",")
    changes = (each.split("=") for each in given)
    return read_experiment(name), Changes(**{option: int(value) for option, value in changes})


def study_of(report: Path, out: Path) -> Study:
    experiment, changes = parse_name(report)
    return Study(experiment, read_scale(report.parent.name), changes, out)


# Reports of times cannot be computed again.
REPORTS = sorted(
    path for path in RESULTS.glob("reports/*/*.md") if parse_name(path)[0].measure == "quality"
)
CELLS = sorted(RESULTS.glob("cells/**/*.json"))


def test_there_are_results() -> None:
    assert CELLS and REPORTS


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_report_follows_from_its_cells(report: Path, tmp_path: Path) -> None:
    scale = report.parent.name
    shutil.copytree(RESULTS / "cells" / scale, tmp_path / "cells" / scale)
    written = study_of(report, tmp_path).write_report()
    assert written is not None
    assert_same_text(written.read_text(), report.read_text())
    data = [json.loads(path.with_suffix(".json").read_text()) for path in (written, report)]
    assert_same_data(*data)
    for path in (written, report):
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_every_stored_cell_is_in_a_report() -> None:
    used = set()
    for report in REPORTS:
        study = study_of(report, RESULTS)
        for pair in study.pairs:
            for row in study.rows(pair):
                used |= {*study.cell(row, pair, 1).result(RESULTS).parent.glob("seed*.json")}
    assert used == set(CELLS)


@pytest.mark.parametrize("cell", CELLS, ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_cell_has_numbers_only_and_its_scores_follow_from_them(cell: Path) -> None:
    assert cell.stat().st_size < 200_000
    tests = Result.read(cell).tests
    for name, part in json.loads(cell.read_text())["parts"].items():
        for values in part["by_sentence"].values():
            assert len(values.split()) == part["sentences"]
            assert NUMBERS.fullmatch(values)
        scores = part.get("metrics") or {"BLEU": part["bleu"]}  # the first cells have BLEU only
        for metric, value in scores.items():
            assert tests[name].sample(metric).value == pytest.approx(value, abs=1e-6)
