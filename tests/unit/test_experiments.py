"""The paper's tables as data: its figures, its settings, and which rows are one model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from messages import assert_mentions, raises

from edgewise.cli.main import run
from edgewise.errors import SettingError
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.reproduction.cells import Cell, Changes, cell_for, without_duplicates
from edgewise.reproduction.experiments import (
    Row,
    experiment_names,
    read_experiment,
    read_row,
)
from edgewise.reproduction.scales import Scale, TranslationScale, read_scale, scale_names
from edgewise.reproduction.study import Study, require_known
from edgewise.reproduction.translation import run_settings
from edgewise.training.schedule import learning_rate
from edgewise.training.settings import RunSettings, TrainingSettings

FILES = 'base = "multi30k"\n[files]\ntrain = ["{}"]\nvalid = ["v"]\ntest = ["t"]'
TESTS = 'base = "multi30k"\n[files]\ntrain = ["a"]\nvalid = ["v"]\n[files.test]\n{}'
COMMANDS = 'base = "scan"\n[commands]\nfiles = ["{}"]\nmax_target_words = 9\nvalid = 9'
PAPER = {
    "table1": {
        "absolute": {"en-de": 26.5, "en-fr": 38.2},
        "relative": {"en-de": 26.8, "en-fr": 38.7},
        "big-absolute": {"en-de": 27.9, "en-fr": 41.2},
        "big-relative": {"en-de": 29.2, "en-fr": 41.5},
    },
    "table2": {
        f"k{k}": {"en-de": figure}
        for k, figure in zip(
            (0, 1, 2, 4, 16, 64, 256), (12.5, 25.5, 25.8, 25.9, 25.8, 25.9, 25.8), strict=True
        )
    }
    | {"without": {}},
    "table3": {
        "keys-and-values": {"en-de": 25.8},
        "keys": {"en-de": 25.8},
        "values": {"en-de": 25.3},
        "neither": {"en-de": 12.5},
    },
}


def cells_at(experiment: str, scale: Scale, pair: str) -> dict[str, Cell]:
    study = Study(read_experiment(experiment), scale, Changes(), Path("out"))
    return {row.name: study.cell(row, pair, 1) for row in study.rows(pair)}


def cells(experiment: str, scale: str, pair: str = "en-de") -> dict[str, Cell]:
    return cells_at(experiment, read_scale(scale), pair)


@pytest.mark.parametrize("name", PAPER)
def test_the_figures_are_the_papers(name: str) -> None:
    found: dict[str, dict[str, float]] = {}
    for row in read_experiment(name).rows:
        found.setdefault(row.name, {}).update(row.paper)
    assert found == PAPER[name]


@pytest.mark.parametrize("name", experiment_names())
def test_every_row_is_a_model_at_every_scale_of_its_experiment(name: str) -> None:
    experiment = read_experiment(name)
    for scale in map(read_scale, experiment.scales):
        pairs = Study(experiment, scale, Changes(), Path("out")).pairs
        assert pairs
        for pair in pairs:
            named = cells(name, scale.name, pair)
            assert named
            assert len({cell.name for cell in named.values()}) == len(named)


def test_every_scale_belongs_to_an_experiment() -> None:
    used = {scale for name in experiment_names() for scale in read_experiment(name).scales}
    assert used == set(scale_names())


@pytest.mark.parametrize("size", ["", "big-"])
@pytest.mark.parametrize("pair", ["en-de", "en-fr"])
@pytest.mark.parametrize("positions", ["absolute", "relative"])
def test_the_rows_of_table_1_have_the_papers_settings(size: str, pair: str, positions: str) -> None:
    # Section 4.1, in its order.
    cell = cells("table1", "wmt14", pair)[size + positions]
    model, training, scale = cell.model, cell.training, cell.scale
    assert isinstance(scale, TranslationScale) and isinstance(model, ModelSettings)
    is_base, is_relative = not size, positions == "relative"
    assert scale.vocab_size == 32_768
    assert (training.batch_tokens, training.batches, cell.ranks) == (4096, 8, 8)
    assert (training.warmup, training.factor, training.schedule) == (4000, 1.0, "inverse_sqrt")
    assert (training.label_smoothing, training.clip) == (0.1, None)
    assert not training.mixed_precision
    assert (scale.decoding.beam, scale.decoding.length_penalty) == (4, 0.6)
    assert (model.encoder_layers, model.decoder_layers) == (6, 6)
    assert (model.d_model, model.heads) == ((512, 8) if is_base else (1024, 16))
    assert model.d_ff == (1024 if is_base else 4096)
    assert model.dropout == (0.1 if is_base or pair == "en-fr" else 0.3)
    assert (model.attention_dropout, model.norm) == (0.0, "post")
    assert training.steps == (100_000 if is_base else 300_000)
    if is_base:  # "did not use checkpoint averaging"
        assert (cell.average, training.save_minutes) == (1, None)
    else:
        saved = training.save_minutes, training.save_every, training.keep
        assert (cell.average, saved) == (20, (10, None, 20))
    assert model.sinusoids != is_relative
    assert model.max_distance == ((16 if is_base else 8) if is_relative else None)
    if is_relative:
        assert model.tables == ("head" if is_base else "layer")
        assert (model.on_keys, model.on_values) == (True, True)


@pytest.mark.parametrize("size", ["", "big-"])
def test_relative_and_absolute_differ_in_positions_only(size: str) -> None:
    rows = cells("table1", "wmt14")
    one, other = rows[f"{size}relative"], rows[f"{size}absolute"]
    assert one.training == other.training
    differing = {name for name, value in one.model if value != getattr(other.model, name)}
    assert differing - {"tables"} == {"max_distance", "sinusoids"}


def test_the_defaults_are_the_papers_base_model() -> None:
    cell = cells("table1", "wmt14")["relative"]
    assert cell.model == ModelSettings()
    default = TrainingSettings()
    differing = {name for name, value in cell.training if value != getattr(default, name)}
    assert differing == {"save_every"}


@pytest.mark.parametrize("pair", ["en-de", "en-fr"])
@pytest.mark.parametrize("row", PAPER["table1"])
def test_settings_of_a_row_are_printed_as_a_file_that_training_reads(
    row: str, pair: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ["--corpus", "a corpus", "--out", "runs/one"]
    assert run(["reproduce", "settings", "table1", row, "--pair", pair, *paths]) == 0
    file = tmp_path / "run.toml"
    file.write_text(capsys.readouterr().out)
    cell = cells("table1", "wmt14", pair)[row]
    assert RunSettings.read(file) == RunSettings(
        corpus=Path("a corpus"), out=Path("runs/one"), model=cell.model, training=cell.training
    )


@pytest.mark.parametrize("scale", [name for name in scale_names() if name != "clutrr"])
def test_settings_of_all_scales_survive_the_file(scale: str, tmp_path: Path) -> None:
    for name in experiment_names():
        experiment = read_experiment(name)
        if scale in experiment.scales:
            pair = Study(experiment, read_scale(scale), Changes(), tmp_path).pairs[0]
            for cell in cells(name, scale, pair).values():
                settings = run_settings(cell, Path("corpus"), Path("run"))
                (tmp_path / "run.toml").write_text(settings.toml())
                assert RunSettings.read(tmp_path / "run.toml") == settings


def test_parameters_of_the_papers_models() -> None:
    def count(row: str) -> int:
        cell = cells("table1", "wmt14")[row]
        with torch.device("meta"):
            model = Transformer(cell.model, cell.scale.vocab_size)
        return sum(p.numel() for p in model.parameters())

    def expected(d: int, ff: int, labels: int, heads: int, tables: int) -> int:
        attention, norm = 4 * d * d, 2 * d
        feed_forward = 2 * d * ff + ff + d
        encoder = attention + feed_forward + 2 * norm
        decoder = 2 * attention + feed_forward + 3 * norm
        positions = 12 * tables * 2 * labels * (d // heads)
        return 32_768 * d + 6 * (encoder + decoder) + positions

    assert count("absolute") == expected(512, 1024, 0, 8, 0)
    assert count("relative") == expected(512, 1024, 33, 8, 8)
    assert count("big-absolute") == expected(1024, 4096, 0, 16, 0)
    assert count("big-relative") == expected(1024, 4096, 17, 16, 1)


def test_the_schedule_of_the_papers_base_model() -> None:
    training = cells("table1", "wmt14")["relative"].training
    rates = [
        learning_rate(step, 512, training.warmup, training.factor) for step in (1, 4000, 100_000)
    ]
    assert rates == pytest.approx(
        [512**-0.5 * 4000**-1.5, 512**-0.5 * 4000**-0.5, 512**-0.5 * 100_000**-0.5]
    )


def test_rows_that_are_the_same_model_are_one_cell() -> None:
    relative = cells("table1", "multi30k")["relative"].name
    assert cells("table2", "multi30k")["k16"].name == relative
    assert cells("table3", "multi30k")["keys-and-values"].name == relative
    assert cells("both", "multi30k")["relative"].name == relative
    assert cells("propagation", "multi30k")["4-layers-k16"].name == relative
    assert cells("both", "multi30k")["without"].name == cells("table3", "multi30k")["neither"].name
    every = [
        cell
        for name in ("table1", "table2", "table3", "both", "propagation")
        for cell in cells(name, "multi30k").values()
    ]
    assert len(without_duplicates(every)) == 14
    assert len(every) == 21


def test_tables_at_the_converged_scale_share_their_cells() -> None:
    tables = {
        name: cells(name, "multi30k-converged")
        for name in ("table1", "table2", "table3", "both", "tuning")
    }
    shared = (
        *(("table1", "relative"), ("table2", "k16"), ("table3", "keys-and-values")),
        ("both", "relative"),
    )
    (relative,) = {tables[name][row].slug for name, row in shared}
    # The learning rate that was chosen is one of those that were tried.
    assert relative in {c.slug for row, c in tables["tuning"].items() if "relative" in row}
    without = (("table2", "without"), ("table3", "neither"), ("both", "without"))
    assert len({tables[name][row].slug for name, row in without}) == 1
    assert "k256" not in tables["table2"]  # no caption is longer than 64 pieces
    every = [cell for table in tables.values() for cell in table.values()]
    assert (len(every), len(without_duplicates(every))) == (29, 19)


def test_the_converged_scale_has_several_test_sets() -> None:
    scale = read_scale("multi30k-converged")
    years = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco")
    assert scale.tests == ("valid", *years)
    assert scale.parts == ("valid", "test")
    assert read_scale("multi30k").tests == ("valid", "test")
    assert read_scale("multi30k-short").tests == ("test",)


def tuned_scale(folder: Path) -> Scale:
    path = folder / "tuned.toml"
    path.write_text(
        'base = "multi30k-converged"\n[tuned.absolute]\nfactor = 1.36\nclip = "none"\n'
        "[tuned.relative]\nfactor = 0.68\n[tuned.none]\nfactor = 0.34\n"
    )
    return read_scale(str(path))


def test_tuned_training_settings_depend_on_the_kind_of_positions(tmp_path: Path) -> None:
    scale = tuned_scale(tmp_path)
    table1, table2, both = (cells_at(name, scale, "en-de") for name in ("table1", "table2", "both"))
    for cell, factor, clip in (
        (table1["absolute"], 1.36, None),
        (table1["relative"], 0.68, 1.0),
        (table2["k0"], 0.34, 1.0),  # one label says nothing about positions
        (both["both"], 0.68, 1.0),
        (both["without"], 0.34, 1.0),
    ):
        assert (cell.training.factor, cell.training.clip) == (factor, clip)
        assert cell.asked()["training"]["factor"] == factor
        untuned = table1["relative"].training
        assert cell.training.model_copy(update={"factor": 0.68, "clip": 1.0}) == untuned


def test_the_name_of_a_cell_shows_what_differs_from_tuned_settings(tmp_path: Path) -> None:
    scale = tuned_scale(tmp_path)
    # The names of stored cells do not depend on what is tuned.
    assert cells_at("table1", scale, "en-de")["absolute"].slug == (
        "sinusoids=true,max_distance=none,factor=1.36,clip=none"
    )
    tuning = cells_at("tuning", scale, "en-de")
    assert tuning["relative-0.003"].slug == "unchanged"
    assert tuning["relative-0.006"].slug == "factor=1.36"
    assert tuning["none-0.003"].slug == "max_distance=none"
    assert tuning["both-0.0015"].slug == "sinusoids=true,factor=0.34"
    # A row of one's own replaces tuned settings.
    row = Row(name="x", model={"sinusoids": True, "max_distance": None}, training={"factor": 2.0})
    own = cell_for(row, scale, "en-de", 1, Changes())
    assert (own.training.factor, own.training.clip) == (2.0, None)
    assert own.slug == "sinusoids=true,max_distance=none,factor=2.0,clip=none"


def test_tuning_has_the_same_peaks_for_each_kind_of_positions() -> None:
    tuning = cells("tuning", "multi30k-converged")
    kinds: dict[str, list[float]] = {}
    for row, cell in tuning.items():
        kind, _, peak = row.rpartition("-")
        training = cell.training
        rate = learning_rate(training.warmup, cell.model.d_model, training.warmup, training.factor)
        assert rate == pytest.approx(float(peak), rel=0.01)
        kinds.setdefault(kind, []).append(training.factor)
    assert kinds.keys() == {"absolute", "relative", "both", "none"}
    assert len({tuple(factors) for factors in kinds.values()}) == 1


def test_scan_is_tested_on_longer_sequences_than_it_is_trained_on() -> None:
    scale = read_scale("scan")
    assert isinstance(scale, TranslationScale) and scale.commands is not None
    assert scale.longest_trained("commands-actions") == scale.commands.max_target_words == 26
    assert min(scale.buckets) > 26
    assert scale.metrics == ("exact match", "exact match, length given")
    rows = cells("scan", "scan", "commands-actions")
    distances = {row: cell.model.max_distance for row, cell in rows.items()}
    expected = {"absolute": None, "relative-k4": 4, "relative-k16": 16, "both": 16, "without": None}
    assert distances == expected
    assert {row for row, cell in rows.items() if cell.model.sinusoids} == {"absolute", "both"}


def test_the_budget_of_graphs_is_a_number_of_epochs() -> None:
    scale, row = read_scale("clutrr"), read_experiment("clutrr").rows[0]
    cell = cell_for(row, scale, "2-4", 1, Changes(budget=3))
    assert (cell.training.epochs, cell.budget, scale.budget_unit) == (3, 3, "epochs")
    assert cell.name == "clutrr/2-4/epochs=3/seed1"
    assert (scale.longest_trained("2-4"), scale.longest_trained("2-3")) == (4, 3)


def test_what_a_cell_depends_on_is_in_its_name() -> None:
    scale, row = read_scale("multi30k"), read_experiment("table2").rows[0]
    names = {
        cell_for(row, scale, "en-de", 1, Changes()).name,
        cell_for(row, scale, "en-de", 2, Changes()).name,
        cell_for(row, scale, "en-fr", 1, Changes()).name,
        cell_for(row, scale, "en-de", 1, Changes(budget=10)).name,
        cell_for(row, scale, "en-de", 1, Changes(threads=2)).name,
        cell_for(row, scale, "en-de", 1, Changes(ranks=2)).name,
        cell_for(row, read_scale("demo"), "en-de", 1, Changes()).name,
    }
    assert len(names) == 7
    assert "multi30k/en-de/max_distance=0/seed1" in names
    assert "multi30k/en-de/max_distance=0,threads=2/seed1" in names


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ('title = "x"', ("name must be set", "title")),
        ('name = "x"\nmodle = {}', ("modle",)),
        ('name = "x"\n[training]\nseed = 2', ("training.seed",)),
        ("name = ", ("TOML",)),
    ],
)
def test_a_row_of_ones_own_that_is_none_is_told_why(
    text: str, facts: tuple[object, ...], tmp_path: Path
) -> None:
    path = tmp_path / "row.toml"
    path.write_text(text)
    with raises(SettingError, path, *facts):
        read_row(path)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("[model]\nwidth = 3", ("width",)),
        ("[model]\nheads = 3", ("d_model", 128, "heads", 3)),
        ("average = 9", ("training.keep", 5, "average", 9)),
    ],
)
def test_settings_that_no_model_has_are_told_with_the_row(
    text: str, facts: tuple[object, ...], tmp_path: Path
) -> None:
    path = tmp_path / "row.toml"
    path.write_text(f'name = "x"\n{text}')
    with raises(SettingError, "row x", *facts):
        cell_for(read_row(path), read_scale("multi30k"), "en-de", 1, Changes())


@pytest.mark.parametrize(
    ("row", "changes", "facts"),
    [
        ({"model": {"max_distance": 3}}, Changes(), ("row x", "max_distance")),
        ({"training": {"steps": 3}}, Changes(), ("row x", "steps")),
        ({"average": 2}, Changes(), ("row x", "average", 1, 2)),
        ({}, Changes(ranks=2), ("--ranks", "clutrr", 1, 2)),
    ],
)
def test_settings_that_graphs_do_not_have_are_refused(
    row: dict[str, Any], changes: Changes, facts: tuple[object, ...]
) -> None:
    with raises(SettingError, *facts):
        cell_for(Row(name="x", **row), read_scale("clutrr"), "2-4", 1, changes)


def test_names_that_are_none_are_told_with_the_nearest(tmp_path: Path) -> None:
    table = read_experiment("table2")
    for action, facts in (
        (lambda: read_experiment("tabel2"), ("experiment", "tabel2", "table2")),
        (lambda: read_scale("multi"), ("scale", "multi", "multi30k")),
        (lambda: read_scale("no.toml"), ("no.toml", "--scale")),
        (lambda: table.with_row(table.rows[0]), ("table2", "k0")),
        (lambda: read_row(tmp_path / "no.toml"), (tmp_path / "no.toml", "--row")),
    ):
        with raises(SettingError, *facts):
            action()


def test_a_scale_that_an_experiment_is_not_made_for_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('base = "multi30k"\nparts = ["test"]\n')
    for experiment, scale, facts in (
        ("recipe", "multi30k", ("multi30k", "multi30k-wu2021")),
        ("table1", "clutrr", ("clutrr", "demo", "wmt14")),
        ("clutrr", "multi30k", ("multi30k", "clutrr")),
        ("length", str(own), ("scale", "buckets")),
        ("table3", str(own), ("valid", "own", "test")),
    ):
        read = read_experiment(experiment), read_scale(scale)
        with raises(SettingError, experiment, *facts):
            Study(*read, Changes(), Path("out"))


def test_rows_and_pairs_that_are_nowhere_are_told() -> None:
    demo = [
        Study(read_experiment(name), read_scale("demo"), Changes(), Path("out"))
        for name in ("table1", "table2")
    ]
    for pairs, rows, known in (
        (["en-fr"], [], ("en-de",)),
        ([], ["k3"], ("absolute", "relative", "k0", "k1")),
        ([], ["big-absolute"], ("absolute",)),
    ):
        (wrong,) = pairs + rows
        with raises(SettingError, "table1", "table2", "demo", wrong) as error:
            require_known(demo, pairs, rows)
        assert_mentions(str(error.value).replace(wrong, ""), *known)
    require_known(demo, ["en-de"], ["k0", "relative"])


def test_a_scale_of_ones_own_may_be_based_on_another(tmp_path: Path) -> None:
    path = tmp_path / "wide.toml"
    path.write_text('base = "multi30k"\n[model]\nd_model = 256\n')
    scale, base = read_scale(str(path)), read_scale("multi30k")
    assert scale.name == "wide"
    assert scale.model == base.model.model_copy(update={"d_model": 256})
    assert scale.training == base.training


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ('base = "multi"', ("scale", "multi", "multi30k")),
        ("base = 3", ("scale", 3, "demo")),
        ('base = "multi30k"\naverage = 0', ("average", 1)),
        ('base = "multi30k"\npairs = ["ende"]', ("pairs.0",)),
        ('base = "multi30k"\n[training]\nthreads = 2', ("threads", "scale")),
        ('base = "multi30k"\n[grammar]\ntrain = 9\nvalid = 9\ntest = 9', ("files", "grammar")),
        (FILES.format("train.{lang}"), ("train.{lang}", "{language}")),
        (FILES.format("train.{language.no}"), ("train.{language.no}", "{language}")),
        ('base = "multi30k"\ncatalogue = "{pair.no}"', ("{pair.no}", "{pair}")),
        (FILES.format("/a"), ("/a", "--data")),
        (FILES.format("../a"), ("../a", "--data")),
        ('base = "multi30k"\n[files]\ntrain = []', ("files.train", 1)),
        (TESTS.format(""), ("files.test", 1)),
        (TESTS.format("flickr = []"), ("files.test.flickr", 1)),
        (TESTS.format('flickr = ["../a"]'), ("../a", "--data")),
        (TESTS.format('valid = ["t"]'), ("files", "test", "valid")),
        (TESTS.format('train = ["t"]'), ("files", "test", "train")),
        (TESTS.format('test = ["t"]\nother = ["u"]'), ("files.test", "test", "several")),
        (TESTS.format('"../a" = ["t"]'), ("files", "test", "../a")),
        (COMMANDS.format("{x}"), ("{x}", "{language}")),
        (COMMANDS.format("../a"), ("../a", "--data")),
        ('base = "scan"\n[grammar]\ntrain = 9\nvalid = 9\ntest = 9', ("grammar", "commands")),
        ('base = "multi30k"\nmetrics = ["BLUE"]', ("metrics.0", "'BLUE'", "'BLEU'")),
        ('base = "multi30k"\nmetrics = ["accuracy"]', ("metrics.0", "'accuracy'", "'BLEU'")),
        ('base = "multi30k"\nmetrics = []', ("metrics", 1)),
        ('base = "multi30k"\nby = "hops"', ("by", "'hops'", "'source_words'")),
        ('base = "multi30k"\n[tuned.rotary]\nfactor = 2.0', ("rotary", "'absolute'")),
        ('base = "multi30k"\nheld_out = 5', ("held_out", "max_source_words", "buckets")),
        (
            'base = "multi30k-converged"\nheld_out = 5\nmax_source_words = 9\nbuckets = [9, 12]',
            ("held_out", "test"),
        ),
        ('base = "clutrr"\ntask = "grahps"', ("task", "'grahps'", "graphs")),
        ('base = "clutrr"\ntask = ["graphs"]', ("task", "graphs")),
        ('base = "clutrr"\npairs = ["2-4"]', ("sets", "pairs")),
        ('base = "clutrr"\nmetrics = ["BLEU"]', ("metrics.0", "'BLEU'", "'accuracy'")),
        ('base = "clutrr"\nparts = ["valid"]', ("parts.0", "'test'")),
        ('base = "clutrr"\n[model]\nlayers = 0', ("model.layers", 1, 0)),
    ],
)
def test_a_scale_that_is_none_is_told_why(
    text: str, facts: tuple[object, ...], tmp_path: Path
) -> None:
    path = tmp_path / "wide.toml"
    path.write_text(text)
    with raises(SettingError, path) as error:
        read_scale(str(path))
    assert_mentions(str(error.value).replace(str(path), ""), *facts)


def test_a_scale_of_ones_own_has_a_name_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "demo.toml"
    path.write_text('base = "demo"')
    with raises(SettingError, path, "scale"):
        read_scale(str(path))
