"""BLEU of a model that is being trained: greedy translations of validation sentences."""

import numpy as np

from edgewise.data.corpus import Split
from edgewise.data.vocabulary import Vocabulary
from edgewise.decoding import DecodingSettings
from edgewise.decoding.native import NativeEngine
from edgewise.evaluation import Score, bleu
from edgewise.evaluation.bootstrap import SentenceStatistics
from edgewise.model.transformer import Transformer
from edgewise.training.ranks import Ranks

GREEDY = DecodingSettings(beam=1)


class ValidationBleu:
    """The first pairs of the validation set, shared out to the ranks."""

    def __init__(self, split: Split, count: int, vocabulary: Vocabulary, ranks: Ranks) -> None:
        self.vocabulary, self.ranks = vocabulary, ranks
        mine = range(ranks.rank, min(count, len(split)), ranks.size)
        pairs = [split.pair(i) for i in mine]
        self._sources = [source.tolist() for source, _ in pairs]
        self._references = [vocabulary.decode(target.tolist()) for _, target in pairs]
        self._signature = bleu(["one"], ["sentence"]).signature  # which depends on no sentence

    def __call__(self, model: Transformer) -> Score:
        """The same on any number of ranks: a translation does not depend on its batch."""
        engine = NativeEngine([model], self.vocabulary)
        found = engine.search(self._sources, [[]] * len(self._sources), GREEDY)
        translations = [self.vocabulary.decode(best.tokens) for (best,) in found]
        counts = np.zeros(10)
        if translations:
            counts += SentenceStatistics.of(translations, self._references).counts.sum(axis=0)
        total = np.array([self.ranks.summed(counts.tolist())]).round().astype(np.int64)
        return Score(SentenceStatistics(total, self._signature).bleu().value, self._signature)
