"""Validation BLEU: that of greedy translations, on any number of ranks."""

import numpy as np
import pytest

from edgewise.data.corpus import Part, Split, SplitWriter, token_type
from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import Vocabulary
from edgewise.decoding import DecodingSettings, Translator
from edgewise.decoding.native import NativeEngine
from edgewise.evaluation import bleu
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.training.ranks import Ranks
from edgewise.training.validation_bleu import ValidationBleu

pytestmark = pytest.mark.usefixtures("one_thread")

SOURCES = [english for english, _ in pairs(40, seed=3)]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train((line for pair in pairs(1500, seed=1) for line in pair), 500)


@pytest.fixture(scope="module")
def model(vocabulary: Vocabulary) -> Transformer:
    """A random one whose translations have words."""
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "heads": 2, "d_ff": 32}
    model = Transformer(ModelSettings(**sizes), vocabulary.size)
    initialise(model, 9)
    model.embedding.weight.data *= 3
    return model


@pytest.fixture(scope="module")
def split(
    vocabulary: Vocabulary, model: Transformer, tmp_path_factory: pytest.TempPathFactory
) -> Split:
    """Half of the references are the model's own translations, so that BLEU is not 0."""
    folder = tmp_path_factory.mktemp("splits") / "valid"
    translator = Translator(NativeEngine([model], vocabulary), DecodingSettings(beam=1))
    targets = translator.translate(SOURCES)
    targets[::2] = SOURCES[::2]
    rows = [t for pair in zip(SOURCES, targets, strict=True) for t in vocabulary.encode(pair)]
    dtype = token_type(vocabulary)
    with SplitWriter(folder, dtype) as writer:
        lengths = np.array([len(row) for row in rows], dtype=np.int32)
        writer.append(np.array([token for row in rows for token in row]), lengths)
    return Split(folder, dtype.name, [Part("en", "de", len(SOURCES), 1.0)])


class OneOfTwo(Ranks):
    """A rank that hears what those before it have said."""

    def __init__(self, rank: int, said: list[list[float]]) -> None:
        super().__init__(rank=rank, size=2)
        object.__setattr__(self, "said", said)

    def summed(self, values):
        self.said.append(list(values))
        return [sum(column) for column in zip(*self.said, strict=True)]


def test_it_is_the_bleu_of_greedy_translations_of_the_first_pairs(split, vocabulary, model):
    score = ValidationBleu(split, 25, vocabulary, Ranks())(model)
    translator = Translator(NativeEngine([model], vocabulary), DecodingSettings(beam=1))
    references = [vocabulary.decode(split.pair(i)[1].tolist()) for i in range(25)]
    assert score == bleu(translator.translate(SOURCES[:25]), references)
    assert 10 < score.value < 90


@pytest.mark.parametrize("count", [25, 1])
def test_two_ranks_find_together_what_one_finds_alone(split, vocabulary, model, count):
    said: list[list[float]] = []
    for rank in range(2):  # of a single pair the second rank has none
        together = ValidationBleu(split, count, vocabulary, OneOfTwo(rank, said))(model)
    assert together == ValidationBleu(split, count, vocabulary, Ranks())(model)
