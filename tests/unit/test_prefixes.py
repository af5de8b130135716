"""Prefixes in one pass: the same as the plain loop that reads them one token after the other."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from selection import long_except
from step_models import MODES, made
from torch import Tensor

from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import BEGIN, END, Vocabulary
from edgewise.decoding import DecodingSettings
from edgewise.decoding.engine import Hypothesis
from edgewise.decoding.native import NativeEngine
from edgewise.decoding.sampling import _drawn
from edgewise.decoding.settings import penalty
from edgewise.decoding.steps import Steps
from edgewise.model.transformer import Transformer

pytestmark = pytest.mark.usefixtures("one_thread")

SOURCES = [[7, 8, 9, 10, 11], [20, 21], list(range(5, 25)), [30, 31]]
PREFIXES = [[40, 41, 42], list(range(50, 73)), [33], [60, 61, 62]]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train([line for pair in pairs(500, 1) for line in pair], 400)


def engine(vocabulary: Vocabulary, *models: Transformer, **options: int) -> NativeEngine:
    for model in models:
        model.double()  # so that rounding decides nothing
        with torch.no_grad():  # tokens differ in probability, and the end comes at times
            model.output_embedding.weight.mul_(3)
            model.output_embedding.weight[END] *= 1.5
    return NativeEngine(models, vocabulary, **options)


@torch.inference_mode()
def stepped(
    engine: NativeEngine, source: list[int], prefix: list[int], settings: DecodingSettings
) -> list[Hypothesis]:
    """Beam search in which the first tokens are forced, one step after the other."""
    beam, limit = settings.beam, settings.limit(len(source), len(prefix))
    step, parents = engine.begin([source], beam), None
    living = [((), 0.0)] + [((), -torch.inf)] * (beam - 1)
    tokens, finished = [BEGIN] * beam, []
    for length in range(limit + 1):
        predictions = step(torch.tensor([tokens]), parents)
        hidden = [*engine.vocabulary.excluded, *([END] if length < settings.min_length else [])]
        every = predictions.all(torch.tensor(hidden))
        given = prefix[length] if length < len(prefix) else END if length >= limit else None
        options = []
        for slot, (before, value) in enumerate(living):
            if given is not None:
                forced = predictions.of(torch.full((beam,), given))[slot]
                options.append((value + float(forced), slot, (*before, given)))
                continue
            best = every[slot].topk(beam + 1)
            options += [
                (value + float(v), slot, (*before, int(token)))
                for v, token in zip(best.values, best.indices, strict=True)
            ]
        options.sort(key=lambda option: -option[0])
        finished += [
            Hypothesis(each[:-1], value, value / penalty(length + 1, settings.length_penalty))
            for value, _, each in options[:beam]
            if each[-1] == END and value > -torch.inf
        ]
        going = [option for option in options if option[2][-1] != END][:beam]
        if not going:
            break
        going += [(-torch.inf, *going[0][1:])] * (beam - len(going))
        living = [(each, value) for value, _, each in going]
        parents = torch.tensor([[slot for _, slot, _ in going]])
        tokens = [each[-1] for each, _ in living]
    return sorted(finished, key=lambda each: -each.score)[: settings.n_best]


def assert_alike(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-4)
        assert one.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.parametrize(
    "mode", long_except(["per head", "shared", "none", "both", "as other toolkits"], MODES)
)
def test_translations_and_alternatives_equal_those_of_forced_steps(mode, vocabulary):
    native = engine(vocabulary, made(vocabulary=vocabulary.size, **MODES[mode]))
    settings = DecodingSettings(beam=3, n_best=2, extra_tokens=2)
    sources, prefixes = SOURCES[:2], PREFIXES[:2]
    found = native.search(sources, prefixes, settings)
    single = settings.model_copy(update={"n_best": 1})
    several = settings.model_copy(update={"n_best": 3, "alternatives": True})
    others = native.search(sources, prefixes, several)
    for source, prefix, hypotheses in zip(sources, prefixes, found, strict=True):
        assert_alike(hypotheses, stepped(native, source, prefix, settings))
    for source, prefix, hypotheses in zip(sources, prefixes, others, strict=True):
        # Each is the best translation that begins so, and no other token is likelier.
        expected = [
            stepped(native, source, list(each.tokens[: len(prefix) + 1]), single)[0]
            for each in hypotheses
        ]
        assert_alike(hypotheses, expected)
        assert {each.tokens[len(prefix)] for each in hypotheses} == likeliest(
            native, source, prefix, 3
        )


@torch.inference_mode()
def likeliest(engine: NativeEngine, source: list[int], prefix: list[int], count: int) -> set[int]:
    step = engine.begin([source], 1)
    for token in (BEGIN, *prefix):
        predictions = step(torch.tensor([[token]]), None)
    excluded = torch.tensor([*engine.vocabulary.excluded, END])
    return set(predictions.best(count, excluded).token[0].tolist())


@pytest.mark.parametrize(
    "changes",
    [
        {"min_length": 26, "max_length": 27},
        {"max_length": 3},  # less than some prefixes have
        {"beam": 1, "n_best": 1},
        {"n_best": 4, "beam": 5, "length_penalty": 0.0},
    ],
)
def test_lengths_and_numbers_of_translations_are_those_of_forced_steps(changes, vocabulary):
    native = engine(vocabulary, made(vocabulary=vocabulary.size, max_distance=4))
    settings = DecodingSettings(**{"beam": 3, "n_best": 2, "extra_tokens": 4} | changes)
    found = native.search(SOURCES, PREFIXES, settings)
    for source, prefix, hypotheses in zip(SOURCES, PREFIXES, found, strict=True):
        assert_alike(hypotheses, stepped(native, source, prefix, settings))


def test_several_models_read_a_prefix_as_in_forced_steps(vocabulary):
    models = [made(seed, vocabulary=vocabulary.size, max_distance=seed) for seed in (1, 2)]
    both, settings = engine(vocabulary, *models), DecodingSettings(beam=3, extra_tokens=4)
    found = both.search(SOURCES, PREFIXES, settings)
    for source, prefix, hypotheses in zip(SOURCES, PREFIXES, found, strict=True):
        assert_alike(hypotheses, stepped(both, source, prefix, settings))


@torch.inference_mode()
def test_samples_after_a_prefix_equal_those_of_forced_steps(vocabulary):
    native = engine(vocabulary, made(vocabulary=vocabulary.size, max_distance=4))
    settings = DecodingSettings(sample=True, n_best=1, top_k=5, extra_tokens=6, seed=3)
    found = native.search(SOURCES, PREFIXES, settings)
    hidden = torch.tensor(native.vocabulary.excluded)
    for source, prefix, (sample,) in zip(SOURCES, PREFIXES, found, strict=True):
        limit, tokens, total = settings.limit(len(source), len(prefix)), [], 0.0
        step, chance = native.begin([source], 1), np.random.default_rng([3, 0, *source])
        while tokens[-1:] != [END]:
            predictions = step(torch.tensor([tokens[-1:] or [BEGIN]]), None)
            (((value,),), ((token,),)) = _drawn(predictions, settings, hidden, [[chance.random()]])
            if len(tokens) < len(prefix) or len(tokens) >= limit:
                token = torch.tensor([*prefix, *[END] * limit][len(tokens)])
                (value,) = predictions.of(token[None])
            tokens.append(int(token))
            total += float(value)
        assert sample.tokens == tuple(tokens[:-1])
        assert sample.log_probability == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("options", [{}, {"sample": True, "top_k": 5}, {"alternatives": True}])
def test_a_translation_with_a_prefix_does_not_depend_on_its_batch(options, vocabulary):
    model = made(vocabulary=vocabulary.size, d_model=128, heads=4, d_ff=256, max_distance=4)
    native = NativeEngine([model], vocabulary)
    settings = DecodingSettings(beam=3, n_best=2, extra_tokens=1, **options)
    sources = [[5 + (7 * i + j) % 90 for j in range(2 + 3 * i)] for i in range(8)]
    prefixes = [[9 + (5 * i + j) % 90 for j in range((0, 3, 18)[i % 3])] for i in range(8)]
    together = native.search(sources, prefixes, settings)
    alone = [native.search([s], [p], settings)[0] for s, p in zip(sources, prefixes, strict=True)]
    assert together == alone  # scores too, to the last bit
    small = NativeEngine(native.models, vocabulary, batch_tokens=100)
    assert small.search(sources[::-1], prefixes[::-1], settings) == together[::-1]


def test_a_prefix_takes_no_steps_and_alternatives_share_it(vocabulary, monkeypatch):
    calls = {"__call__": 0, "prefill": 0}

    def count(name: str, method: Callable[..., Tensor]) -> None:
        def counted(*arguments: object) -> Tensor:
            calls[name] += 1
            return method(*arguments)

        monkeypatch.setattr(Steps, name, counted)

    count("__call__", Steps.__call__)
    count("prefill", Steps.prefill)
    native = engine(vocabulary, made(vocabulary=vocabulary.size, max_distance=4))
    settings = DecodingSettings(beam=2, max_length=1, n_best=20, alternatives=True)
    prefix = [9 + i % 90 for i in range(600)]
    (found,) = native.search([SOURCES[0]], [prefix], settings)
    assert len(found) == 20 and all(len(each.tokens) == 601 for each in found)
    assert calls["prefill"] == 1
    # One after the prefix; 4,096 tokens of batches hold 6 prefixes, each of which ends then.
    assert calls["__call__"] == 1 + 4


def test_a_search_that_is_not_wanted_any_more_ends_within_its_prefix(vocabulary):
    native = engine(vocabulary, made(vocabulary=vocabulary.size, max_distance=4))
    prefix, asked = [9 + i % 90 for i in range(600)], []

    def wanted(sentence: int) -> bool:
        asked.append(sentence)
        return len(asked) < 3

    for alternatives in (False, True):
        settings = DecodingSettings(n_best=3, alternatives=alternatives)
        asked.clear()
        assert native.search([SOURCES[0]], [prefix], settings, wanted) == [[]]
        assert len(asked) == 3
