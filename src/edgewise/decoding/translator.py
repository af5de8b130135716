"""Text in, text out."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from edgewise.data.tokenizer import Tokenizer
from edgewise.decoding.alignment import word_links
from edgewise.decoding.engine import Engine, Hypothesis, Tokens, Wanted
from edgewise.decoding.native import NativeEngine
from edgewise.decoding.settings import (
    BATCH_TOKENS,
    MAX_SOURCE_TOKENS,
    SAMPLING,
    DecodingSettings,
    penalty,
)
from edgewise.errors import ArgumentError, DataError, SettingError
from edgewise.settings import describe_mistakes
from edgewise.storage import open_sealed


@dataclass(frozen=True)
class Translation:
    """A text, how likely it is, and how it was made."""

    text: str
    log_probability: float
    score: float
    pieces: tuple[str, ...] = ()
    alignment: tuple[tuple[int, int], ...] = ()  # pairs of word numbers, source and target

    @property
    def pharaoh(self) -> str:
        """The alignment as `0-0 1-2 …`."""
        return " ".join(f"{source}-{target}" for source, target in self.alignment)


EMPTY = Translation("", 0.0, 0.0)


@dataclass(frozen=True)
class EncodedTexts:
    """Texts and their tokens; one that is too long is replaced by "", and has a refusal."""

    texts: tuple[str, ...]
    tokens: tuple[Tokens, ...]
    refusals: Mapping[int, str]  # by the number of the text

    def __len__(self) -> int:
        return len(self.texts)

    def first(self, count: int) -> "EncodedTexts":
        """Return the first so many texts."""
        refusals = {i: refusal for i, refusal in self.refusals.items() if i < count}
        return EncodedTexts(self.texts[:count], self.tokens[:count], refusals)

    def without(self, numbers: Container[int]) -> "EncodedTexts":
        """Return the same with "" in place of these texts."""
        texts = tuple("" if i in numbers else text for i, text in enumerate(self.texts))
        tokens = tuple(() if i in numbers else each for i, each in enumerate(self.tokens))
        return EncodedTexts(texts, tokens, self.refusals)


class Translator:
    """An engine that takes text.

    >>> translator = Translator.load("runs/demo/model")  # doctest: +SKIP
    >>> translator.translate(["The old man sleeps."], beam=1)  # doctest: +SKIP
    """

    def __init__(
        self,
        engine: Engine,
        settings: DecodingSettings | None = None,
        *,
        max_source_tokens: int = MAX_SOURCE_TOKENS,
    ) -> None:
        self.engine = engine
        self.settings = DecodingSettings() if settings is None else settings
        self.max_source_tokens = max_source_tokens

    @classmethod
    def load(
        cls,
        *folders: Path | str,
        device: str = "cpu",
        batch_tokens: int = BATCH_TOKENS,
        max_source_tokens: int = MAX_SOURCE_TOKENS,
    ) -> "Translator":
        """From a model folder, such as runs/demo/model; several translate together."""
        if not folders:
            raise ArgumentError("a model folder must be given; got none")
        paths = [Path(folder) for folder in folders]
        engine = NativeEngine.load(paths, device=device, batch_tokens=batch_tokens)
        settings = folder_settings(paths[0])
        return cls(engine, settings, max_source_tokens=max_source_tokens)

    @property
    def vocabulary(self) -> Tokenizer:
        return self.engine.vocabulary

    def translate(self, texts: Iterable[str], **settings: Any) -> list[str]:
        """The best translation of each text, in order; an empty text stays empty.

        Any of the `DecodingSettings` may be given, such as beam=1.
        """
        return [found[0].text for found in self.translations(texts, **settings)]

    def encode(self, texts: Sequence[str], *, target: bool = False) -> EncodedTexts:
        """Return the tokens of texts, or why they are too long; in one call of the tokenizer."""
        encode = self.vocabulary.encode_target if target else self.vocabulary.encode
        tokens = encode(texts)
        refusals = {
            i: f"has {len(row):,} tokens; at most {self.max_source_tokens:,} are translated "
            "(max_source_tokens; or split it into sentences)"
            for i, row in enumerate(tokens)
            if len(row) > self.max_source_tokens
        }
        encoded = EncodedTexts(tuple(texts), tuple(tokens), refusals)
        return encoded.without(refusals) if refusals else encoded

    def _encoded(
        self, name: str, texts: Iterable[str] | EncodedTexts, *, target: bool = False
    ) -> EncodedTexts:
        """Encode texts unless they are; ArgumentError if one cannot be translated."""
        if isinstance(texts, EncodedTexts):
            return texts
        encoded = self.encode(_strings(name, texts), target=target)
        for i, refusal in encoded.refusals.items():
            raise ArgumentError(f"{name}[{i}] {refusal}")
        return encoded

    def translations(
        self,
        texts: Iterable[str] | EncodedTexts,
        *,
        prefixes: Sequence[str] | EncodedTexts | None = None,
        alignments: bool = False,
        wanted: Wanted | None = None,
        **settings: Any,
    ) -> list[list[Translation]]:
        """The `n_best` translations of each text, best first; one empty one of an empty text.

        ArgumentError if a text is too long, unless the texts come from `encode`, which replaces it.
        With `alternatives` they differ in the first token after the prefix; none ends there.
        prefixes: what each translation begins with.
        alignments: say which words belong together.
        wanted: asked again and again whether a text, by its number, is still wanted; one that is
        not may be given up, and has no translations then.
        """
        chosen = self.changed(settings)
        encoded = self._encoded("texts", texts)
        beginnings: Sequence[Tokens] = [()] * len(encoded)
        if prefixes is not None:
            beginnings = self._encoded("prefixes", prefixes, target=True).tokens
        if len(beginnings) != len(encoded):
            raise ArgumentError(
                f"prefixes must be as many as texts, {len(encoded)}; got {len(beginnings)}"
            )
        # A vocabulary from elsewhere may leave nothing of a text.
        full = [i for i, text in enumerate(encoded.texts) if text.strip() and encoded.tokens[i]]
        sources = [encoded.tokens[i] for i in full]
        still = None if wanted is None else (lambda i: wanted(full[i]))
        hypotheses = self.engine.search(sources, [beginnings[i] for i in full], chosen, still)
        results = [[EMPTY] for _ in encoded.texts]
        for i, found in zip(full, self._texts(sources, hypotheses, alignments), strict=True):
            results[i] = found
        return results

    def score(
        self, sources: Iterable[str] | EncodedTexts, targets: Iterable[str] | EncodedTexts
    ) -> list[Translation]:
        """Each target as a translation of its source: how likely it is."""
        left = self._encoded("sources", sources)
        right = self._encoded("targets", targets, target=True)
        if len(left) != len(right):
            raise ArgumentError(
                f"targets must be as many as sources, {len(left)}; got {len(right)}"
            )
        values = self.engine.score(left.tokens, right.tokens)
        return [
            Translation(
                text,
                value,
                value / penalty(len(tokens) + 1, self.settings.length_penalty),
                tuple(self.vocabulary.pieces(tokens)),
            )
            for text, tokens, value in zip(right.texts, right.tokens, values, strict=True)
        ]

    def refusal(self, text: str) -> str | None:
        """Why a text is not translated; None if it is."""
        return self.encode([text]).refusals.get(0)

    def changed(self, changes: dict[str, Any]) -> DecodingSettings:
        """The settings with changes; SettingError where they cannot be."""
        merged = self.settings.model_dump() | changes
        if not merged["sample"]:  # then what a folder says of sampling does not matter
            for name in SAMPLING - changes.keys():
                del merged[name]
        try:
            return DecodingSettings(**merged)
        except ValidationError as error:
            raise SettingError(describe_mistakes(error)) from None

    def _texts(
        self,
        sources: Sequence[Tokens],
        hypotheses: Sequence[Sequence[Hypothesis]],
        alignments: bool,
    ) -> list[list[Translation]]:
        flat = [
            (source, each)
            for source, found in zip(sources, hypotheses, strict=True)
            for each in found
        ]
        links: list[list[tuple[int, int]]] = [[] for _ in flat]
        if alignments:
            weights = self.engine.align([s for s, _ in flat], [h.tokens for _, h in flat])
            links = [
                word_links(
                    matrix, self.vocabulary.pieces(source), self.vocabulary.pieces(each.tokens)
                )
                for matrix, (source, each) in zip(weights, flat, strict=True)
            ]
        made = iter(
            Translation(
                self.vocabulary.decode(each.tokens),
                each.log_probability,
                each.score,
                tuple(self.vocabulary.pieces(each.tokens)),
                tuple(linked),
            )
            for (_, each), linked in zip(flat, links, strict=True)
        )
        return [[next(made) for _ in found] for found in hypotheses]


def folder_settings(folder: Path) -> DecodingSettings:
    """Those that a model folder asks for."""
    try:
        return DecodingSettings.model_validate(open_sealed(folder).json("generation_config.json"))
    except ValidationError as error:
        raise DataError(
            f"{folder / 'generation_config.json'}: {describe_mistakes(error)}"
        ) from None


def _strings(name: str, values: Iterable[str]) -> list[str]:
    if isinstance(values, str):
        raise ArgumentError(f"{name} must be a list of strings; got one string: give [text]")
    result = list(values)
    for value in result:
        if not isinstance(value, str):
            raise ArgumentError(f"{name} must be strings; got {type(value).__name__}")
    return result
