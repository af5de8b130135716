"""The paper's tables as data: its figures, its settings, and which rows are one model."""

import tomllib
from pathlib import Path

import pytest
import torch

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
    ("text", "message"),
    [
        ('title = "x"', "name: Field required (a row has name, title,"),
        ('name = "x"\nmodle = {}', "modle: Extra inputs are not permitted"),
        ('name = "x"\n[training]\nseed = 2', "training.seed is no setting of a row"),
        ("name = ", "is not a TOML file"),
    ],
)
def test_a_row_of_ones_own_that_is_none_is_told_why(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "row.toml"
    path.write_text(text)
    with pytest.raises(SettingError) as error:
        read_row(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model]\nwidth = 3", "row x: width: Extra inputs are not permitted"),
        ("[model]\nheads = 3", "row x: Value error, d_model must be a multiple of heads"),
        ("average = 9", "row x: training.keep must be at least average, 9; it is 5"),
    ],
)
def test_settings_that_no_model_has_are_told_with_the_row(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "row.toml"
    path.write_text(f'name = "x"\n{text}')
    with pytest.raises(SettingError) as error:
        cell_of(read_row(path), read_scale("multi30k"), "en-de", 1, Changes())
    assert message in str(error.value)


def test_names_that_are_none_are_told_with_the_nearest(tmp_path: Path) -> None:
    table = read_experiment("table2")
    for action, message in (
        (lambda: read_experiment("tabel2"), "there is no experiment tabel2; did you mean table2?"),
        (lambda: read_scale("multi"), "there is no scale multi"),
        (lambda: read_scale("no.toml"), "there is no file no.toml"),
        (lambda: table.with_row(table.rows[0]), "table2 has a row k0 already"),
        (lambda: read_row(tmp_path / "no.toml"), "there is no file"),
    ):
        with pytest.raises(SettingError) as error:
            action()
        assert message in str(error.value)


def test_a_scale_that_an_experiment_is_not_made_for_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('base = "multi30k"\nparts = ["test"]\n')
    for experiment, scale, message in (
        ("recipe", "multi30k", "recipe is not made for scale multi30k: it has"),
        ("length", str(own), "length needs a scale with buckets of lengths"),
        ("table3", str(own), "table3 is measured on valid, and scale own on test only"),
    ):
        read = read_experiment(experiment), read_scale(scale)
        with pytest.raises(SettingError) as error:
            Study.of(*read, Changes(), Path("out"))
        assert message in str(error.value)


def test_rows_and_pairs_that_are_nowhere_are_told() -> None:
    demo = [
        Study.of(read_experiment(name), read_scale("demo"), Changes(), Path("out"))
        for name in ("table1", "table2")
    ]
    of = "table1 at scale demo or table2 at scale demo"
    for pairs, rows, message in (
        (["en-fr"], [], f"{of} has no pair en-fr"),
        ([], ["k3"], f"{of} has no row k3: there are absolute, relative, k0, k1"),
        ([], ["big-absolute"], f"{of} has no row big-absolute; did you mean absolute?"),
    ):
        with pytest.raises(SettingError) as error:
            require_known(demo, pairs, rows)
        assert message in str(error.value)
    require_known(demo, ["en-de"], ["k0", "relative"])


def test_a_scale_of_ones_own_may_be_based_on_another(tmp_path: Path) -> None:
    path = tmp_path / "wide.toml"
    path.write_text('base = "multi30k"\n[model]\nd_model = 256\n')
    scale, base = read_scale(str(path)), read_scale("multi30k")
    assert scale.name == "wide"
    assert scale.model == base.model.model_copy(update={"d_model": 256})
    assert scale.training == base.training


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "multi"', "there is no scale multi"),
        ("base = 3", "there is no scale 3"),
        ('base = "multi30k"\naverage = 0', "average: Input should be greater than"),
        ('base = "multi30k"\npairs = ["ende"]', "pairs.0: String should match pattern"),
        ('base = "multi30k"\n[training]\nthreads = 2', "threads is a setting of the scale itself"),
        ('base = "multi30k"\n[grammar]\ntrain = 9\nvalid = 9\ntest = 9', "one of them"),
        (FILES.format("train.{lang}"), "train.{lang} must have no other braces than {language}"),
        (FILES.format("/a"), "/a must be the name of a file below the folder of --data"),
        (FILES.format("../a"), "../a must be the name of a file below the folder of --data"),
        ('base = "multi30k"\n[files]\ntrain = []', "files.train: Tuple should have at least 1"),
    ],
)
def test_a_scale_that_is_none_is_told_why(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wide.toml"
    path.write_text(text)
    with pytest.raises(SettingError) as error:
        read_scale(str(path))
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_a_scale_of_ones_own_has_a_name_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "demo.toml"
    path.write_text('base = "demo"')
    with pytest.raises(SettingError, match="has the name of a scale that is there"):
        read_scale(str(path))
