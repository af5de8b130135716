"""The likeliest tokens are those of a full log-softmax, though that is never computed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewise.decoding import candidates
from edgewise.decoding.candidates import Distribution, Logits, OutputLayer

pytestmark = pytest.mark.usefixtures("one_thread")


def logits(rows: int, vocabulary: int, seed: int = 0, scale: float = 3.0) -> Logits:
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(vocabulary, 16, generator=generator) * scale
    x = torch.randn(rows, 16, generator=generator)
    return OutputLayer(table)(x)


def expected(found: Logits) -> Distribution:
    values = torch.cat(found.slices, dim=1)[:, : found.vocabulary]
    return Distribution(torch.log_softmax(values.double(), dim=1))


@given(
    rows=st.sampled_from([8, 16, 24]),
    vocabulary=st.sampled_from([300, 2048, 2049, 8192, 8193, 20000]),
    count=st.integers(1, 40),
    excluded=st.lists(st.integers(0, 299), max_size=6, unique=True),
    seed=st.integers(0, 1000),
)
def test_the_best_are_those_of_the_whole_distribution(rows, vocabulary, count, excluded, seed):
    found = logits(rows, vocabulary, seed)
    hidden = torch.tensor(excluded, dtype=torch.int64)
    actual, wanted = found.best(count, hidden), expected(found).best(count, hidden)
    # The order of tokens with equal logits is not defined.
    assert all(len(set(row)) == len(row) for row in actual.token.tolist())
    close = {"rtol": 1e-5, "atol": 1e-5}
    values = expected(found).all(hidden).gather(1, actual.token)
    torch.testing.assert_close(values, wanted.log_probability, **close)
    torch.testing.assert_close(actual.log_probability.double(), values, **close)


@pytest.mark.parametrize("vocabulary", [300, 8192, 8193])
def test_a_bias_is_added_to_the_logits(vocabulary):
    table, bias, x = torch.randn(vocabulary, 16), torch.randn(vocabulary), torch.randn(8, 16)
    found = OutputLayer(table, bias)(x).all(torch.empty(0, dtype=torch.int64))
    wanted = torch.log_softmax(torch.nn.functional.linear(x, table, bias), dim=1)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_one_token_and_all_tokens_have_the_same_log_probabilities():
    found = logits(8, 3000)
    tokens = torch.arange(5) * 599
    nothing = torch.empty(0, dtype=torch.int64)
    everything = found.all(nothing)
    assert everything.shape == (8, 3000)
    torch.testing.assert_close(found.of(tokens), everything[torch.arange(5), tokens])
    torch.testing.assert_close(
        expected(found).all(nothing), everything.double(), rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(everything.exp().sum(1), torch.ones(8))


def test_excluded_tokens_count_in_the_sum_but_are_never_given():
    found = logits(8, 500)
    top = found.best(1, torch.empty(0, dtype=torch.int64)).token[0]
    rest = found.best(3, top)
    assert top.item() not in rest.token[0].tolist()
    torch.testing.assert_close(rest.log_probability[0], found.all(top)[0].topk(3).values)


def test_logits_of_thousands_do_not_overflow():
    found = logits(8, 2500, scale=2000.0)
    best = found.best(2, torch.empty(0, dtype=torch.int64))
    assert best.log_probability.isfinite().all()
    assert (best.log_probability <= 0).all()


def test_a_row_is_computed_alike_bit_for_bit_whatever_the_others():
    generator = torch.Generator().manual_seed(1)
    layer = OutputLayer(torch.randn(19000, 128, generator=generator))
    x = torch.randn(64, 128, generator=generator)
    hidden = torch.tensor([0, 1, 3])
    whole = [part.clone() for part in layer(x).best(5, hidden)]
    for rows in (4, 8, 20, 40, 64):
        for part, all_rows in zip(layer(x[:rows]).best(5, hidden), whole, strict=True):
            assert torch.equal(part, all_rows[:rows])


def test_more_tokens_may_be_asked_for_than_there_are(monkeypatch):
    monkeypatch.setattr(candidates, "SLICE", 64)
    monkeypatch.setattr(candidates, "BLOCK", 8)
    found = logits(8, 70)
    best = found.best(200, torch.tensor([3]))
    assert best.log_probability[:, :69].isfinite().all()
    assert (best.log_probability[:, 69:] == -torch.inf).all()
    for row in best.token[:, :69].tolist():
        assert sorted(row) == [token for token in range(70) if token != 3]
