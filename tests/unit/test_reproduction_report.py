"""Reports: scores, differences and verdicts follow from the stored results."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import assert_mentions, raises
from stored_cells import REFERENCES, SOURCES, measured, result, spoilt, store, study

from edgewise.errors import SettingError
from edgewise.evaluation import bleu
from edgewise.reproduction.markdown import verdict
from edgewise.reproduction.measurements import LOG_PROBABILITY, Measurements
from edgewise.reproduction.report import LEAST_CLUSTERS, compare, report_pair, summarise
from edgewise.reproduction.results import Result
from edgewise.reproduction.speed import Speed, write_speed_report
from edgewise.reproduction.statistics import Difference, difference, with_holm_correction
from edgewise.reproduction.study import Study, require_own_report
from edgewise.storage import write_json

REPORTS = Path("reports/multi30k")


def report_of(of: Study) -> tuple[str, dict[str, Any]]:
    """Write the report; return the Markdown, and the data of the first pair."""
    path = of.write_report()
    assert path is not None
    return path.read_text(), json.loads(path.with_suffix(".json").read_text())["pairs"][0]


def line_of(text: str, start: str) -> list[str]:
    """Return the cells of the only line of a table that begins with this text."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


# Scores and differences.


def samples(quality: Mapping[int, int], size: int = 60) -> dict[int, Measurements]:
    return {seed: measured(every, size) for seed, every in quality.items()}


def test_a_score_is_the_mean_over_seeds() -> None:
    found = summarise(samples({1: 9, 4: 12}), "BLEU")
    values = [bleu(spoilt(every), REFERENCES).value for every in (9, 12)]
    assert found.values == pytest.approx(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.deviation == pytest.approx(np.std(values, ddof=1))
    assert found.interval is not None and found.interval[0] < found.mean < found.interval[1]
    assert summarise(samples({1: 9}), "BLEU").deviation is None


def test_an_interval_stays_within_the_limits_of_its_metric() -> None:
    for metric, (least, most) in {"BLEU": (0, 100), "exact match": (0, 1)}.items():
        for quality in ({1: 2, 2: 50}, {1: 2, 2: 3}):
            found = summarise(samples(quality), metric)
            assert found.interval is not None
            assert least <= found.interval[0] <= found.interval[1] <= most


def test_few_sentences_have_no_interval_and_no_test() -> None:
    few, enough = (samples({1: 9, 2: 8}, size) for size in (LEAST_CLUSTERS - 1, LEAST_CLUSTERS))
    other = samples({1: 5, 2: 6}, LEAST_CLUSTERS - 1)
    assert summarise(few, "BLEU").interval is None
    assert compare(few, other, "BLEU", None) is None
    assert summarise(enough, "BLEU").interval is not None
    assert compare(enough, samples({1: 5, 2: 6}, LEAST_CLUSTERS), "BLEU", None) is not None


@pytest.mark.parametrize(
    ("value", "p_value", "equivalence", "seeds", "expected"),
    [
        (2.0, 0.01, None, 3, "higher"),
        (-2.0, 0.01, None, 3, "lower"),
        (-2.0, 0.2, None, 3, "undecided"),
        (0.1, 0.6, 0.01, 3, "equivalent within 0.5 BLEU"),
        (0.1, 0.04, 0.04, 3, "higher and equivalent within 0.5 BLEU"),
        (0.1, 0.6, 0.2, 3, "undecided"),
        (2.0, 0.01, None, 1, "one seed"),
    ],
)
def test_the_verdict_follows_from_both_tests(
    value: float, p_value: float, equivalence: float | None, seeds: int, expected: str
) -> None:
    found = Difference(value, (value - 1, value + 1), p_value, equivalence, seeds)
    assert verdict(found, 0.5, "BLEU") == expected
    assert verdict(None, 0.5, "BLEU") == "not tested"


# Reports.


def test_a_report_has_the_papers_figures_and_ours(tmp_path: Path) -> None:
    of = study("table3", tmp_path)
    store(of, {"keys-and-values": (9, 12), "keys": (9, 8), "neither": (2,)})
    assert of.write_report() == tmp_path / REPORTS / "table3.md"
    text, pair = report_of(of)
    scores, *others = pair["tables"]
    assert not others
    headings = [(column["heading"], column["sentences"]) for column in scores["columns"]]
    assert headings == [("BLEU on validation", 60), ("BLEU on test", 60)]
    bleus = [bleu(spoilt(every), REFERENCES).value for every in (9, 12)]
    mean, deviation = np.mean(bleus), np.std(bleus, ddof=1)
    summary = scores["scores"]["keys-and-values"][0]
    assert summary["values"] == pytest.approx(bleus)
    low, high = summary["interval"]
    line = line_of(text, "keys and values")
    expected = f"{mean:.2f} ± {deviation:.2f} ({low:.2f} to {high:.2f})"
    assert line[1:3] == ["25.8", expected]
    assert line[-3:] == ["1, 2", "2,000", "1,234"]
    alone = line_of(text, "neither")
    assert alone[1] == "12.5" and alone[-3] == "1*"
    assert alone[2].startswith(f"{bleu(spoilt(2), REFERENCES).value:.2f} (")
    assert pair["missing"] == ["values"] and "Not finished: values." in text
    assert [row["seeds"] for row in pair["rows"]] == [[1, 2], [1, 2], [1]]
    assert "tok:13a" in text and "an abacus" in text
    for differs in of.scale.differs:
        assert differs in text
    assert text.startswith("# Learning speed. Table 3")
    assert "edgewise reproduce table3 --scale multi30k`" in text
    picture = tmp_path / REPORTS / "table3.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and f"({picture.name})" in text


def test_differences_are_of_common_seeds_beside_the_papers(tmp_path: Path) -> None:
    of = study("table3", tmp_path)
    store(of, {"keys-and-values": (9, 12), "keys": (9, 8), "neither": (2,)})
    text, pair = report_of(of)
    assert [each["paper"] for each in pair["comparisons"]] == pytest.approx([0.0, -13.3])
    both = [bleu(spoilt(every), REFERENCES).value for every in (9, 12)]
    keys = [bleu(spoilt(every), REFERENCES).value for every in (9, 8)]
    first, second = (row[0] for row in pair["tables"][0]["differences"])
    assert first["value"] == pytest.approx(np.mean(keys) - np.mean(both))
    assert (first["seeds"], second["seeds"]) == (2, 1)
    assert second["value"] == pytest.approx(bleu(spoilt(2), REFERENCES).value - both[0])
    line = line_of(text, "neither minus keys and values")
    assert line[1] == "-13.3" and line[2].startswith(f"{second['value']:+.2f} (")
    assert line[2].endswith("< 0.001*") and line[-1] == "one seed"
    assert "values only minus" not in text  # it is not finished


def test_rows_without_a_common_seed_are_not_tested(tmp_path: Path) -> None:
    of = study("table3", tmp_path)
    store(of, {"keys-and-values": {1: 9, 2: 12}, "keys": {3: 9, 4: 8}})
    text, pair = report_of(of)
    assert pair["tables"][0]["differences"] == [[None, None]]
    assert line_of(text, "keys only minus keys and values")[1:] == ["+0.0", "", "", "not tested"]


def test_p_values_are_corrected_within_a_column(tmp_path: Path) -> None:
    of = study("table2", tmp_path)
    quality = {"k0": (2, 3, 2), "k1": (8, 9, 8), "k16": (9, 8, 10), "k4": (9, 9, 9)}
    store(of, quality)
    _, pair = report_of(of)
    table = pair["tables"][0]
    samples_of = {
        row: {seed: measured(every).sample("BLEU") for seed, every in enumerate(figures, start=1)}
        for row, figures in quality.items()
    }
    expected = with_holm_correction(
        [
            difference(samples_of["k0"], samples_of["k16"]),
            difference(samples_of["k1"], samples_of["k16"]),
            difference(samples_of["k4"], samples_of["k16"], 1.0),
        ]
    )
    assert len(table["differences"]) == len(expected)
    for row, found in zip(table["differences"], expected, strict=True):
        assert found is not None
        for column in row:  # validation and test have the same sentences here
            assert column["p_value"] == pytest.approx(found.p_value)
            assert column["equivalence"] == pytest.approx(found.equivalence)


def test_several_test_sets_are_reported_together_and_one_by_one(tmp_path: Path) -> None:
    of = study("both", tmp_path, "multi30k-converged")
    store(of, {"absolute": (6, 7), "relative": (9, 8), "both": (9, 9)})
    text, pair = report_of(of)
    table = pair["tables"][0]
    columns = [(c["part"], c["metric"], c["sentences"]) for c in table["columns"]]
    assert columns == [
        ("test", "BLEU", 125),
        ("test", "log-probability", 125),
        ("valid", "BLEU", 60),
        ("valid", "log-probability", 60),
        ("test_2016_flickr", "BLEU", 60),
        ("test_2017_flickr", "BLEU", 40),
        ("test_2017_mscoco", "BLEU", 25),
    ]
    lines = spoilt(9), list(REFERENCES)
    together, references = (side[:60] + side[:40] + side[:25] for side in lines)
    value = table["scores"]["relative"][0]["values"][0]
    assert value == pytest.approx(bleu(together, references).value)
    per_piece = table["scores"]["relative"][3]["values"][0]
    whole = measured(9).columns
    pieces = whole["reference_pieces"].sum()
    assert per_piece == pytest.approx(whole[LOG_PROBABILITY].sum() / pieces)
    # Margins are in BLEU: equivalence is not tested in other metrics.
    both = table["differences"][0]
    tested = [column["equivalence"] is not None for column in both]
    assert tested == [True, False, True, False, True, True, True]
    assert len(line_of(text, "relative and absolute")) == 2 + 7 + 3
    assert not text.startswith("# Learning speed.")


def test_a_report_by_length_has_the_scores_of_each_bucket(tmp_path: Path) -> None:
    of = study("length", tmp_path, "multi30k-short")
    store(of, {"absolute": (6, 7), "relative": (9, 9)})
    text, pair = report_of(of)
    _, by_bleu, by_probability = pair["tables"]
    assert_mentions(by_bleu["title"], "BLEU on test", "source words")
    assert_mentions(by_probability["title"], "log-probability per piece", "test", "source words")
    words = np.array([len(source.split()) for source in SOURCES])
    buckets = [(first, last) for first, last in ((0, 12), (13, 16), (17, 20))]
    counts = [int(((words >= first) & (words <= last)).sum()) for first, last in buckets]
    shown = [(lengths, count) for lengths, count in zip(buckets, counts, strict=True) if count > 1]
    columns = by_bleu["columns"]
    assert [(tuple(c["lengths"]), c["sentences"]) for c in columns] == shown
    assert [c["is_trained"] for c in columns] == [last <= 12 for (_, last), _ in shown]
    short = [i for i in range(60) if words[i] <= 12]
    one, other = (
        bleu([spoilt(every)[i] for i in short], [REFERENCES[i] for i in short]).value
        for every in (9, 6)
    )
    assert by_bleu["scores"]["relative"][0]["values"][0] == pytest.approx(one)
    assert by_bleu["scores"]["absolute"][0]["values"][0] == pytest.approx(other)
    assert "### BLEU on test, by source words" in text
    short_words = words[words <= 12]
    shortest = f"|  | {short_words.min()}-{short_words.max()} |"
    heads = next(line for line in text.splitlines() if line.startswith(shortest))
    assert heads.count("longer than in training") == len(shown) - 1


def test_p_values_by_length_are_corrected_within_the_table(tmp_path: Path) -> None:
    of = study("scan", tmp_path, "scan")
    lengths = np.repeat([27, 30, 48], 20)
    quality = {"absolute": 3, "relative-k4": 5, "relative-k16": 4}
    tests: dict[str, list[Result]] = {}
    for row in of.rows("commands-actions"):
        if row.name in quality:
            tests[row.name] = [
                result(of.cell(row, "commands-actions", seed), quality[row.name] + seed)
                for seed in (1, 2)
            ]
            for test in (test for found in tests[row.name] for test in found.tests.values()):
                test.columns["target_words"][:] = lengths  # type: ignore[index]
    pair = report_pair(of.experiment, of.scale, "commands-actions", tests)
    _, exact, _ = pair.tables
    assert [column.heading for column in exact.columns] == ["27", "30", "48"]
    assert not any(column.is_trained for column in exact.columns)
    raw = [
        difference(
            *(
                {
                    each.seed: each.tests["test"].subset("target_words", n, n).sample("exact match")
                    for each in tests[row]
                }
                for row in rows
            )
        )
        for n in (27, 30, 48)
        for rows in (("relative-k16", "absolute"), ("relative-k4", "relative-k16"))
    ]
    corrected = with_holm_correction(raw)
    found = [exact.differences[i][column] for column in range(3) for i in range(2)]
    assert found == corrected
    assert found != raw


def test_changes_of_the_command_line_are_in_the_report_and_its_name(tmp_path: Path) -> None:
    of = study("both", tmp_path, budget=4500)
    store(of, {"relative": (9,)})
    path = of.write_report()
    assert path == tmp_path / REPORTS / "both,budget=4500.md"
    text, _ = report_of(of)
    assert "budget 4500" in text
    assert "`edgewise reproduce both --scale multi30k --budget 4500`" in text
    assert line_of(text, "relative")[-2] == "4,500"
    assert study("both", tmp_path).write_report() is None


def test_the_same_cells_give_the_same_bytes(tmp_path: Path) -> None:
    files = []
    for name in ("one", "other"):
        of = study("table2", tmp_path / name)
        store(of, {"k0": (2,), "k16": (9,), "k4": (8,)})
        path = of.write_report()
        assert path is not None
        files.append({file.name: file.read_bytes() for file in path.parent.iterdir()})
    assert files[0] == files[1]
    assert files[0].keys() == {"table2.md", "table2.json", "table2.png"}


def test_without_matplotlib_a_report_has_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    of = study("table2", tmp_path)
    store(of, {"k0": (2,), "k16": (9,)})
    text, _ = report_of(of)
    assert ".png" not in text
    assert {path.name for path in (tmp_path / REPORTS).iterdir()} == {"table2.md", "table2.json"}


PICTURES = [
    ("table2", "multi30k", {"k0": (2,), "k16": (9, 8), "k2": (9, 8)}, 2),
    ("tuning", "multi30k-converged", {"relative-0.003": (9,)}, 1),
    ("length", "multi30k-short", {"absolute": (6, 7), "relative": (9, 9)}, 2),
]


@pytest.mark.parametrize(("experiment", "scale", "quality", "panels"), PICTURES)
def test_a_picture_has_a_panel_for_scores_and_differences_or_for_each_table_by_length(
    experiment: str,
    scale: str,
    quality: dict[str, tuple[int, ...]],
    panels: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: Any, **options: Any) -> None:
        drawn.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    of = study(experiment, tmp_path, scale)
    store(of, quality)
    _, pair = report_of(of)
    axes = drawn[0].axes
    assert len(axes) == panels
    if experiment == "length":
        for table, panel in zip(pair["tables"][1:], axes, strict=True):
            assert table["title"] in panel.get_title()
        assert {line.get_label() for line in axes[0].lines} >= {"absolute", "relative"}
    else:
        names = [label.get_text() for label in axes[0].get_yticklabels()]
        assert names == [row["heading"] for row in pair["rows"]]


def test_no_cell_no_report(tmp_path: Path) -> None:
    assert study("table3", tmp_path).write_report() is None
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("suffix", [".md", ".json", ".png"])
def test_a_file_in_the_place_of_a_report_is_not_replaced(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "table2,budget=7.md"
    require_own_report(path)
    mine = path.with_suffix(suffix)
    mine.write_text('{"mine": 1}')
    with raises(SettingError, mine, "--out"):
        require_own_report(path)
    write_json(path.with_suffix(".json"), {"command": "edgewise reproduce", "pairs": []})
    require_own_report(path)


def test_a_report_of_speed_has_the_papers_figure_and_ours(tmp_path: Path) -> None:
    of = study("cost", tmp_path)
    speeds = [
        Speed("absolute", 1000, 0.1, 0.0, (0.0, 0.0)),
        Speed("relative", 1100, 0.125, -20.0, (-22.5, -17.0)),
    ]
    of.report_path.parent.mkdir(parents=True)
    write_speed_report(of, "en-de", speeds, 300)
    text = of.report_path.read_text()
    assert line_of(text, "absolute")[1:] == ["1,000", "0.100", "10.000", "", "", ""]
    ours = ["1,100", "0.125", "8.000", "-7 %", "-20.0 %", "-22.5 to -17.0 %"]
    assert line_of(text, "relative")[1:] == ours
    assert "300 updates" in text
    require_own_report(of.report_path)
