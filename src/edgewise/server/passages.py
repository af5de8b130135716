"""Texts as sentences, which is what models know, and what stands between them, which stays."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from edgewise.server.markup import texts_between_tags

# After a sentence's end and its closing quotes comes white space, then what can begin a sentence.
# Nothing is tried twice (++, *+): a line of points takes no longer than another.
_END = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(\s++)(?=[\"'“‘«(\[¿¡]*+[^\Wa-z_ß-öø-ÿ])|[。！？]()(?=\S)"
)
# What ends with a point and goes on: titles, initials, numbers of days, and such.
_GOES_ON = re.compile(
    r"(?:^|[\s(\"'“‘«])(?:[A-Za-z]|\d{1,2}|Mr|Mrs|Ms|Mme|Mlle|Hr|Fr|Dr|Prof|Rev|Gen|Sen|St|Nr|vs"
    r"|ca|bzw|z\.B|d\.h|u\.a|e\.g|i\.e)\.$"
)


@dataclass(frozen=True)
class Sentence:
    """A sentence of one of several texts."""

    text: int
    before: str  # what stands between the sentence before and this one
    source: str


@dataclass(frozen=True)
class Passages:
    """Texts taken apart."""

    sentences: list[Sentence]
    tails: list[str]  # what stands after the last sentence of each text
    markup: bool

    @classmethod
    def of(cls, texts: Sequence[str], *, markup: bool = False) -> "Passages":
        """markup: the texts are HTML, of which only what people read is translated."""
        sentences, tails = [], []
        for number, text in enumerate(texts):
            parts = texts_between_tags(text) if markup else [(text, True)]
            before = ""
            for part, is_text in parts:
                if not is_text:
                    before += part
                    continue
                for space, source in split(part):
                    before += escape(space, quote=False) if markup else space
                    if source:
                        sentences.append(Sentence(number, before, source))
                        before = ""
            tails.append(before)
        return cls(sentences, tails, markup)

    def written(self, translation: str) -> str:
        """A translation as it stands in the text."""
        return escape(translation, quote=False) if self.markup else translation

    def joined(self, translations: Sequence[str]) -> list[str]:
        """The texts with a translation in the place of each sentence."""
        texts = [""] * len(self.tails)
        for sentence, translation in zip(self.sentences, translations, strict=True):
            texts[sentence.text] += sentence.before + self.written(translation)
        return [text + tail for text, tail in zip(texts, self.tails, strict=True)]


def split(text: str) -> list[tuple[str, str]]:
    """Pairs of white space and the sentence after it, which is empty at the end: all of the text.

    Lines are sentences of their own.
    """
    parts: list[tuple[str, str]] = []
    space = ""
    for line in re.split(r"(\n)", text):
        begin = 0
        for end in [*_ends(line), len(line)]:
            piece = line[begin:end]
            sentence = piece.strip()
            if sentence:
                at = piece.index(sentence)
                parts.append((space + piece[:at], sentence))
                space = piece[at + len(sentence) :]
            else:
                space += piece
            begin = end
    return [*parts, (space, "")]


def _ends(line: str) -> list[int]:
    """Where sentences of a line end."""
    ends = []
    for match in _END.finditer(line):
        end = match.start(1) if match[1] is not None else match.end()
        if not _GOES_ON.search(line[max(0, end - 12) : end]):
            ends.append(end)
    return ends
