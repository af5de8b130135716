"""Metrics from numbers of each sentence: on tests, subsets, several tests and resamples."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU

from edgewise.evaluation import SentenceStatistics
from edgewise.reproduction.measurements import (
    BLEU_COLUMNS,
    CLUSTER,
    LOG_PROBABILITY,
    METRICS,
    Measurements,
    pooled,
)

SENTENCE = st.lists(st.sampled_from(["a", "b", "c.", "D", "e-f", "7"]), max_size=6).map(" ".join)
CORPUS = st.lists(st.tuples(SENTENCE, SENTENCE), min_size=1, max_size=6)
Pairs = Sequence[tuple[str, str]]


def translated(corpus: Pairs) -> Measurements:
    """Measure pairs of translation and reference."""
    translations, references = zip(*corpus, strict=True)
    counts = SentenceStatistics.of(translations, references).counts[:, : len(BLEU_COLUMNS)].T
    words = np.array([len(line.split()) for line in references])
    return Measurements({"source_words": words, **dict(zip(BLEU_COLUMNS, counts, strict=True))})


def sacrebleu(corpus: Pairs) -> float:
    translations, references = zip(*corpus, strict=True)
    return float(BLEU().corpus_score(translations, [references]).score)


def value(of: Measurements, metric: str = "BLEU") -> float:
    return of.sample(metric).value


@given(corpora=st.lists(CORPUS, min_size=1, max_size=3), last=st.integers(0, 6))
def test_bleu_is_sacrebleus_on_a_test_a_subset_and_several_tests(
    corpora: list[list[tuple[str, str]]], last: int
) -> None:
    tests = [translated(corpus) for corpus in corpora]
    for corpus, test in zip(corpora, tests, strict=True):
        assert value(test) == pytest.approx(sacrebleu(corpus), rel=1e-12)
    together = [pair for corpus in corpora for pair in corpus]
    assert len(pooled(tests)) == len(together)
    assert value(pooled(tests)) == pytest.approx(sacrebleu(together), rel=1e-12)
    if short := [pair for pair in together if 1 <= len(pair[1].split()) <= last]:
        subset = pooled(tests).subset("source_words", 1, last)
        assert len(subset) == len(short)
        assert value(subset) == pytest.approx(sacrebleu(short), rel=1e-12)


def test_resamples_of_bleu_are_those_of_the_paired_bootstrap() -> None:
    corpus = [("a b c d e", "a b c d f"), ("a b c d", "a b c d"), ("x y", "a b c x"), ("7", "7")]
    expected = SentenceStatistics.of(*zip(*corpus, strict=True)).resampled()
    np.testing.assert_array_equal(translated(corpus).sample("BLEU").resampled(), expected)


def test_log_probability_is_of_a_piece_not_of_a_sentence() -> None:
    columns = {LOG_PROBABILITY: np.array([-3.0, -1.5]), "reference_pieces": np.array([9, 1])}
    assert value(Measurements(columns), "log-probability") == pytest.approx(-0.45)


@pytest.mark.parametrize(
    ("metric", "column"),
    [
        ("exact match", "exact"),
        ("exact match, length given", "exact_with_length"),
        ("accuracy", "correct"),
    ],
)
def test_exact_match_and_accuracy_are_shares_of_sentences(metric: str, column: str) -> None:
    columns = {column: np.array([1, 0, 0, 1, 1]), "target_words": np.array([2, 3, 4, 5, 6])}
    found = Measurements(columns)
    assert value(found, metric) == pytest.approx(3 / 5)
    assert value(found.subset("target_words", 3, 5), metric) == pytest.approx(1 / 3)
    assert value(pooled([found, found.subset("target_words", 3, 4)]), metric) == pytest.approx(
        3 / 7
    )


def graphs(correct: Sequence[int], clusters: Sequence[int]) -> Measurements:
    return Measurements({"correct": np.array(correct), CLUSTER: np.array(clusters)})


def test_sentences_of_a_cluster_are_resampled_together() -> None:
    right = np.random.default_rng(1).integers(2, size=40)
    alone = graphs(right.tolist(), range(40))
    tenfold = graphs(np.repeat(right, 10).tolist(), np.repeat(np.arange(40), 10).tolist())
    assert (alone.clusters, len(alone)) == (40, 40)
    assert (tenfold.clusters, len(tenfold)) == (40, 400)
    one, other = (each.sample("accuracy").resampled() for each in (alone, tenfold))
    np.testing.assert_allclose(one, other, rtol=1e-12)
    independent = Measurements({"correct": tenfold.columns["correct"]})
    assert independent.clusters == 400
    assert independent.sample("accuracy").resampled().std() < 0.5 * one.std()


def test_clusters_of_different_sizes_by_hand() -> None:
    # Graph 7 has three questions, two of them right; graph 2 has one, which is wrong.
    found = graphs([1, 0, 1, 0], [7, 2, 7, 7])
    assert value(found, "accuracy") == 0.5
    shares = set(found.sample("accuracy").resampled().round(9).tolist())
    assert shares == {round(2 / 3, 9), 0.5, 0.0}


def test_the_draws_are_the_same_for_all_models() -> None:
    right = np.arange(30) % 2
    models = [graphs(each.tolist(), range(30)) for each in (right, 1 - right)]
    one, other = (model.sample("accuracy").resampled() for model in models)
    np.testing.assert_allclose(one + other, 1.0)


def example() -> Measurements:
    corpus = [("a b c d e", "a b c d f"), ("a b c d", "a b c d"), ("x y", "a b c x")]
    columns = {
        LOG_PROBABILITY: np.array([-123.4567, -0.0001, -98765.4321]),
        "reference_pieces": np.array([7, 5, 1_234_567]),
        "exact": np.array([0, 1, 0]),
    }
    found = translated(corpus)
    return Measurements({**found.columns, **columns}, {"chrf": 40.25, "signature": "tok:13a"})


# Errors that `Result.read` reports as a damaged file.
REFUSED = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
STORED_METRICS = ("BLEU", "log-probability", "exact match")


def stored() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(example().as_json(STORED_METRICS)))
    return content


def test_measurements_are_read_as_they_were_written() -> None:
    before, after = example(), Measurements.from_json(stored())
    assert list(after.columns) == list(before.columns)
    for name, values in before.columns.items():
        np.testing.assert_array_equal(after.columns[name], values)
        assert after.columns[name].dtype == values.dtype
    assert after.summary == before.summary
    assert {name: value(after, name) for name in STORED_METRICS} == stored()["metrics"]
    assert after.as_json(STORED_METRICS) == stored()


DAMAGES: dict[str, dict[str, Any]] = {
    "a column too short": {"by_sentence": {"tokens": "5 4"}},
    "another number of sentences": {"sentences": 4},
    "sentences that are not a number": {"sentences": "3"},
    "no columns": {"by_sentence": None},
    "no sentences": {"sentences": 0, "by_sentence": dict.fromkeys(example().columns, "")},
    "a negative count": {"by_sentence": {"source_words": "5 -4 4"}},
    "a probability above 1": {"by_sentence": {LOG_PROBABILITY: "-1 0.5 -2"}},
    "a flag of 2": {"by_sentence": {"exact": "0 2 0"}},
    "a metric that differs": {"metrics": {"exact match": 0.5}},
    "a count that differs": {"by_sentence": {"matching_1_grams": "4 3 1"}, "metrics": {}},
    "an unknown metric": {"metrics": {"exact mach": 0.5}},
    "a metric that is not a number": {"metrics": {"exact match": float("nan")}},
    "a metric that is text": {"metrics": {"exact match": "1/3"}},
    "a word": {"by_sentence": {"source_words": "5 four 4"}},
    "a fraction": {"by_sentence": {"source_words": "5 4.5 4"}},
    "a count of 20 digits": {"by_sentence": {"source_words": f"5 {'9' * 20} 4"}},
    "a log-probability that is not a number": {"by_sentence": {LOG_PROBABILITY: "-1 nan -2"}},
    "a log-probability that is infinite": {"by_sentence": {LOG_PROBABILITY: "-1 -inf -2"}},
    "a column that is a list": {"by_sentence": {"source_words": [5, 4, 4]}},
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_measurements_are_refused(damage: dict[str, Any]) -> None:
    content = stored()
    for name, changed in damage.items():
        merges = isinstance(changed, dict)
        content[name] = content[name] | changed if merges else changed
    if "metrics" not in damage:
        content["metrics"] = {}  # it is refused without a metric that differs
    with pytest.raises(REFUSED):
        Measurements.from_json(content)


def test_measurements_without_columns_are_refused() -> None:
    with pytest.raises(REFUSED):
        Measurements.from_json(stored() | {"by_sentence": {}, "metrics": {}})


@pytest.mark.parametrize("metric", METRICS)
def test_measurements_without_the_columns_of_a_metric_are_refused(metric: str) -> None:
    content = stored()
    content["metrics"] = {metric: 0.0}
    for name in METRICS[metric].columns:
        content["by_sentence"].pop(name, None)
    with pytest.raises(REFUSED):
        Measurements.from_json(content)
