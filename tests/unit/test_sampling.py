"""Draws follow the model's probabilities, and depend on the seed and the sentence alone."""

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from edgewise.decoding.bounds import Bounds
from edgewise.decoding.candidates import Distribution
from edgewise.decoding.sampling import sample
from edgewise.decoding.settings import DecodingSettings
from edgewise.decoding.step import Step, start

BEGIN, END = 1, 2
PROBABILITIES = torch.tensor([0.0, 0.0, 0.05, 0.5, 0.3, 0.15])


class Constant(Step):
    """Always the same probabilities, of the end too."""

    def __call__(self, tokens: Tensor, parents: Tensor | None) -> Distribution:
        return Distribution(PROBABILITIES.log().expand(tokens.numel(), -1))

    def keep(self, sentences: Tensor) -> None: ...


def draws(
    sources: list[list[int]],
    limit: int = 1,
    count: int = 1,
    prefixes: list[list[int]] | None = None,
    least: int = 0,
    **settings: object,
):
    options = DecodingSettings(sample=True, n_best=count, **settings)
    bounds = Bounds([limit] * len(sources), least, END, [0, BEGIN])
    begun = start(Constant(), BEGIN, prefixes or [[]] * len(sources), lambda sentence: True)
    return sample(Constant(), begun, bounds, options, sources)


def frequencies(count: int, **settings: object) -> dict[int, float]:
    """Of the first token; END is a translation without any."""
    found = [samples[0].tokens for samples in draws([[i] for i in range(count)], **settings)]
    counted = Counter(tokens[0] if tokens else END for tokens in found)
    return {token: n / count for token, n in counted.items()}


def test_tokens_are_drawn_as_often_as_they_are_likely():
    found = frequencies(4000)
    for token in (2, 3, 4, 5):
        assert found[token] == pytest.approx(float(PROBABILITIES[token]), abs=0.03)


def test_a_low_temperature_favours_the_likely_and_a_high_one_evens_out():
    cold, hot = frequencies(2000, temperature=0.5), frequencies(2000, temperature=4.0)
    squares = PROBABILITIES.square() / PROBABILITIES.square().sum()
    assert cold[3] == pytest.approx(float(squares[3]), abs=0.04)
    assert hot[5] > 0.2


def test_top_k_draws_from_the_likeliest_only():
    assert set(frequencies(500, top_k=2)) == {3, 4}
    assert set(frequencies(50, top_k=1)) == {3}


def test_top_p_draws_from_the_fewest_that_have_the_probability():
    assert set(frequencies(500, top_p=0.5)) == {3}
    assert set(frequencies(500, top_p=0.51)) == {3, 4}
    assert set(frequencies(1000, top_p=0.81)) == {3, 4, 5}
    assert set(frequencies(500, top_p=0.5, top_k=3)) == {3}  # 0.5 / 0.95 of what is left


def test_a_sentence_gives_the_same_samples_wherever_it_stands_and_other_seeds_give_others():
    sources = [[i, i + 1] for i in range(9)]
    together = draws(sources, limit=20, count=3)
    alone = [draws([source], limit=20, count=3)[0] for source in reversed(sources)]
    assert together == alone[::-1]
    assert together != draws(sources, limit=20, count=3, seed=1)
    assert len({each.tokens for each in together[0]}) > 1


def test_the_score_is_the_models_log_probability_whatever_the_temperature():
    for samples in draws([[i] for i in range(20)], limit=6, count=2, temperature=2.0):
        for each in samples:
            expected = sum(math.log(PROBABILITIES[token]) for token in (*each.tokens, END))
            assert each.log_probability == pytest.approx(expected, abs=1e-4)


def test_samples_keep_to_the_lengths_and_begin_with_the_prefix():
    prefixes = [[5, 5], [4, 3], [3, 3]]
    found = draws([[i] for i in range(3)], limit=4, count=2, prefixes=prefixes, least=3)
    assert all(3 <= len(each.tokens) <= 4 for samples in found for each in samples)
    for prefix, samples in zip(prefixes, found, strict=True):
        assert all(each.tokens[:2] == tuple(prefix) for each in samples)
        for each in samples:
            expected = sum(math.log(PROBABILITIES[token]) for token in (*each.tokens, END))
            assert each.log_probability == pytest.approx(expected, abs=1e-4)


def test_a_position_has_its_draw_whether_those_before_it_were_given_or_drawn():
    sources = [[i] for i in range(40)]
    free = draws(sources, limit=6, least=6)
    for source, (whole,) in zip(sources, free, strict=True):
        given = [list(whole.tokens[:3])]
        assert draws([source], limit=6, least=6, prefixes=given)[0][0].tokens == whole.tokens
