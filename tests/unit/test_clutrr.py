"""Kinship questions as tensors, what can be known of them, and the figures of a report."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from messages import assert_mentions, raises
from pydantic import ValidationError

from edgewise.errors import DataError
from edgewise.reproduction.clutrr.cells import Answers, GraphCell, GraphResult
from edgewise.reproduction.clutrr.model import GraphTransformer
from edgewise.reproduction.clutrr.plot import plot
from edgewise.reproduction.clutrr.questions import Encoder, Question, QuestionSet
from edgewise.reproduction.clutrr.report import (
    Accuracy,
    GraphReport,
    difference,
    report_set,
    resampled,
)
from edgewise.reproduction.clutrr.settings import (
    GraphExperiment,
    GraphRow,
    read_graph_experiment,
)
from edgewise.reproduction.clutrr.worker import ask, run_cell

EXPERIMENT = read_graph_experiment()
# 2 is the brother of 1, who is the daughter of 0.
FAMILY = Question(((0, 1, "daughter"), (1, 2, "brother")), of=0, to=2, answer="son")
PAIR = Question(((1, 0, "brother"),), of=1, to=0, answer="brother")
TURNED = PAIR._replace(edges=((1, 0, "daughter"),), answer="son")
SET = QuestionSet([FAMILY, PAIR, TURNED] * 60, {1: [PAIR, TURNED], 2: [FAMILY]}, {})
ENCODER = Encoder(SET)


def model(row: str = "both") -> GraphTransformer:
    torch.manual_seed(0)
    settings = EXPERIMENT.model_of(EXPERIMENT.row(row))
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
    assert not ask(model(), ENCODER, [FAMILY._replace(answer="stranger")]).correct.any()


@pytest.mark.parametrize("row", EXPERIMENT.row_names)
def test_other_questions_and_the_numbering_of_nodes_change_no_answer(row: str) -> None:
    alone = model(row)(ENCODER.encode([PAIR]))
    beside = model(row)(ENCODER.encode([FAMILY, PAIR]))
    torch.testing.assert_close(beside[1:], alone)
    turned = Question(((2, 0, "daughter"), (0, 1, "brother")), of=2, to=1, answer="son")
    torch.testing.assert_close(model(row)(ENCODER.encode([turned])), beside[:1])


@pytest.mark.parametrize("row", EXPERIMENT.row_names)
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
    table = EXPERIMENT.model.layers * ENCODER.n_labels * EXPERIMENT.model.d_model // 4
    assert counts["both"] - counts["keys"] == counts["both"] - counts["values"] == table
    assert counts["both"] - counts["neither"] == 2 * table


def test_a_small_set_is_learnt_by_heart_and_comes_out_the_same_again() -> None:
    cell = GraphCell.of(EXPERIMENT, EXPERIMENT.sets[0], EXPERIMENT.row("both"), seed=1)
    first, second = run_cell(cell, SET), run_cell(cell, SET)
    assert [test.accuracy for test in first.tests.values()] == [1.0, 1.0]
    assert first.trained_hops == [1, 2]
    assert first.tests[1].content() == second.tests[1].content()


def test_graphs_with_two_answers_bound_what_is_possible() -> None:
    questions = [FAMILY, FAMILY, FAMILY._replace(answer="brother"), PAIR]
    found = ask(model(), ENCODER, questions)
    assert found.graphs.tolist() == [0, 0, 0, 1]
    assert found.distances.tolist() == [2, 2, 2, 1]
    assert found.best_possible == 0.75


def answers(correct: list[int], graphs: list[int], hops: int = 5) -> Answers:
    distances = np.full(len(graphs), hops)
    return Answers(np.array(graphs), distances, np.array(correct, dtype=bool), 1.0)


def result(tests: dict[int, Answers], seed: int = 1, row: str = "both") -> GraphResult:
    cell = GraphCell.of(EXPERIMENT, EXPERIMENT.sets[0], EXPERIMENT.row(row), seed)
    return GraphResult(cell.asked(), {"file": "hash"}, [2, 3, 4], 7, tests, "here", {})


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "seed1.json"
    result({5: answers([1, 0, 1], [0, 1, 1])}).write(path)
    again = GraphResult.read(path)
    assert again.tests[5].content() == answers([1, 0, 1], [0, 1, 1]).content()
    assert again.asked == result({}).asked


DAMAGES = {
    "no tests": {"tests": {}},
    "a test without questions": {"graph": "", "correct": "", "distance": ""},
    "a graph that is missing": {"graph": "0 2 2"},
    "a negative graph": {"graph": "0 -1 1"},
    "an answer too many": {"correct": "1 0 1 1"},
    "an answer that is neither": {"correct": "1 0 7"},
    "another accuracy": {"accuracy": 0.1},
    "no distances": {"distance": None},
    "no number": {"graph": "0 x 1"},
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_result_is_refused(damage: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "seed1.json"
    result({5: answers([1, 0, 1], [0, 1, 1])}).write(path)
    content = json.loads(path.read_text())
    if "tests" in damage:
        content |= damage
    else:
        content["tests"]["5"] |= damage
    path.write_text(json.dumps(content))
    with raises(DataError, path, "damaged"):
        GraphResult.read(path)


def test_a_result_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "seed1.json"
    path.write_text(json.dumps({"version": 9}))
    with raises(DataError, path, "version", 9):
        GraphResult.read(path)


def test_intervals_are_of_graphs_not_of_questions() -> None:
    right = np.random.default_rng(1).integers(2, size=40)
    alone = answers(right.tolist(), list(range(40)))
    tenfold = answers(np.repeat(right, 10).tolist(), np.repeat(np.arange(40), 10).tolist())
    widths = [np.ptp(np.percentile(resampled([x], 0), [2.5, 97.5])) for x in (alone, tenfold)]
    assert widths[0] == pytest.approx(widths[1])
    # Of a share p in n draws: 2 * 1.96 * sqrt(p (1 - p) / n)
    p = right.mean()
    assert widths[0] == pytest.approx(2 * 1.96 * np.sqrt(p * (1 - p) / 40), rel=0.1)


def test_seeds_that_differ_widen_the_interval_and_equal_rows_do_not_differ() -> None:
    graphs = list(range(50))
    good, bad = answers([1] * 45 + [0] * 5, graphs), answers([1] * 25 + [0] * 25, graphs)
    mixed, same = Accuracy.of([good, bad, good]), Accuracy.of([good, good, good])
    assert mixed.mean == pytest.approx((0.9 + 0.5 + 0.9) / 3)
    assert mixed.interval is not None and same.interval is not None
    assert np.ptp(mixed.interval) > 1.5 * np.ptp(same.interval)
    assert 0 <= mixed.interval[0] <= mixed.interval[1] <= 1
    equal = difference([good, good], [good, good])
    assert equal is not None and equal.value == 0 and equal.p_value == 1
    apart = difference([good, good], [bad, bad])
    assert apart is not None and apart.value == pytest.approx(0.4) and apart.p_value < 0.01


def test_few_graphs_have_no_interval() -> None:
    few = answers([1, 0] * 9, list(range(18)))
    assert Accuracy.of([few]).interval is None
    assert difference([few], [few]) is None


def small_report() -> GraphReport:
    graphs = list(range(30))
    tests = {hops: answers([1] * 20 + [0] * 10, graphs, hops) for hops in (2, 6)}
    tests[6].distances[:12] = 3
    rows = {name: [result(tests, seed, name) for seed in (1, 2)] for name in EXPERIMENT.row_names}
    return GraphReport(EXPERIMENT, "", (report_set(EXPERIMENT, EXPERIMENT.sets[0], rows),))


def test_questions_with_a_short_cut_are_left_out_of_the_second_table() -> None:
    whole, shortened = (
        small_report().sets[0].part(without_short_cuts=each) for each in (False, True)
    )
    assert [test.hops for test in whole] == [2, 6]
    (test,) = shortened
    assert (test.hops, test.questions, test.graphs) == (6, 18, 18)
    assert test.rows["both"].mean == pytest.approx(8 / 18)
    assert [each.is_trained for each in whole] == [True, False]


def test_every_row_has_a_line_in_the_picture(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    before = Figure.savefig
    Figure.savefig = lambda self, *rest, **options: (
        drawn.append(self) or before(self, *rest, **options)
    )
    try:
        plot(small_report(), tmp_path / "plot.png")
    finally:
        Figure.savefig = before
    titles = [line.get_label() for line in drawn[0].axes[0].lines]
    assert {row.title for row in EXPERIMENT.rows} <= set(titles)
    styles = {(line.get_color(), line.get_linestyle()) for line in drawn[0].axes[0].lines}
    assert len(styles) >= len(EXPERIMENT.rows)


def test_a_comparison_of_a_row_that_is_not_there_is_refused() -> None:
    content = EXPERIMENT.model_dump() | {"compare": [{"row": "boht", "against": "both"}]}
    with pytest.raises(ValidationError) as caught:
        GraphExperiment(**content)
    (error,) = caught.value.errors()
    assert_mentions(error["msg"], "compare", "boht")
    wrong = GraphRow(name="x", title="x", model={"layers": 0})
    with pytest.raises(ValueError, match="layers"):
        GraphExperiment(**EXPERIMENT.model_dump() | {"rows": [wrong], "compare": []})
