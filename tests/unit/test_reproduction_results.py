"""Stored results: read as they were written; damaged ones and those of other settings are named."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import raises
from pydantic_core import to_jsonable_python
from stored_cells import REFERENCES, SOURCES, cells, measured, result, spoilt, study

from edgewise.errors import DataError, SettingError
from edgewise.evaluation import bleu
from edgewise.reproduction.cells import Cell
from edgewise.reproduction.measurements import Measurements
from edgewise.reproduction.results import Result, finished, require_same_corpus
from edgewise.reproduction.scales import Scale
from edgewise.reproduction.task import PreparedData
from edgewise.reproduction.worker import read_order, write_order
from edgewise.storage import write_json


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    cell = cells(study("table3", tmp_path, "multi30k-converged"))[0]
    stored = result(cell, 7)
    stored.write(cell.result(tmp_path))
    read = finished(cell, tmp_path)
    assert read is not None
    assert list(read.tests) == list(cell.scale.tests)
    for name, test in stored.tests.items():
        for column, values in test.columns.items():
            np.testing.assert_array_equal(read.tests[name].columns[column], values)
    for name in ("asked", "corpus", "parameters", "updates", "losses", "hardware", "about"):
        assert getattr(read, name) == getattr(stored, name)
    content = json.loads(cell.result(tmp_path).read_text())
    metrics = content["parts"]["test_2016_flickr"]["metrics"]
    assert metrics["BLEU"] == pytest.approx(bleu(spoilt(7), REFERENCES).value, rel=1e-12)
    assert metrics.keys() == {"BLEU", "log-probability"}
    text = cell.result(tmp_path).read_text()
    assert not any(sentence in text for sentence in SOURCES + REFERENCES)


def test_part_test_is_all_test_sets_together(tmp_path: Path) -> None:
    converged = result(cells(study("table3", tmp_path, "multi30k-converged"))[0], 7)
    assert len(converged.part("test")) == 60 + 40 + 25
    assert len(converged.part("valid")) == 60
    single = result(cells(study("table3", tmp_path))[0], 7)
    assert single.part("test") is single.tests["test"]


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda content: [content],
    "only a version": lambda content: {"version": content["version"]},
    "no parts": lambda content: content | {"parts": {}},
    "a list of parts": lambda content: content | {"parts": []},
    "no hardware": lambda content: {k: v for k, v in content.items() if k != "hardware"},
    "parameters that are infinite": lambda content: content | {"parameters": float("inf")},
    "parameters that are a word": lambda content: content | {"parameters": "many"},
    "losses of one number": lambda content: content | {"losses": [[200]]},
    "settings that are a list": lambda content: content | {"asked": [1, 2]},
    "a part less": lambda content: content | {"parts": {"test": content["parts"]["test"]}},
    "a part more": lambda content: (
        content | {"parts": content["parts"] | {"direct": content["parts"]["test"]}}
    ),
}


def stored_content(cell: Cell, out: Path) -> dict[str, Any]:
    result(cell, 7).write(cell.result(out))
    content: dict[str, Any] = json.loads(cell.result(out).read_text())
    return content


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_result_is_named(damage: Callable[[Any], Any], tmp_path: Path) -> None:
    cell = cells(study("table3", tmp_path))[0]
    content = stored_content(cell, tmp_path)
    cell.result(tmp_path).write_text(json.dumps(damage(content)))
    with raises(DataError, cell.result(tmp_path), "damaged"):
        finished(cell, tmp_path)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("sentences", 59),
        ("by_sentence", {}),
        ("metrics", {"BLEU": 99.0}),
        ("metrics", {"BLUE": 99.0}),
        ("metrics", None),
    ],
)
def test_a_result_with_damaged_measurements_is_named(
    part: str, value: object, tmp_path: Path
) -> None:
    cell = cells(study("table3", tmp_path))[0]
    content = stored_content(cell, tmp_path)
    content["parts"]["test"][part] = value
    cell.result(tmp_path).write_text(json.dumps(content))
    with raises(DataError, cell.result(tmp_path), "damaged"):
        finished(cell, tmp_path)


@pytest.mark.parametrize("column", ["tokens", "matching_4_grams", "source_words"])
def test_a_result_without_a_column_that_its_report_needs_is_named(
    column: str, tmp_path: Path
) -> None:
    cell = cells(study("length", tmp_path, "multi30k-short"))[0]
    content = stored_content(cell, tmp_path)
    del content["parts"]["test"]["metrics"]
    del content["parts"]["test"]["by_sentence"][column]
    cell.result(tmp_path).write_text(json.dumps(content))
    with raises(DataError, cell.result(tmp_path), "damaged", column):
        finished(cell, tmp_path)


def test_a_file_that_is_not_json_or_of_another_version_is_named(tmp_path: Path) -> None:
    cell = cells(study("table3", tmp_path))[0]
    content = stored_content(cell, tmp_path)
    cell.result(tmp_path).write_text("{")
    with raises(DataError, cell.result(tmp_path), "JSON"):
        finished(cell, tmp_path)
    cell.result(tmp_path).write_text(json.dumps(content | {"version": 9}))
    with raises(DataError, cell.result(tmp_path), "version", 9, 1):
        finished(cell, tmp_path)


def test_a_result_with_other_settings_names_what_differs(tmp_path: Path) -> None:
    cell = cells(study("table3", tmp_path))[0]
    other = result(cell, 7)
    other.asked["model"]["dropout"] = 0.7
    other.write(cell.result(tmp_path))
    with raises(SettingError, cell.result(tmp_path), "model.dropout", 0.7, 0.1, "--out"):
        finished(cell, tmp_path)


SECTIONS = [
    ("table3", "multi30k", "model"),
    ("table3", "multi30k", "training"),
    ("table3", "multi30k", "decoding"),
    ("scan", "scan", "model"),
    ("scan", "scan", "training"),
    ("scan", "scan", "decoding"),
    ("clutrr", "clutrr", "model"),
    ("clutrr", "clutrr", "training"),
]


@pytest.mark.parametrize(("experiment", "scale", "section"), SECTIONS)
def test_settings_that_a_stored_result_lacks_are_read_as_defaults(
    experiment: str, scale: str, section: str, tmp_path: Path
) -> None:
    # As stored by a version that did not have the setting.
    cell = cells(study(experiment, tmp_path, scale))[0]
    asked, kind = cell.asked(), type(getattr(cell.scale, section))
    path, stored = cell.result(tmp_path), result_for(cell)
    accepted, refused = [], []
    for name, field in kind.model_fields.items():
        changed = copy.deepcopy(asked)
        used = changed[section].pop(name)
        write_json(path, stored | {"asked": changed})
        if not field.is_required() and to_jsonable_python(field.default) == used:
            assert finished(cell, tmp_path) is not None
            accepted.append(name)
        else:
            with raises(SettingError, path, f"{section}.{name}", used, "--out"):
                finished(cell, tmp_path)
            refused.append(name)
    # Both cases occur in each section.
    assert accepted
    assert refused or section == "decoding"


def result_for(cell: Cell) -> dict[str, Any]:
    """Return the content of a result of any task."""
    columns = {name: np.array([1, 0]) for name in ("graph", "hops", "correct", "possible")}
    tests = {name: Measurements(columns) for name in cell.scale.tests}
    if cell.scale.task != "graphs":
        tests = result(cell, 7).tests
    found = Result(7, 8, [], tests, {}, cell.asked(), {"train.en": "a"}, "an abacus")
    parts = {name: test.as_json(cell.scale.metrics) for name, test in tests.items()}
    rest = {name: value for name, value in vars(found).items() if name != "tests"}
    return {"version": 1, **rest, "parts": parts}


@pytest.mark.parametrize(
    ("section", "name", "default", "used"),
    [
        ("model", "norm", "post", "pre"),
        ("training", "schedule", "inverse_sqrt", "linear"),
        ("decoding", "extra_tokens", 50, 7),
    ],
)
def test_a_result_from_before_a_setting_is_refused_where_the_cell_changes_it(
    section: str, name: str, default: object, used: object, tmp_path: Path
) -> None:
    of = study("table3", tmp_path)
    cell = cells(of)[0]
    content = stored_content(cell, tmp_path)
    del content["asked"][section][name]
    cell.result(tmp_path).write_text(json.dumps(content))
    assert finished(cell, tmp_path) is not None
    changed = cells(replace(of, scale=with_setting(of.scale, section, name, used)))[0]
    assert changed.name == cell.name
    with raises(SettingError, f"{section}.{name}", default, used, "--out"):
        finished(changed, tmp_path)


def with_setting(scale: Scale, section: str, name: str, value: object) -> Scale:
    settings = getattr(scale, section).model_copy(update={name: value})
    return scale.model_copy(update={section: settings})


# The folder of a cell.


def test_a_cell_begun_with_other_settings_is_not_continued(tmp_path: Path) -> None:
    of = study("table3", tmp_path)
    data = PreparedData(tmp_path / "corpus", {"train/train.en": "a"})
    folder = write_order(cells(of)[0], data, tmp_path)
    assert write_order(cells(of)[0], data, tmp_path) == folder
    scale = with_setting(of.scale, "training", "factor", 3.0)
    scale = with_setting(scale, "decoding", "beam", 3)
    facts = "decoding.beam", 4, 3, "training.factor", 0.68, 3.0
    with raises(SettingError, folder, *facts, "--out"):
        write_order(cells(replace(of, scale=scale))[0], data, tmp_path)
    other = PreparedData(data.folder, {"train/train.en": "b"})
    with raises(SettingError, folder, "files.train/train.en", "a", "b", "--out"):
        write_order(cells(of)[0], other, tmp_path)


@pytest.mark.parametrize(
    ("experiment", "scale"),
    [("table1", "multi30k-converged"), ("scan", "scan"), ("clutrr", "clutrr")],
)
def test_the_process_of_a_cell_reads_the_cell_that_was_asked_for(
    experiment: str, scale: str, tmp_path: Path
) -> None:
    data = PreparedData(tmp_path / "corpus", {"train/train.en": "a"})
    for cell in cells(study(experiment, tmp_path, scale)):
        folder = write_order(cell, data, tmp_path)
        assert read_order(folder) == (cell, data, tmp_path)


@pytest.mark.parametrize("content", ["[]", "{}", '{"asked": 3}', '{"asked": {}, "scale": "x"}'])
def test_damaged_settings_of_a_cell_are_named(content: str, tmp_path: Path) -> None:
    cell = cells(study("table3", tmp_path))[0]
    data = PreparedData(tmp_path / "corpus", {})
    path = write_order(cell, data, tmp_path) / "cell.json"
    path.write_text(content)
    with raises(DataError, path, "damaged"):
        read_order(path.parent)
    with raises((DataError, SettingError), path.parent):
        write_order(cell, data, tmp_path)


# Results that do not belong together.


def test_cells_of_different_corpora_make_no_report(tmp_path: Path) -> None:
    of = study("table3", tmp_path)
    one, other, *_ = cells(of)
    result(one, 7, "a").write(one.result(tmp_path))
    result(other, 7, "b").write(other.result(tmp_path))
    with raises(DataError, "train.en", "multi30k", "en-de", "--out"):
        of.write_report()
    with raises(DataError, "train.en", "multi30k", "en-de", "--out"):
        require_same_corpus([result(one, 7, "a")], {"train.en": "c"})


def test_cells_with_different_numbers_of_sentences_make_no_report(tmp_path: Path) -> None:
    of = study("table3", tmp_path)
    one, other, *_ = cells(of)
    result(one, 7).write(one.result(tmp_path))
    shorter = result(other, 7)
    shorter.tests["test"] = measured(7, 59)
    shorter.write(other.result(tmp_path))
    with raises(DataError, "multi30k", "en-de", "test", 60, 59):
        of.write_report()
