"""Validation BLEU: that of greedy translations, on any number of ranks."""

import pytest

from edgewise.data.corpus import Corpus
from edgewise.data.grammar import pairs
from edgewise.data.prepare import Bitext, prepare
from edgewise.data.text import TextFile
from edgewise.decoding import DecodingSettings, Translator
from edgewise.decoding.native import NativeEngine
from edgewise.evaluation import bleu
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.training.ranks import Ranks
from edgewise.training.validation_bleu import ValidationBleu

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    texts = list(pairs(1500, seed=1))
    bitexts = []
    for name, part in (("train", texts[40:]), ("valid", texts[:40])):
        sides = [folder / f"{name}.{language}" for language in ("en", "de")]
        for path, lines in zip(sides, zip(*part, strict=True), strict=True):
            path.write_text("".join(f"{line}\n" for line in lines))
        bitexts.append(Bitext(*(TextFile(path) for path in sides)))
    prepare(folder / "out", bitexts[:1], bitexts[1:], vocab=500, workers=1)
    return Corpus(folder / "out")


@pytest.fixture(scope="module")
def model(corpus: Corpus) -> Transformer:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "heads": 2, "d_ff": 32}
    model = Transformer(ModelSettings(**sizes), corpus.vocabulary.size)
    initialise(model, 1)
    model.embedding.weight.data *= 3
    return model


class Half(Ranks):
    """One rank of two, whose sums are kept for the other."""

    heard: list[list[float]]

    def summed(self, values):
        self.heard.append(list(values))
        return [sum(column) for column in zip(*self.heard, strict=True)]


def test_it_is_the_bleu_of_greedy_translations_of_the_first_pairs(corpus, model):
    score = ValidationBleu(corpus.valid, 25, corpus.vocabulary, Ranks())(model)
    translator = Translator(NativeEngine([model], corpus.vocabulary), DecodingSettings(beam=1))
    sides = zip(*(corpus.valid.pair(i) for i in range(25)), strict=True)
    sources, references = ([corpus.vocabulary.decode(t.tolist()) for t in side] for side in sides)
    assert score == bleu(translator.translate(sources), references)
    assert score.value > 0


def test_two_ranks_find_together_what_one_finds_alone(corpus, model):
    alone = ValidationBleu(corpus.valid, 25, corpus.vocabulary, Ranks())(model)
    heard: list[list[float]] = []
    for rank in range(2):
        ranks = Half(rank=rank, size=2)
        object.__setattr__(ranks, "heard", heard)
        together = ValidationBleu(corpus.valid, 25, corpus.vocabulary, ranks)(model)
    assert together == alone


def test_more_ranks_than_sentences_are_no_problem(corpus, model):
    ranks = Half(rank=4, size=5)
    object.__setattr__(ranks, "heard", [[3, 3, 3, 2, 1, 1, 3, 2, 1, 1]])
    score = ValidationBleu(corpus.valid, 3, corpus.vocabulary, ranks)(model)
    assert score.value > 0
