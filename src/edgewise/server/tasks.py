"""What the thread computes: translations, explanations, tables."""

import json
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from edgewise.data.vocabulary import BEGIN, END
from edgewise.decoding.alignment import word_numbers
from edgewise.decoding.device import within_memory
from edgewise.decoding.engine import Tokens, Wanted
from edgewise.decoding.explanation import Attention, explain
from edgewise.decoding.settings import DecodingSettings
from edgewise.decoding.sources import as_read
from edgewise.decoding.stepped import ROWS
from edgewise.decoding.translator import Translation, Translator
from edgewise.errors import ArgumentError
from edgewise.model.layers import DecoderLayer, EncoderLayer
from edgewise.server.messages import Stack
from edgewise.server.models import Served

# What the engine counts in tokens, a queue counts in characters.
CHARACTERS_PER_TOKEN = 4
DECIMALS = 5
# An item takes as long as its characters and so many more: a search has steps beyond the source.
EACH = 50
# Of so many characters, each takes twice the time, since a step attends to all tokens.
LONG = 4000
# So many characters of a prefix, which is computed in one pass, take as long as one that is
# searched for; so do so many numbers of an explanation.
IN_ONE_PASS, NUMBERS = 20, 200


def seconds_per_character(translator: Translator) -> float:
    """Measure how long a character of a translation takes, after a search of all kinds.

    What is done for the first time takes longer, and memory that libraries do not check for.
    """
    text = ["a b c d e"]
    short: dict[str, Any] = {"min_length": 0, "max_length": 16}
    translator.translations(text, prefixes=["a"], alternatives=True, sample=False, **short)
    for _ in range(2):
        began = time.monotonic()
        (found,) = translator.translations(text, n_best=1, **short)
        seconds = time.monotonic() - began
    return seconds / (EACH + CHARACTERS_PER_TOKEN * len(found[0].pieces))


@dataclass(frozen=True)
class Translating:
    """Of each sentence its translations, best first; as many together as the engine takes."""

    model: Served
    settings: DecodingSettings
    prefix: str = ""

    @property
    def most(self) -> int:
        """Alternatives are searched for one sentence after the other."""
        return 1 if self.settings.alternatives else max(1, ROWS // self.settings.slots)

    @property
    def characters(self) -> int:
        return CHARACTERS_PER_TOKEN * self.model.engine.batch_tokens // self.settings.slots

    @property
    def kind(self) -> Hashable:
        return self.model, self.settings.alternatives, self.settings.slots

    def seconds(self, item: str) -> float:
        """Alternatives are continued in as many batches as it takes, each after the prefix."""
        begun, each, batches = len(self.prefix), len(item), 1
        if self.settings.alternatives:
            width = max(each, begun // self.settings.slots)
            together = min(max(1, ROWS // self.settings.slots), self.characters // max(1, width))
            batches = math.ceil(self.settings.n_best / max(1, together))
        searched = batches * (max(0, each - begun) + EACH) * (1 + each / LONG)
        return self.model.seconds_per_character * (searched + begun / IN_ONE_PASS)

    def __call__(self, items: Sequence[str], wanted: Wanted) -> list[list[Translation]]:
        return self.model.translator.translations(
            items,
            prefixes=[self.prefix] * len(items),
            wanted=wanted,
            **self.settings.model_dump(),
        )


@dataclass(frozen=True)
class _Alone:
    """Nothing is computed together with it."""

    model: Served
    most: int = 1
    characters: int = 0

    @property
    def kind(self) -> Hashable:
        return self.model, type(self)

    def seconds(self, item: str) -> float:
        return self.model.seconds_per_character * EACH


@dataclass(frozen=True)
class Explaining(_Alone):
    """Of a sentence an `ExplainAnswer`, as JSON: it may be a million numbers."""

    translation: str | None = None
    stack: Stack = "cross"
    tokens: int = 0  # of the sentence or its translation, at most

    def seconds(self, item: str) -> float:
        tokens = min(self.tokens, len(item) // CHARACTERS_PER_TOKEN)
        settings = self.model.engine.settings
        numbers = 3 * settings.heads * settings.decoder_layers * tokens**2
        searched = len(item) if self.translation is None else 0
        return self.model.seconds_per_character * (searched + EACH + numbers / NUMBERS)

    def __call__(self, items: Sequence[str], wanted: Wanted) -> list[bytes]:
        return [self._explained(item, partial(wanted, i)) for i, item in enumerate(items)]

    def _explained(self, text: str, wanted: Callable[[], bool]) -> bytes:
        translator, vocabulary = self.model.translator, self.model.translator.vocabulary
        self._require_short("q", source := vocabulary.encode([text])[0])
        translation = self.translation
        if translation is None:
            (best,) = translator.translations([text], n_best=1, wanted=lambda _: wanted())
            translation = best[0].text if best else ""
        if not wanted():
            return b""
        self._require_short("translation", target := vocabulary.encode_target([translation])[0])
        seen = as_read(source, self.model.transformer.settings)
        with within_memory("for an explanation: give a shorter sentence"):
            found = explain(self.model.transformer, seen, [BEGIN, *target])
        layers: list[Attention] = getattr(found, self.stack)
        # The decoder reads a token and writes the next one, which is what it looks around for.
        read, written = [BEGIN, *target], [*target, END]
        queries, keys = {
            "encoder": (seen, seen),
            "decoder": (read, read),
            "cross": (written, seen),
        }[self.stack]
        answer = {
            "model": self.model.name,
            "translation": translation,
            "stack": self.stack,
            "queries": vocabulary.pieces(queries),
            "keys": vocabulary.pieces(keys),
            "query_words": self._words(queries),
            "key_words": self._words(keys),
            "max_distance": found.max_distance,
            "layers": [
                [_head(layer, number) for number in range(len(layer.weights))] for layer in layers
            ],
        }
        return json.dumps(answer, ensure_ascii=False).encode()

    def _require_short(self, name: str, tokens: Tokens) -> None:
        if len(tokens) > self.tokens:
            raise ArgumentError(
                f"{name} must have at most {self.tokens} tokens to be explained; it has "
                f"{len(tokens):,}: give a shorter sentence"
            )

    def _words(self, tokens: Tokens) -> list[int]:
        """Which word each token is of; -1: begin and end, which are of none."""
        inner = [token for token in tokens if token not in (BEGIN, END)]
        numbers = iter(word_numbers(self.model.translator.vocabulary.pieces(inner)))
        return [-1 if token in (BEGIN, END) else next(numbers, -1) for token in tokens]


@dataclass(frozen=True)
class Tabulating(_Alone):
    """The tables of relative positions of a layer, a `TablesAnswer` as JSON."""

    stack: Literal["encoder", "decoder"] = "encoder"
    layer: int = 1

    def __call__(self, items: Sequence[str], wanted: Wanted) -> list[bytes]:
        model = self.model.transformer
        layer = (model.encoder if self.stack == "encoder" else model.decoder)[self.layer - 1]
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        attention = layer.attention
        k = attention.max_distance or 0
        tables = {
            name: None if table is None else _numbers(table.view(-1, *table.shape[-2:]))
            for name, table in (("keys", attention.key_table), ("values", attention.value_table))
        }
        answer = {"distances": [*range(-k, k + 1)], "shared": not attention.per_head, **tables}
        return [json.dumps(answer).encode() for _ in items]


def _head(layer: Attention, number: int) -> dict[str, object]:
    return {
        "weights": _numbers(layer.weights[number]),
        "content": _numbers(layer.content[number]),
        "position": None if layer.relation is None else _numbers(layer.relation[number]),
    }


def _numbers(values: Float[Tensor, "*n"]) -> object:
    """As lists; rounded as float64, which then writes few digits."""
    return values.detach().double().cpu().round(decimals=DECIMALS).tolist()
