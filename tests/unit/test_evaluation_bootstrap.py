"""Resamples, intervals and p-values: by hand where that is possible, and as sacreBLEU's."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from messages import raises
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest, Result

from edgewise.data.grammar import pairs
from edgewise.errors import ArgumentError
from edgewise.evaluation import SentenceStatistics, bleu, bleu_by_length, bootstrap, compare
from edgewise.evaluation.bootstrap import RESAMPLES, bleu_of, interval, resampled_sums

REFERENCES = [german for _, german in pairs(150, seed=5)]
SENTENCE = st.lists(st.sampled_from(["a", "b", "c.", "D", "e-f", "7"]), max_size=6).map(" ".join)
CORPUS = st.lists(st.tuples(SENTENCE, SENTENCE), min_size=1, max_size=5)


def worse(lines: Sequence[str], share: float, seed: int) -> list[str]:
    """Without some of the words."""
    chance = random.Random(seed)
    return [" ".join(w for w in line.split() if chance.random() >= share) for line in lines]


def paired(first: Sequence[str], second: Sequence[str]) -> list[Result]:
    """Of both systems, by sacreBLEU's own test."""
    test = PairedTest(
        [("second", second), ("first", first)], {"BLEU": BLEU()}, [REFERENCES], test_type="bs"
    )
    against, system = test()[1]["BLEU"]
    assert isinstance(system, Result)
    assert isinstance(against, Result)
    return [system, against]


def test_the_counts_of_a_sentence_by_hand() -> None:
    statistics = SentenceStatistics.of(["the cat, the mat", "", "x"], ["The cat, a mat", "y", ""])
    assert statistics.counts.tolist() == [
        # cat , mat; "cat ,"; no triple: of 5, 4, 3 and 2
        [5, 5, 3, 1, 0, 0, 5, 4, 3, 2],
        [0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0, 1, 0, 0, 0],
    ]


@given(corpus=CORPUS)
@example(corpus=[("", "")])
@example(corpus=[("a", "a")])
@example(corpus=[("a b a b a b", "a a a a a a")])  # all but single words is smoothed
@example(corpus=[("a b", "a b"), ("a", "b b b a")])
def test_any_corpus_has_sacrebleus_score(corpus: list[tuple[str, str]]) -> None:
    translations, references = (list(side) for side in zip(*corpus, strict=True))
    statistics = SentenceStatistics.of(translations, references)
    expected = BLEU().corpus_score(translations, [references]).score
    assert statistics.bleu().value == expected
    (score,) = bleu_of(statistics.counts.sum(axis=0, keepdims=True))
    assert score == pytest.approx(expected, rel=1e-12)


def test_the_score_of_a_part_is_that_of_its_sentences() -> None:
    translations = worse(REFERENCES, 0.2, seed=1)
    chosen = np.arange(len(REFERENCES)) % 3 == 0
    part = SentenceStatistics.of(translations, REFERENCES).part(chosen)
    assert part.bleu().value == bleu(translations[::3], REFERENCES[::3]).value


def test_many_sentences_are_drawn_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = np.arange(60).reshape(20, 3)
    kept = resampled_sums(statistics)
    monkeypatch.setattr(bootstrap, "CACHED_SENTENCES", 19)
    np.testing.assert_array_equal(resampled_sums(statistics), kept)
    assert kept.shape == (RESAMPLES, 3)


def test_resamples_of_two_sentences_by_hand() -> None:
    # Both sentences, or one of them twice: three scores, the middle one half of the time.
    translations, references = ["a b c d e", "a b x d e"], ["a b c d e"] * 2
    scores = SentenceStatistics.of(translations, references).resampled()
    # Twice the second one: 8 of 10, 4 of 8, none of 6 and none of 4, which count 1/2 and 1/4.
    low = 100 * (8 / 10 * 4 / 8 * (1 / 2) / 6 * (1 / 4) / 4) ** 0.25
    middle = 100 * (9 / 10 * 6 / 8 * 3 / 6 * 2 / 4) ** 0.25
    values, counts = np.unique(scores.round(9), return_counts=True)
    assert values == pytest.approx([low, middle, 100])
    assert counts.sum() == RESAMPLES
    assert counts / RESAMPLES == pytest.approx([1 / 4, 1 / 2, 1 / 4], abs=0.05)


def test_an_interval_leaves_a_fortieth_out_at_each_end() -> None:
    values = np.random.default_rng(1).permutation(80).astype(float)
    assert interval(values) == (2.0, 77.0)


def test_one_sentence_has_no_interval() -> None:
    assert SentenceStatistics.of(["a b c d"], ["a b c d"]).interval() is None
    assert SentenceStatistics.of(["a b c d"] * 2, ["a b c d"] * 2).interval() == (100, 100)


@pytest.mark.parametrize("share", [0.19, 0.21, 0.3])
def test_intervals_and_p_value_are_sacrebleus(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    translations = [worse(REFERENCES, 0.2, seed=1), worse(REFERENCES, share, seed=2)]
    results = paired(*translations)
    systems = [SentenceStatistics.of(each, REFERENCES) for each in translations]
    comparison = compare(*systems)
    assert comparison.p_value == results[0].p_value
    assert (comparison.bleu.value, comparison.against.value) == (results[0].score, results[1].score)
    assert comparison.difference == comparison.bleu.value - comparison.against.value
    for system, result in zip(systems, results, strict=True):
        middle = system.interval()
        assert middle is not None
        # sacreBLEU's resamples are in float32.
        assert (middle[1] - middle[0]) / 2 == pytest.approx(result.ci, abs=1e-4)
        assert system.resampled().mean() == pytest.approx(result.mean, abs=1e-4)


def test_the_signature_is_that_of_sacrebleus_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    metric = BLEU()
    metric.corpus_score(REFERENCES, [REFERENCES], n_bootstrap=RESAMPLES)
    statistics = SentenceStatistics.of(REFERENCES, REFERENCES)
    assert statistics.bleu().signature == str(metric.get_signature())


def test_no_environment_variable_changes_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    systems = [SentenceStatistics.of(worse(REFERENCES, 0.2, seed), REFERENCES) for seed in (1, 2)]
    expected = compare(*systems)
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    np.random.seed(7)
    assert compare(*systems) == expected
    assert "|seed:12345|" in expected.bleu.signature


def test_equal_systems_do_not_differ() -> None:
    system = SentenceStatistics.of(worse(REFERENCES, 0.2, seed=1), REFERENCES)
    comparison = compare(system, system)
    assert (comparison.difference, comparison.interval) == (0, (0, 0))
    assert comparison.p_value == 1


def test_the_order_of_the_systems_changes_signs_alone() -> None:
    first, second = (
        SentenceStatistics.of(worse(REFERENCES, share, seed=3), REFERENCES) for share in (0.1, 0.12)
    )
    one, other = compare(first, second), compare(second, first)
    assert one.difference == -other.difference
    assert one.difference > 0
    assert one.interval == (-other.interval[1], -other.interval[0])
    assert one.p_value == other.p_value


def test_the_interval_of_a_difference_is_that_of_the_same_resamples() -> None:
    # Sentences differ much and the systems little: apart, their intervals would overlap.
    texts = worse(REFERENCES, 0.3, seed=1)
    changed = [text if i % 3 else f"x {text.partition(' ')[2]}" for i, text in enumerate(texts)]
    first, second = (SentenceStatistics.of(each, REFERENCES) for each in (texts, changed))
    comparison = compare(first, second)
    low, high = first.interval() or (0, 0)
    assert comparison.against.value > low
    assert comparison.interval[0] > 0
    assert comparison.interval[1] - comparison.interval[0] < (high - low) / 2


def test_systems_of_other_numbers_of_sentences_cannot_be_compared() -> None:
    two, three = (SentenceStatistics.of(["a"] * n, ["a"] * n) for n in (2, 3))
    with raises(ArgumentError, "against", "system", 2, 3):
        compare(two, three)
    one = SentenceStatistics.of(["a"], ["a"])
    with raises(ArgumentError, "system", 2, 1):
        compare(one, one)


def test_a_bucket_has_the_sentences_of_its_length() -> None:
    lengths = [0, 1, 10, 11, 20, 21, 60, 61, 200, 5, 15]
    sources = [" ".join("w" * length) for length in lengths]
    references = REFERENCES[: len(lengths)]
    translations = worse(references, 0.2, seed=4)
    statistics = SentenceStatistics.of(translations, references)
    buckets = bleu_by_length(sources, statistics)
    expected = {
        "0": [0],
        "1-10": [1, 2, 9],
        "11-20": [3, 4, 10],
        "21-30": [5],
        "51-60": [6],  # and none in 31-40 and 41-50
        "61+": [7, 8],
    }
    assert [bucket.name for bucket in buckets] == list(expected)
    for bucket, chosen in zip(buckets, expected.values(), strict=True):
        texts = [[side[i] for i in chosen] for side in (translations, references)]
        assert bucket.sentences == len(chosen)
        assert bucket.bleu.value == bleu(*texts).value
        assert bucket.interval == SentenceStatistics.of(*texts).interval()


def test_words_are_what_any_white_space_separates() -> None:
    statistics = SentenceStatistics.of(["a"], ["a"])
    ten = "  one\ttwo\u3000three, four - five  6 7 8 9  "
    for source, name in ((ten, "1-10"), (f"{ten}10", "11-20"), (" \t ", "0")):
        (bucket,) = bleu_by_length([source], statistics)
        assert bucket.name == name


def test_lengths_need_a_source_for_each_sentence() -> None:
    with raises(ArgumentError, "statistics", "sources", 2, 3):
        bleu_by_length(["a", "b"], SentenceStatistics.of(["a"] * 3, ["a"] * 3))
