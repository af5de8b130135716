"""Runs an exported folder by CTranslate2.

Its length penalty is another, so it is asked for as many hypotheses as its beam has, without any,
and these are ranked by ours: a search that knows the penalty can find another translation. Tokens
that no translation has are ruled out after the search where it gave any, since ruling them out
before makes all others likelier. An end that must not come yet would do so, too: `min_length` is
refused.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.data.tokenizer import Tokenizer
from edgewise.data.vocabulary import END
from edgewise.decoding.batching import by_length
from edgewise.decoding.engine import Hypothesis, Tokens, Wanted
from edgewise.decoding.settings import BATCH_TOKENS, DecodingSettings, penalty
from edgewise.decoding.stepped import ROWS, renumbered
from edgewise.errors import DataError, EdgewiseError, SettingError
from edgewise.interop.ctranslate2 import (
    KIND,
    POSITIONS,
    VERSION,
    decoding_options,
    require_own_settings,
)
from edgewise.interop.exported import open_exported
from edgewise.storage.manifest import EDITABLE


class _Found(NamedTuple):
    """A hypothesis as it came."""

    tokens: list[int]
    log_probability: float
    ended: bool  # else it is to be scored: the limit came before the end


class CTranslate2Engine:
    """One exported folder."""

    def __init__(
        self,
        folder: Path,
        *,
        device: str = "cpu",
        threads: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        """device: cpu, cuda or cuda:1; threads: None is its own choice."""
        exported = open_exported(folder, KIND, VERSION)
        sealed = exported.folder
        try:
            import ctranslate2
        except ModuleNotFoundError:
            raise EdgewiseError(
                "this engine needs ctranslate2: pip install 'edgewise[export]'"
            ) from None
        self.vocabulary: Tokenizer = exported.vocabulary
        self.settings, self.parameters = exported.settings, exported.parameters
        require_own_settings(exported)
        self.batch_tokens = batch_tokens
        kind, _, number = device.partition(":")
        try:
            self._translator = ctranslate2.Translator(
                "edgewise",  # a name; the files are given
                kind,
                device_index=int(number or 0),
                intra_threads=threads or 0,
                # From memory, so that it reads what was verified, and no other file.
                files={
                    name: sealed.read(name, limit=1 << 40)
                    for name in sealed.names
                    if "/" not in name and name not in EDITABLE
                },
            )
        except (RuntimeError, ValueError) as error:
            raise DataError(
                f"CTranslate2 cannot run {folder} on {device}: {error!s:.300}"
            ) from None
        every = self.vocabulary.pieces(range(self.vocabulary.size))
        self._numbers = {piece: number for number, piece in enumerate(every)}
        self._excluded = frozenset(self.vocabulary.excluded)
        self._ruled_out = decoding_options(self.vocabulary)
        self._plain = {**self._ruled_out, "disable_unk": False, "suppress_sequences": None}

    def search(
        self,
        sources: Sequence[Tokens],
        prefixes: Sequence[Tokens],
        settings: DecodingSettings,
        wanted: Wanted | None = None,
    ) -> list[list[Hypothesis]]:
        _require_able(settings)
        wanted = wanted or (lambda sentence: True)
        if settings.alternatives:
            return self._alternatives(sources, prefixes, settings, wanted)
        limits = [
            settings.limit(len(source), len(prefix))
            for source, prefix in zip(sources, prefixes, strict=True)
        ]
        results: list[list[Hypothesis]] = [[] for _ in sources]
        lengths = [max(map(len, pair)) + 1 for pair in zip(sources, prefixes, strict=True)]
        rows = max(1, ROWS // settings.beam)
        for chosen in by_length(lengths, self.batch_tokens // settings.beam, rows):
            kept = [i for i in chosen if wanted(i)]
            some = [sources[i] for i in kept], [prefixes[i] for i in kept]
            still = renumbered(wanted, kept)
            found = self._search(*some, [limits[i] for i in kept], settings, still)
            for i, hypotheses in zip(kept, found, strict=True):
                results[i] = hypotheses
        return results

    def _search(
        self,
        sources: list[Tokens],
        prefixes: list[Tokens],
        limits: list[int],
        settings: DecodingSettings,
        wanted: Wanted,
    ) -> list[list[Hypothesis]]:
        """All with one limit first, since a call has one; alone, where that was another."""
        every = self._hypotheses(sources, prefixes, max(limits, default=0), settings, self._plain)
        for i, (found, prefix, limit) in enumerate(zip(every, prefixes, limits, strict=True)):
            if not wanted(i):
                every[i] = []
                continue
            alone = [sources[i]], [prefix], limit, settings
            if any(len(each.tokens) > limit or not each.ended for each in found):
                # At its limit each of them must end, which is not always as likely.
                (found,) = self._hypotheses(*alone, self._plain, every=True)
            if any(self._excluded & {*each.tokens[len(prefix) :]} for each in found):
                (found,) = self._hypotheses(*alone, self._ruled_out, every=True)
                # Their scores are among the tokens that were left.
                found = [each._replace(ended=False) for each in found]
            if prefix:  # which their scores do not count
                found = [each._replace(ended=False) for each in found]
            # Where a prefix fills the limit, it is all that they have.
            every[i] = list({tuple(each.tokens): each for each in reversed(found)}.values())[::-1]
        unsure = [
            (source, each.tokens)
            for source, found in zip(sources, every, strict=True)
            for each in found
            if not each.ended
        ]
        scored = iter(self.score([s for s, _ in unsure], [t for _, t in unsure]))
        results = []
        for found in every:
            ranked = []
            for each in found:
                value = each.log_probability if each.ended else next(scored)
                score = value / penalty(len(each.tokens) + 1, settings.length_penalty)
                ranked.append(Hypothesis(tuple(each.tokens), value, score))
            results.append(sorted(ranked, key=lambda one: -one.score)[: settings.n_best])
        return results

    def _hypotheses(
        self,
        sources: list[Tokens],
        prefixes: list[Tokens],
        limit: int,
        settings: DecodingSettings,
        options: dict[str, Any],
        *,
        every: bool = False,
    ) -> list[list[_Found]]:
        """Of each sentence the best, or every one of the beam if they are to be ranked anew."""
        every = every or settings.length_penalty > 0
        if not sources:
            return []
        with self._told(sources, limit):
            results = self._translator.translate_batch(
                self._pieces(sources),
                [self.vocabulary.pieces(prefix) for prefix in prefixes],
                beam_size=settings.beam,
                num_hypotheses=settings.beam if every else settings.n_best,
                length_penalty=0.0,
                max_decoding_length=limit,
                return_scores=True,
                return_end_token=True,
                **options,
            )
        return [
            [
                self._read(pieces, score)
                for pieces, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def _read(self, pieces: list[str], score: float) -> _Found:
        if math.isnan(score):
            raise DataError("the model's output is not a number: its weights are damaged")
        tokens = [self._numbers[piece] for piece in pieces]
        ended = bool(tokens) and tokens[-1] == END
        return _Found(tokens[:-1] if ended else tokens, score, ended)

    def _alternatives(
        self,
        sources: Sequence[Tokens],
        prefixes: Sequence[Tokens],
        settings: DecodingSettings,
        wanted: Wanted,
    ) -> list[list[Hypothesis]]:
        """The likeliest tokens after each prefix, each with its best continuation, best first."""
        single = settings.model_copy(update={"alternatives": False, "n_best": 1})
        results: list[list[Hypothesis]] = []
        for i, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
            if not wanted(i):
                results.append([])
                continue
            tokens = self._likeliest(source, prefix, settings.n_best)
            begun = [[*prefix, token] for token in tokens]
            still = renumbered(wanted, [i] * len(begun))
            found = self.search([source] * len(begun), begun, single, still)
            every = (each for continued in found for each in continued)
            results.append(sorted(every, key=lambda each: -each.score))
        return results

    def _likeliest(self, source: Tokens, prefix: Tokens, count: int) -> list[int]:
        """The likeliest tokens after a prefix, but for an end."""
        limit = len(prefix) + 1
        # An end may be among them.
        most = min(count + 1, self.vocabulary.size - len(self._excluded))
        with self._told([source], limit):
            (result,) = self._translator.translate_batch(
                self._pieces([source]),
                [self.vocabulary.pieces(prefix)],
                beam_size=1,
                num_hypotheses=most,
                max_decoding_length=limit,
                return_alternatives=True,
                return_scores=True,
                return_end_token=True,
                **self._ruled_out,
            )
        ranked = sorted(
            zip(result.scores, result.hypotheses, strict=True), key=lambda each: -each[0]
        )
        tokens = [self._numbers[pieces[len(prefix)]] for _, pieces in ranked]
        return [token for token in tokens if token != END][:count]

    def score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[float]:
        results = [0.0] * len(sources)
        both = [max(len(s), len(t)) + 1 for s, t in zip(sources, targets, strict=True)]
        for chosen in by_length(both, self.batch_tokens, len(sources)):
            some = [sources[i] for i in chosen]
            with self._told(some, max(len(targets[i]) + 1 for i in chosen)):
                found = self._translator.score_batch(
                    self._pieces(some),
                    [self.vocabulary.pieces(targets[i]) for i in chosen],
                    max_input_length=0,
                )
            for i, result in zip(chosen, found, strict=True):
                results[i] = math.fsum(result.log_probs)
        if not all(map(math.isfinite, results)):
            raise DataError("the model's output is not a number: its weights are damaged")
        return results

    def align(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens]
    ) -> list[NDArray[np.float32]]:
        results = [
            np.zeros((len(target), len(source)), np.float32)
            for source, target in zip(sources, targets, strict=True)
        ]
        full = [i for i, target in enumerate(targets) if target]
        for chosen in by_length([len(targets[i]) for i in full], self.batch_tokens, ROWS):
            kept = [full[row] for row in chosen]
            some, longest = [sources[i] for i in kept], max(len(targets[i]) for i in kept)
            with self._told(some, longest):
                found = self._translator.translate_batch(
                    self._pieces(some),
                    [self.vocabulary.pieces(targets[i]) for i in kept],
                    beam_size=1,
                    max_decoding_length=longest,
                    return_attention=True,
                    **self._plain,
                )
            for i, result in zip(kept, found, strict=True):
                rows, columns = results[i].shape
                results[i][:] = np.array(result.attention[0])[:rows, :columns]
        return results

    def _pieces(self, sources: Sequence[Tokens]) -> list[list[str]]:
        """As the engine is given them: it appends an end itself, if the model has one."""
        nothing = [] if self.settings.source_end else [END]
        return [self.vocabulary.pieces(source or nothing) for source in sources]

    @contextmanager
    def _told(self, sources: Sequence[Tokens], limit: int) -> Iterator[None]:
        """Failures of CTranslate2's in our words."""
        longest = max(limit, *(len(source) + 1 for source in sources))
        if self.settings.max_distance is None and longest > POSITIONS:
            raise SettingError(
                f"a sentence and its translation may have {POSITIONS:,} tokens at most, as many "
                f"positions as this model was exported with; {longest:,} were asked for (lower "
                "max_length or max_source_tokens)"
            )
        try:
            yield
        except RuntimeError as error:
            raise EdgewiseError(f"CTranslate2 failed: {error}") from None


def _require_able(settings: DecodingSettings) -> None:
    if settings.sample:
        raise SettingError(
            "sample is not for --engine ctranslate2: its draws cannot be repeated for a sentence "
            "in another batch (the engines edgewise and onnx sample)"
        )
    if settings.min_length:
        raise SettingError(
            f"min_length must be 0 for --engine ctranslate2; got {settings.min_length}: it makes "
            "all other tokens likelier where the end may not come (the engines edgewise and onnx "
            "do not)"
        )
