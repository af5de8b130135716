"""Beam search over toy models whose every translation can be listed."""

import itertools
import math

import numpy as np
import pytest
import torch
from messages import raises
from torch import Tensor

from edgewise.decoding import beam
from edgewise.decoding.beam import beam_search
from edgewise.decoding.bounds import Bounds
from edgewise.decoding.candidates import Distribution
from edgewise.decoding.settings import penalty
from edgewise.decoding.step import Step, start
from edgewise.errors import DataError

BEGIN, END = 1, 2
VOCABULARY = 6  # 0 is padding, 3 to 5 are words
WORDS = (3, 4, 5)


class Toy(Step):
    """A model whose log-probabilities depend on the sentence and on all tokens before."""

    def __init__(self, sentences: list[int], slots: int, spread: float = 1.5) -> None:
        self.sentences, self.slots, self.spread = sentences, slots, spread
        self.prefixes = [[()] * slots for _ in sentences]
        self.batches: list[int] = []

    def distribution(self, sentence: int, prefix: tuple[int, ...]) -> Tensor:
        random = np.random.default_rng([sentence, *prefix])
        logits = torch.tensor(random.normal(size=VOCABULARY) * self.spread, dtype=torch.float32)
        return torch.log_softmax(logits, dim=0)

    def __call__(self, tokens: Tensor, parents: Tensor | None) -> Distribution:
        self.batches.append(len(tokens))
        self.prefixes = [
            [
                (*before[slot if parents is None else int(parents[row, slot])], int(token))
                for slot, token in enumerate(tokens[row])
            ]
            for row, before in enumerate(self.prefixes)
        ]
        rows = [
            self.distribution(sentence, prefix)
            for sentence, prefixes in zip(self.sentences, self.prefixes, strict=True)
            for prefix in prefixes
        ]
        return Distribution(torch.stack(rows))

    def keep(self, sentences: Tensor) -> None:
        self.sentences = [self.sentences[row] for row in sentences.tolist()]
        self.prefixes = [self.prefixes[row] for row in sentences.tolist()]

    def log_probability(self, sentence: int, tokens: tuple[int, ...]) -> float:
        whole = (BEGIN, *tokens, END)
        return sum(
            float(self.distribution(sentence, whole[:i])[whole[i]]) for i in range(1, len(whole))
        )


def search(sentences: list[int], size: int, **changes: object):
    toy = Toy(sentences, size)
    options = {"n_best": 1, "length_penalty": 0.6}
    prefixes = changes.pop("prefixes", [[]] * len(sentences))
    bounds = {"limits": [4] * len(sentences), "min_length": 0, "excluded": [0, BEGIN]}
    for name, value in changes.items():
        (options if name in options else bounds)[name] = value
    begun = start(toy, BEGIN, prefixes, lambda sentence: True)
    return toy, beam_search(toy, begun, Bounds(end=END, **bounds), beam=size, **options)


def every_translation(
    sentence: int, limit: int, power: float
) -> list[tuple[float, tuple[int, ...]]]:
    toy = Toy([sentence], 1)
    found = [
        (toy.log_probability(sentence, words) / penalty(len(words) + 1, power), words)
        for length in range(limit + 1)
        for words in itertools.product(WORDS, repeat=length)
    ]
    return sorted(found, reverse=True)


@pytest.mark.parametrize("power", [0.0, 0.6, 1.3])
def test_a_beam_as_wide_as_the_space_finds_what_exhaustive_search_finds(power):
    sentences = list(range(6))
    _, found = search(sentences, 3**4, n_best=5, length_penalty=power)
    for sentence, hypotheses in zip(sentences, found, strict=True):
        best = every_translation(sentence, 4, power)[:5]
        assert [each.tokens for each in hypotheses] == [words for _, words in best]
        assert [each.score for each in hypotheses] == pytest.approx([s for s, _ in best], abs=1e-5)


def test_beam_of_size_one_equals_greedy():
    sentences = list(range(20))
    toy, found = search(sentences, 1, limits=[6] * 20)
    for sentence, (hypothesis,) in zip(sentences, found, strict=True):
        tokens: tuple[int, ...] = ()
        while len(tokens) < 6:
            values = toy.distribution(sentence, (BEGIN, *tokens))
            best = max((*WORDS, END), key=lambda token: float(values[token]))
            if best == END:
                break
            tokens += (best,)
        assert hypothesis.tokens == tokens


def test_a_score_is_the_log_probability_over_the_penalty():
    toy, found = search([0, 1, 2], 4, n_best=4)
    for sentence, hypotheses in enumerate(found):
        for each in hypotheses:
            expected = toy.log_probability(sentence, each.tokens)
            assert each.log_probability == pytest.approx(expected, abs=1e-5)
            assert each.score == pytest.approx(expected / penalty(len(each.tokens) + 1, 0.6))
        scores = [each.score for each in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({each.tokens for each in hypotheses}) == len(hypotheses)


def test_the_bound_ends_the_search_early_and_changes_nothing(monkeypatch):
    limits = [12] * 8
    early_toy, early = search(list(range(8)), 4, limits=limits, n_best=2)
    monkeypatch.setattr(
        beam._Sentence, "is_done", lambda self, value, n_best, power: value == -math.inf
    )
    late_toy, late = search(list(range(8)), 4, limits=limits, n_best=2)
    assert early == late
    assert len(early_toy.batches) < len(late_toy.batches)


def test_finished_sentences_leave_the_batch_and_others_do_not_notice():
    toy, together = search(list(range(12)), 3, limits=[9] * 12)
    assert toy.batches[0] == 12 and toy.batches[-1] < 12
    alone = [search([sentence], 3, limits=[9])[1][0] for sentence in range(12)]
    assert together == alone


def test_a_translation_begins_with_its_prefix_whose_probability_counts():
    prefixes = [[5, 5, 5], [3, 4, 5], [4, 4, 3]]
    toy, found = search([0, 1, 2], 4, prefixes=prefixes, limits=[6, 6, 6], n_best=3)
    for sentence, (prefix, hypotheses) in enumerate(zip(prefixes, found, strict=True)):
        for each in hypotheses:
            assert list(each.tokens[: len(prefix)]) == prefix
            expected = toy.log_probability(sentence, each.tokens)
            assert each.log_probability == pytest.approx(expected, abs=1e-5)
    assert found[1] == search([1], 4, prefixes=[[3, 4, 5]], limits=[6], n_best=3)[1][0]


def test_a_prefix_is_read_in_one_slot_until_it_is_no_longer_wanted():
    slots = []

    class Watched(Toy):
        def __call__(self, tokens: Tensor, parents: Tensor | None) -> Distribution:
            slots.append(tokens.shape[1])
            return super().__call__(tokens, parents)

    assert start(Watched([0], 4), BEGIN, [[3, 4, 5]], lambda i: len(slots) < 2) is None
    assert slots == [1, 1]


def test_at_its_limit_a_translation_ends_and_pays_for_it():
    toy, found = search(list(range(6)), 4, limits=[1, 2, 3, 1, 2, 3], n_best=4)
    for sentence, hypotheses in enumerate(found):
        assert max(len(each.tokens) for each in hypotheses) <= (1, 2, 3)[sentence % 3]
        for each in hypotheses:
            expected = toy.log_probability(sentence, each.tokens)
            assert each.log_probability == pytest.approx(expected, abs=1e-5)


def test_no_translation_is_shorter_than_the_least_length():
    _, found = search(list(range(10)), 4, min_length=3, limits=[5] * 10, n_best=4)
    assert all(len(each.tokens) >= 3 for hypotheses in found for each in hypotheses)


def test_excluded_tokens_are_never_chosen():
    _, found = search(list(range(10)), 4, excluded=[0, BEGIN, 4], n_best=4)
    assert not any(4 in each.tokens for hypotheses in found for each in hypotheses)


def test_a_model_that_gives_no_numbers_is_named():
    toy = Toy([0], 2, spread=math.nan)
    with raises(DataError, "weights", "damaged"):
        begun = start(toy, BEGIN, [[]], lambda sentence: True)
        beam_search(toy, begun, Bounds([4], 0, END, []), beam=2, n_best=1, length_penalty=0.6)


def test_a_sentence_that_is_no_longer_wanted_is_given_up_and_no_other_changes() -> None:
    sentences = [3, 5, 8]
    changes = {"limits": [6] * 3, "min_length": 4}
    _, expected = search(sentences, 2, **changes)
    asked: list[int] = []

    def wanted(sentence: int) -> bool:
        asked.append(sentence)
        return sentence != 1

    toy, found = search(sentences, 2, wanted=wanted, **changes)
    assert found[0] == expected[0] and found[2] == expected[2]
    assert len(toy.batches) >= 2 and toy.batches[1] == 2  # it left after the first step
    assert asked.count(1) == 1


def test_a_search_that_nobody_wants_ends_at_once() -> None:
    toy, found = search([3, 5], 2, limits=[50, 50], min_length=40, wanted=lambda sentence: False)
    assert len(toy.batches) == 1 and found == [[], []]
