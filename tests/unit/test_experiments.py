"""The paper's tables as data: its figures, its settings, and which rows are one model."""

import tomllib
from pathlib import Path

import pytest
import torch
from messages import assert_mentions, raises

from edgewise.errors import SettingError
from edgewise.model.transformer import Transformer
from edgewise.reproduction.cells import Cell, Changes, cell_of, different
from edgewise.reproduction.experiments import (
    experiment_names,
    read_experiment,
    read_row,
)
from edgewise.reproduction.scales import read_scale, scale_names
from edgewise.reproduction.study import Study, require_known
from edgewise.training.schedule import learning_rate
from edgewise.training.settings import RunSettings

FILES = 'base = "multi30k"\n[files]\ntrain = ["{}"]\nvalid = ["v"]\ntest = ["t"]'
CONFIGS = Path(__file__).parents[2] / "configs"
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
    },
    "table3": {
        "keys-and-values": {"en-de": 25.8},
        "keys": {"en-de": 25.8},
        "values": {"en-de": 25.3},
        "neither": {"en-de": 12.5},
    },
}


def cells(experiment: str, scale: str, pair: str = "en-de") -> dict[str, Cell]:
    study = Study.of(read_experiment(experiment), read_scale(scale), Changes(), Path("out"))
    return {row.name: study.cell(row, pair, 1) for row in study.rows(pair)}


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
        pairs = Study.of(experiment, scale, Changes(), Path("out")).pairs
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
def test_the_rows_of_table_1_are_the_papers_configurations(
    size: str, pair: str, positions: str
) -> None:
    cell = cells("table1", "wmt14", pair)[size + positions]
    name = f"paper-{size or 'base-'}{pair}-{positions}.toml"
    config = RunSettings(**tomllib.loads((CONFIGS / name).read_text("utf-8")))
    assert cell.model == config.model
    assert cell.training == config.training
    assert cell.average == (20 if size else 1)
    assert cell.ranks == 8
    assert cell.scale.vocab_size == 32_768
    decoding = cell.scale.decoding
    assert (decoding.beam, decoding.length_penalty) == (4, 0.6)


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
    assert len(different(every)) == 14
    assert len(every) == 21


def test_what_a_cell_depends_on_is_in_its_name() -> None:
    scale, row = read_scale("multi30k"), read_experiment("table2").rows[0]
    names = {
        cell_of(row, scale, "en-de", 1, Changes()).name,
        cell_of(row, scale, "en-de", 2, Changes()).name,
        cell_of(row, scale, "en-fr", 1, Changes()).name,
        cell_of(row, scale, "en-de", 1, Changes(budget=10)).name,
        cell_of(row, scale, "en-de", 1, Changes(threads=2)).name,
        cell_of(row, scale, "en-de", 1, Changes(ranks=2)).name,
        cell_of(row, read_scale("demo"), "en-de", 1, Changes()).name,
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
        cell_of(read_row(path), read_scale("multi30k"), "en-de", 1, Changes())


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
        ("length", str(own), ("scale", "buckets")),
        ("table3", str(own), ("valid", "own", "test")),
    ):
        read = read_experiment(experiment), read_scale(scale)
        with raises(SettingError, experiment, *facts):
            Study.of(*read, Changes(), Path("out"))


def test_rows_and_pairs_that_are_nowhere_are_told() -> None:
    demo = [
        Study.of(read_experiment(name), read_scale("demo"), Changes(), Path("out"))
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
