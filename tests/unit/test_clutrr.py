"""Kinship questions as tensors, what can be known of them, and the tables of their report."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from messages import assert_mentions, raises
from pydantic import ValidationError

from edgewise.errors import DataError, SettingError
from edgewise.reproduction.cells import Cell, Changes, cell_for
from edgewise.reproduction.clutrr.model import GraphTransformer
from edgewise.reproduction.clutrr.questions import Encoder, Question, QuestionSet, read_set
from edgewise.reproduction.clutrr.settings import GraphModelSettings, GraphScale
from edgewise.reproduction.clutrr.task import Graphs, answer, measurements, train_and_answer
from edgewise.reproduction.experiments import Experiment, Row, read_experiment
from edgewise.reproduction.measurements import CEILING, CLUSTER, Measurements
from edgewise.reproduction.plot import plot
from edgewise.reproduction.report import Report, report_pair
from edgewise.reproduction.results import Result
from edgewise.reproduction.scales import read_scale

EXPERIMENT = read_experiment("clutrr")
ROWS = {row.name: row for row in EXPERIMENT.rows}
SCALE = read_scale("clutrr")
assert isinstance(SCALE, GraphScale)
# 2 is the brother of 1, who is the daughter of 0.
FAMILY = Question(((0, 1, "daughter"), (1, 2, "brother")), of=0, to=2, answer="son")
PAIR = Question(((1, 0, "brother"),), of=1, to=0, answer="brother")
TURNED = PAIR._replace(edges=((1, 0, "daughter"),), answer="son")
SET = QuestionSet([FAMILY, PAIR, TURNED] * 60, {1: [PAIR, TURNED], 2: [FAMILY]}, {})
ENCODER = Encoder(SET)


def cell(row: str = "both", seed: int = 1, **changes: int) -> Cell:
    return cell_for(ROWS[row], SCALE, "2-4", seed, Changes(**changes))


def model(row: str = "both") -> GraphTransformer:
    torch.manual_seed(0)
    settings = cell(row).model
    assert isinstance(settings, GraphModelSettings)
    return GraphTransformer(settings, ENCODER.n_labels, ENCODER.n_answers).double().eval()


def test_labels_are_of_what_a_node_sees() -> None:
    # Forward 0 and 1 (brother, daughter), backward 2 and 3, oneself 4.
    encoded = ENCODER.encode([PAIR, FAMILY])
    graph = encoded.graph
    seen = zip(
        graph.query_index.tolist(), graph.key_index.tolist(), graph.labels.tolist(), strict=True
    )
    assert sorted(seen) == [
        *((0, 0, 4), (0, 1, 0), (1, 0, 2), (1, 1, 4)),
        *((2, 2, 4), (2, 3, 3), (3, 2, 1), (3, 3, 4), (3, 4, 2), (4, 3, 0), (4, 4, 4)),
    ]
    assert encoded.of.tolist() == [1, 2] and encoded.to.tolist() == [0, 4]
    assert encoded.answers.tolist() == [0, 1]


def test_two_edges_between_two_people_are_both_seen() -> None:
    both_ways = FAMILY._replace(edges=((0, 1, "daughter"), (1, 0, "brother"), (1, 2, "brother")))
    other = both_ways._replace(edges=((0, 1, "brother"), (1, 0, "brother"), (1, 2, "brother")))
    logits = [model()(ENCODER.encode([each])) for each in (both_ways, other)]
    assert not torch.allclose(*logits)
    swapped = both_ways._replace(edges=tuple(reversed(both_ways.edges)))
    torch.testing.assert_close(model()(ENCODER.encode([swapped])), logits[0])


def test_a_short_cut_is_a_path_shorter_than_the_edges() -> None:
    assert FAMILY.distance == 2
    around = FAMILY._replace(edges=((1, 0, "a"), (2, 1, "b"), (2, 3, "c"), (3, 0, "d")))
    assert around.distance == 2
    assert around._replace(to=3).distance == 1
    assert FAMILY._replace(to=7).distance == 0


def test_an_answer_that_was_not_trained_is_wrong_and_not_an_error() -> None:
    found = answer(model(), ENCODER, [FAMILY._replace(answer="stranger")])
    assert found["test"].columns["correct"].tolist() == [0]


@pytest.mark.parametrize("row", ROWS)
def test_other_questions_and_the_numbering_of_nodes_change_no_answer(row: str) -> None:
    alone = model(row)(ENCODER.encode([PAIR]))
    beside = model(row)(ENCODER.encode([FAMILY, PAIR]))
    torch.testing.assert_close(beside[1:], alone)
    turned = Question(((2, 0, "daughter"), (0, 1, "brother")), of=2, to=1, answer="son")
    torch.testing.assert_close(model(row)(ENCODER.encode([turned])), beside[:1])


@pytest.mark.parametrize("row", ROWS)
def test_only_rows_with_tables_or_content_can_tell_relations_apart(row: str) -> None:
    other = FAMILY._replace(edges=((0, 1, "brother"), (1, 2, "daughter")))
    logits = model(row)(ENCODER.encode([FAMILY, other]))
    is_blind = row.endswith("neither") and not row.startswith("content")
    assert torch.allclose(logits[0], logits[1]) == is_blind


def test_rows_differ_in_their_tables_alone() -> None:
    counts = {
        row: sum(parameter.numel() for parameter in model(row).parameters())
        for row in ("both", "keys", "values", "neither")
    }
    sizes = SCALE.model
    table = sizes.layers * ENCODER.n_labels * sizes.d_model // sizes.heads
    assert counts["both"] - counts["keys"] == counts["both"] - counts["values"] == table
    assert counts["both"] - counts["neither"] == 2 * table


def test_a_small_set_is_learnt_by_heart_and_comes_out_the_same_again() -> None:
    epochs: list[int] = []
    first, second = train_and_answer(cell(), SET, epochs.append), train_and_answer(cell(), SET)
    found = first.tests["test"]
    assert found.sample("accuracy").value == 1.0
    assert found.columns["hops"].tolist() == [1, 1, 2]
    for name, values in found.columns.items():
        np.testing.assert_array_equal(values, second.tests["test"].columns[name])
    assert epochs == list(range(1, 11))
    assert (first.updates, first.losses) == (10 * 2, [])  # 180 questions in batches of 128
    expected = sum(parameter.numel() for parameter in model().parameters())
    assert first.parameters == expected


def test_the_budget_is_a_number_of_epochs() -> None:
    assert train_and_answer(cell(budget=3), SET).updates == 3 * 2


def test_graphs_with_two_answers_bound_what_is_possible() -> None:
    questions = [FAMILY, FAMILY, FAMILY._replace(answer="brother"), PAIR]
    found = measurements(questions, [True, True, False, False])["test"]
    assert found.columns[CLUSTER].tolist() == [0, 0, 0, 1]
    assert found.columns["hops"].tolist() == [2, 2, 2, 1]
    assert found.columns[CEILING].tolist() == [1, 1, 0, 1]
    assert found.sample("accuracy").value == 0.5
    assert (len(found), found.clusters) == (4, 2)


def test_questions_with_a_short_cut_are_left_out_of_the_second_part() -> None:
    ring = FAMILY._replace(edges=((1, 0, "a"), (2, 1, "b"), (2, 3, "c"), (3, 0, "d")))
    found = measurements([FAMILY, ring, PAIR], [True, False, True])
    assert found["test"].columns["hops"].tolist() == [2, 4, 1]
    assert found["direct"].columns["hops"].tolist() == [2, 1]
    assert found["direct"].columns["correct"].tolist() == [1, 1]


# Files.


def write_set(folder: Path, tests: dict[int, list[Question]]) -> Path:
    folder.mkdir(parents=True)
    for name, questions in {
        "1.2,1.3_train": SET.train,
        **{f"1.{hops}_test": test for hops, test in tests.items()},
    }.items():
        lines = [
            json.dumps(
                {
                    "edges": [[i, j] for i, j, _ in each.edges],
                    "types": [relation for *_, relation in each.edges],
                    "query": [each.of, each.to],
                    "target": each.answer,
                }
            )
            for each in questions
        ]
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


def test_a_set_is_prepared_with_the_hashes_of_its_files(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "data_db9b8f04", SET.tests)
    data = Graphs().prepare(SCALE, "2-4", tmp_path, tmp_path / "out", print)
    assert data.folder == folder
    tests = ["1.1_test.jsonl.gz", "1.2_test.jsonl.gz"]
    assert list(data.files) == ["1.2,1.3_train.jsonl.gz", *tests]
    read = read_set(folder)
    assert (read.train, read.tests) == (SET.train, SET.tests)
    with raises(SettingError, "clutrr", "--data", "data_089907f8"):
        Graphs().prepare(SCALE, "2-3", None, tmp_path / "out", print)


def test_a_set_whose_tests_all_have_short_cuts_is_refused(tmp_path: Path) -> None:
    ring = FAMILY._replace(edges=((0, 1, "daughter"), (1, 2, "brother"), (0, 2, "daughter")))
    folder = write_set(tmp_path / "data_db9b8f04", {3: [ring]})
    with raises(DataError, folder, "short cut"):
        Graphs().prepare(SCALE, "2-4", tmp_path, tmp_path / "out", print)


def test_a_run_reports_its_epochs_and_begins_again(tmp_path: Path) -> None:
    write_set(tmp_path / "data_db9b8f04", SET.tests)
    data = Graphs().prepare(SCALE, "2-4", tmp_path, tmp_path / "out", print)
    for _ in range(2):
        outcome = Graphs().run(cell(budget=2), data, tmp_path, None)
        lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert outcome.tests.keys() == set(SCALE.tests)


# Reports.


def answers(clusters: int, hops: int) -> Measurements:
    """Return one question about each graph, a third of them right."""
    graphs = np.arange(clusters)
    columns = {CLUSTER: graphs, "hops": np.full(clusters, hops)}
    return Measurements(columns | {"correct": graphs % 3 % 2, CEILING: np.ones_like(graphs)})


def joined(*parts: Measurements) -> Measurements:
    """Return several tests with different graphs as one."""
    columns = {name: np.concatenate([p.columns[name] for p in parts]) for name in parts[0].columns}
    columns[CLUSTER] = np.arange(len(columns[CLUSTER]))
    return Measurements(columns)


def small_report() -> Report:
    tests = {
        "test": joined(answers(30, 2), answers(30, 6)),
        "direct": joined(answers(30, 2), answers(18, 6)),
    }
    rows = {
        name: [
            Result(7, 20, [], tests, {}, cell(name, seed).asked(), {}, "here") for seed in (1, 2)
        ]
        for name in ROWS
    }
    return Report(EXPERIMENT, SCALE, "", (), (report_pair(EXPERIMENT, SCALE, "2-4", rows),))


def test_the_report_has_a_table_by_hops_of_all_questions_and_of_those_without_short_cuts() -> None:
    (pair,) = small_report().pairs
    scores, whole, direct = pair.tables
    parts = [(column.part, column.metric, column.sentences) for column in scores.columns]
    assert parts == [("test", "accuracy", 60), ("direct", "accuracy", 48)]
    assert_mentions(whole.title, "test", "hops")
    assert_mentions(direct.title, "without short cuts", "hops")
    for table, sizes in ((whole, [30, 30]), (direct, [30, 18])):
        assert [column.heading for column in table.columns] == ["2", "6"]
        assert [column.is_trained for column in table.columns] == [True, False]
        assert [column.clusters for column in table.columns] == sizes
        assert table.scores["both"][1].mean == pytest.approx(1 / 3)
    # 18 graphs are too few for an interval or a test.
    assert direct.scores["both"][0].interval is not None
    assert direct.scores["both"][1].interval is None
    assert {row[1] for row in direct.differences} == {None}
    assert all(row[0] is not None for row in direct.differences)


def test_graphs_with_several_questions_have_a_best_possible_accuracy() -> None:
    questions = [FAMILY, FAMILY, FAMILY._replace(answer="brother"), PAIR]
    tests = measurements(questions, [True, True, False, False])
    result = Result(7, 20, [], tests, {}, cell().asked(), {}, "here")
    scores, *_ = report_pair(EXPERIMENT, SCALE, "2-4", {"both": [result]}).tables
    column = scores.columns[0]
    assert (column.sentences, column.clusters, column.ceiling) == (4, 2, 0.75)


def test_every_row_has_a_line_in_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *rest, **options: drawn.append(self))
    plot(small_report(), tmp_path / "plot.png")
    panels = drawn[0].axes
    assert len(panels) == 2
    titles = [line.get_label() for line in panels[0].lines]
    assert {row.heading for row in EXPERIMENT.rows} <= set(titles)
    styles = {(line.get_color(), line.get_linestyle()) for line in panels[0].lines}
    assert len(styles) >= len(EXPERIMENT.rows)


def test_a_comparison_of_a_row_that_is_not_there_is_refused() -> None:
    content = EXPERIMENT.model_dump() | {"compare": [{"row": "boht", "against": "both"}]}
    with pytest.raises(ValidationError) as caught:
        Experiment(**content)
    (error,) = caught.value.errors()
    assert_mentions(error["msg"], "compare", "boht")


def test_a_row_with_settings_that_no_graph_model_has_is_refused() -> None:
    with raises(SettingError, "row x", "layers", 1, 0):
        cell_for(Row(name="x", model={"layers": 0}), SCALE, "2-4", 1, Changes())
