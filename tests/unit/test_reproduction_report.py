"""Results and reports: what was measured comes back, and what is said of it is right."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import raises

from edgewise.data.grammar import pairs
from edgewise.errors import DataError, SettingError
from edgewise.evaluation import SentenceStatistics, bleu, compare
from edgewise.reproduction.cells import Cell, Changes
from edgewise.reproduction.corpora import Texts
from edgewise.reproduction.experiments import read_experiment
from edgewise.reproduction.results import Measured, Result, finished, require_same_corpus
from edgewise.reproduction.scales import read_scale
from edgewise.reproduction.statistics import Spread, difference
from edgewise.reproduction.study import Study, require_own_report
from edgewise.reproduction.worker import order
from edgewise.storage import write_json

SOURCES, REFERENCES = zip(*pairs(60, seed=5), strict=True)
REPORTS = Path("reports/multi30k")


def spoilt(every: int) -> list[str]:
    """The references, each n-th word of all lost."""
    count, lines = 0, []
    for line in REFERENCES:
        words = []
        for word in line.split():
            count += 1
            if count % every:
                words.append(word)
        lines.append(" ".join(words))
    return lines


def statistics(every: int) -> SentenceStatistics:
    return SentenceStatistics.of(spoilt(every), REFERENCES)


def result(cell: Cell, every: int, corpus: str = "a") -> Result:
    words = np.array([len(source.split()) for source in SOURCES])
    part = Measured(words, statistics(every), 50.0, "chrF")
    return Result(
        asked=cell.asked(),
        corpus={"train.en": corpus},
        parameters=1234,
        updates=cell.training.steps,
        losses=[(200, 3.5)],
        parts={"valid": part, "test": part},
        hardware="an abacus",
        about={},
    )


def study(name: str, out: Path, scale: str = "multi30k") -> Study:
    return Study.of(read_experiment(name), read_scale(scale), Changes(), out)


def cells(of: Study) -> list[Cell]:
    return of.cells(["en-de"], None, [1])


def store(of: Study, quality: dict[str, Sequence[int]]) -> None:
    """Of each row as many seeds as there are figures for it."""
    for row in of.rows("en-de"):
        for seed, every in enumerate(quality.get(row.name, ()), start=1):
            cell = of.cell(row, "en-de", seed)
            result(cell, every).write(cell.result(of.out))


def test_a_result_comes_back(tmp_path: Path) -> None:
    cell = cells(study("table3", tmp_path))[0]
    stored = result(cell, 7)
    stored.write(cell.result(tmp_path))
    read = finished(cell, tmp_path)
    assert read is not None
    for part in ("valid", "test"):
        before, after = stored.parts[part], read.parts[part]
        assert after.statistics.bleu() == before.statistics.bleu()
        assert np.array_equal(after.statistics.counts, before.statistics.counts)
        assert np.array_equal(after.words, before.words)
    assert (read.asked, read.corpus, read.losses) == (stored.asked, stored.corpus, stored.losses)
    content = json.loads(cell.result(tmp_path).read_text())
    assert content["parts"]["test"]["bleu"] == bleu(spoilt(7), REFERENCES).value
    assert not any(source in cell.result(tmp_path).read_text() for source in SOURCES)


@pytest.mark.parametrize("damage", ["{", "[]", '{"version": 1}', '{"version": 1, "parts": []}'])
def test_a_damaged_result_is_told_by_its_file(damage: str, tmp_path: Path) -> None:
    cell = cells(study("table3", tmp_path))[0]
    result(cell, 7).write(cell.result(tmp_path))
    cell.result(tmp_path).write_text(damage)
    with raises(DataError, cell.result(tmp_path)):
        finished(cell, tmp_path)


def test_a_result_of_other_settings_is_told_by_what_differs(tmp_path: Path) -> None:
    cell = cells(study("table3", tmp_path))[0]
    other = result(cell, 7)
    other.asked["model"]["dropout"] = 0.7
    other.write(cell.result(tmp_path))
    with raises(SettingError, cell.result(tmp_path), "model.dropout", 0.7, 0.1, "--out"):
        finished(cell, tmp_path)


def test_work_that_was_begun_with_other_settings_is_not_gone_on_with(tmp_path: Path) -> None:
    of = study("table3", tmp_path)
    texts = Texts(tmp_path / "corpus", {"train/train.en": "a"}, tmp_path)
    folder = order(cells(of)[0], texts, tmp_path)
    assert order(cells(of)[0], texts, tmp_path) == folder
    training = of.scale.training.model_copy(update={"factor": 3.0})
    decoding = of.scale.decoding.model_copy(update={"beam": 3})
    scale = of.scale.model_copy(update={"training": training, "decoding": decoding})
    changed = Study.of(of.experiment, scale, Changes(), tmp_path)
    facts = "decoding.beam", 4, 3, "training.factor", 0.68, 3.0
    with raises(SettingError, folder, *facts, "--out"):
        order(cells(changed)[0], texts, tmp_path)
    other = Texts(texts.corpus, {"train/train.en": "b"}, tmp_path)
    with raises(SettingError, folder, "files.train/train.en", "a", "b", "--out"):
        order(cells(of)[0], other, tmp_path)


def test_cells_of_other_corpora_make_no_report(tmp_path: Path) -> None:
    of = study("table3", tmp_path)
    one, other, *_ = cells(of)
    result(one, 7, "a").write(one.result(tmp_path))
    result(other, 7, "b").write(other.result(tmp_path))
    with raises(DataError, "train.en", "multi30k", "en-de", "--out"):
        of.write_report()
    with raises(DataError, "train.en", "multi30k", "en-de", "--out"):
        require_same_corpus([result(one, 7, "a")], {"train.en": "c"})


def test_with_one_seed_the_interval_is_that_of_the_paired_bootstrap() -> None:
    one, other = statistics(9), statistics(6)
    ours, theirs = difference([one], [other]), compare(one, other)
    assert (ours.value, ours.interval) == (theirs.difference, theirs.interval)
    assert ours.one_seed


def test_no_difference_is_none() -> None:
    same = difference([statistics(9)] * 2, [statistics(9)] * 3)
    assert same.value == pytest.approx(0, abs=1e-9)
    assert same.interval == pytest.approx((0, 0), abs=1e-9)
    assert same.p_value > 0.9
    assert not same.one_seed


def test_p_is_below_5_percent_where_the_interval_leaves_out_0() -> None:
    for one, other in ((7, 8), (8, 9), (8, 8), (9, 12), (10, 11), (12, 13), (20, 25)):
        found = difference([statistics(one)], [statistics(other)])
        low, high = found.interval
        assert (found.p_value < 0.052) == (low > 0 or high < 0)


def test_where_there_is_no_difference_one_is_rarely_found() -> None:
    # Three seeds each, whose own quality and whose sentences are drawn by chance.
    generator = np.random.default_rng(3)

    def seed() -> SentenceStatistics:
        quality = generator.normal(0.5, 0.02)
        right = generator.binomial(10, np.clip(quality, 0, 1), size=40)
        counts = np.stack([np.full(40, 10)] * 2 + [right] * 4 + [np.full(40, 10)] * 4, axis=1)
        return SentenceStatistics(counts, "")

    found = [
        difference([seed() for _ in range(3)], [seed() for _ in range(3)]).p_value < 0.05
        for _ in range(60)
    ]
    assert sum(found) / len(found) < 0.15


def test_seeds_widen_the_interval() -> None:
    alone = Spread.of([statistics(8)])
    several = Spread.of([statistics(4), statistics(8), statistics(20)])
    assert alone.deviation is None
    assert several.deviation == pytest.approx(np.std(several.values, ddof=1))
    assert several.mean == pytest.approx(np.mean(several.values))

    def width(spread: Spread) -> float:
        assert spread.interval is not None
        return spread.interval[1] - spread.interval[0]

    assert width(several) > width(alone)
    unsure = difference([statistics(4), statistics(20)], [statistics(8)])
    sure = difference([statistics(20)], [statistics(8)])
    assert sure.p_value < 0.05 < unsure.p_value
    assert width(Spread.of([statistics(8)] * 3)) == pytest.approx(width(alone))


def test_a_report_has_the_papers_figures_and_ours(tmp_path: Path) -> None:
    of = study("table3", tmp_path)
    store(of, {"keys-and-values": (9, 12), "keys": (9, 8), "neither": (2,)})
    path = of.write_report()
    assert path == tmp_path / REPORTS / "table3.md"
    text = path.read_text()
    bleus = [bleu(spoilt(every), REFERENCES).value for every in (9, 12)]
    mean, deviation = np.mean(bleus), np.std(bleus, ddof=1)
    assert f"| keys and values | 25.8 | {mean:.2f} ± {deviation:.2f} |" in text
    assert f"| neither | 12.5 | {bleu(spoilt(2), REFERENCES).value:.2f} |" in text
    assert "| keys only minus keys and values | +0.0 |" in text
    assert "| neither minus keys and values | -13.3 |" in text
    assert "Not finished: values." in text
    assert "values only minus" not in text
    assert "tok:13a" in text and "an abacus" in text
    for differs in of.scale.differs:
        assert differs in text
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    report: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    (pair,) = report["pairs"]
    assert [row["seeds"] for row in pair["rows"]] == [[1, 2], [1, 2], [1]]
    assert pair["rows"][0]["bleu"]["valid"]["values"] == bleus


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


def test_a_report_by_length_has_counts_and_intervals(tmp_path: Path) -> None:
    of = study("length", tmp_path, "multi30k-short")
    store(of, {"absolute": (6,), "relative": (9,)})
    path = of.write_report()
    assert path is not None
    words = np.array([len(source.split()) for source in SOURCES])
    chosen = (words >= 0) & (words <= 12)
    short = statistics(9).part(chosen).bleu().value - statistics(6).part(chosen).bleu().value
    line = next(line for line in path.read_text().splitlines() if line.startswith("| 0-12 "))
    assert line.startswith(f"| 0-12 (as in training) | {chosen.sum()} | ")
    assert f"| {short:+.2f} | " in line
    content = json.loads(path.with_suffix(".json").read_text())
    total = sum(bucket["sentences"] for bucket in content["pairs"][0]["buckets"])
    assert total == len(SOURCES)


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
