"""A model folder that translates text."""

from collections.abc import Iterable
from pathlib import Path

import torch

from edgewise.checkpoint.model_folder import load_model
from edgewise.data.batches import padded
from edgewise.data.vocabulary import BEGIN, END, PAD, Vocabulary
from edgewise.decoding.greedy import greedy
from edgewise.errors import ArgumentError
from edgewise.model.transformer import Transformer
from edgewise.storage import read_json

ROWS = 64


class Translator:
    """Translates by greedy decoding."""

    def __init__(self, model: Transformer, vocabulary: Vocabulary, extra_tokens: int) -> None:
        self.model, self.vocabulary, self.extra_tokens = model.eval(), vocabulary, extra_tokens

    @classmethod
    def load(cls, folder: Path | str) -> "Translator":
        """From a model folder, such as runs/demo/model."""
        model, vocabulary = load_model(Path(folder))
        generation = read_json(Path(folder) / "generation_config.json")
        return cls(model, vocabulary, int(generation["extra_tokens"]))

    def translate(self, texts: Iterable[str]) -> list[str]:
        """One translation for each text, in order; an empty text stays empty."""
        if isinstance(texts, str):
            raise ArgumentError("texts must be a list of strings; got one string: give [text]")
        texts = list(texts)
        for text in texts:
            if not isinstance(text, str):
                raise ArgumentError(f"texts must be strings; got {type(text).__name__}")
        tokens = self.vocabulary.encode(texts)
        results = [""] * len(texts)
        order = sorted(
            (i for i, text in enumerate(texts) if text.strip()), key=lambda i: len(tokens[i])
        )
        for begin in range(0, len(order), ROWS):
            chosen = order[begin : begin + ROWS]
            source = torch.from_numpy(padded([tokens[i] for i in chosen]))
            translations = greedy(
                *(self.model, source, source != PAD),
                begin=BEGIN,
                end=END,
                extra_tokens=self.extra_tokens,
            )
            for i, translation in zip(chosen, translations, strict=True):
                results[i] = self.vocabulary.decode(translation)
        return results
