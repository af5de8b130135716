"""Phrases and clauses in both languages at once, their words in agreement and in order."""

from collections.abc import Sequence
from typing import NamedTuple

from edgewise.data import lexicon as lex
from edgewise.data.lexicon import Adjective, Form, Noun

Both = tuple[str, str]  # English and German, each with the space before it.
NOTHING: Both = ("", "")


class Phrase(NamedTuple):
    """A noun phrase in a case; `heavy` if it ends in a relative clause."""

    english: str
    german: str
    agreement: int = lex.THIRD
    definite: bool = True
    pronoun: bool = False
    heavy: bool = False


class Clause(NamedTuple):
    """A clause; all pieces with the space before them. `after` follows the German verb."""

    english: str
    subject: str
    finite: str
    middle: str
    closing: str
    final: str
    after: str = ""

    def main(self) -> str:
        """The verb second, after the subject."""
        return f"{self.subject}{self.finite}{self.middle}{self.closing}{self.after}"

    def inverted(self) -> str:
        """The verb second, where something else stands before it."""
        return f"{self.finite}{self.subject}{self.middle}{self.closing}{self.after}"

    def subordinate(self) -> str:
        """The verb last."""
        return f"{self.subject}{self.middle}{self.final}{self.after}"


# By case; "me" and "us" are last: after "I" and "we" they would be reflexive.
PRONOUNS = (
    tuple(
        Phrase(english, german, agreement, pronoun=True)
        for english, german, agreement in (
            ("he", "er", lex.THIRD), ("she", "sie", lex.THIRD), ("they", "sie", lex.MANY),
            ("I", "ich", lex.FIRST), ("we", "wir", lex.MANY),
        )
    ),
    *(
        tuple(
            Phrase(english, german, pronoun=True)
            for english, german in zip(("him", "her", "them", "me", "us"), words, strict=True)
        )
        for words in (("ihn", "sie", "sie", "mich", "uns"), ("ihm", "ihr", "ihnen", "mir", "uns"))
    ),
)  # fmt: skip


def phrase(
    determiner: lex.Determiner,
    noun: Noun,
    case: int,
    adjective: Adjective | None = None,
    plural: bool = False,
) -> Phrase:
    """A noun phrase, its German words in agreement."""
    gender = lex.PLURAL if plural else noun.gender
    english, german = noun.english[plural], noun.german[plural][case]
    if adjective is not None:
        english = f"{adjective.english} {english}"
        german = f"{adjective.stem}{determiner.endings[gender][case]} {german}"
    article = "an " if determiner is lex.A and english[0] in "aeiou" else determiner.english
    return Phrase(
        f"{article}{english}",
        f"{determiner.german[gender][case]}{german}",
        lex.MANY if plural else lex.THIRD,
        determiner.definite,
    )


def prepositional(english: str, german: str, inner: Phrase) -> Both:
    """A preposition with a phrase in the dative."""
    german = f"{german} {inner.german}"
    if german.startswith((" in dem ", " von dem ")):
        german = german.replace("n dem", "m", 1)
    return f"{english} {inner.english}", german


def clause(
    subject: Phrase,
    form: Form,
    objects: Sequence[Phrase] = (),
    particle: str = "",
    *,
    adverb: Both = NOTHING,
    negation: Both = NOTHING,
    time: Both = NOTHING,
    place: Both = NOTHING,
) -> Clause:
    """A clause of its parts. `adverb` stands before the English verb, `time` after the objects; in
    German pronouns come before both, other definite objects before `adverb` and negation."""
    english = pronouns = nouns = ""
    definite = True
    for one in objects:
        english += f" {one.english}"
        definite = definite and one.definite
        if one.pronoun:
            pronouns += f" {one.german}"
        else:
            nouns += f" {one.german}"
    english = f"{particle}{english}" if objects and objects[-1].heavy else f"{english}{particle}"
    nouns = f"{nouns}{adverb[1]}" if definite else f"{adverb[1]}{nouns}"
    return Clause(
        f" {subject.english}{form.lead}{adverb[0]}{negation[0]}{form.rest}{english}"
        f"{place[0]}{time[0]}",
        f" {subject.german}",
        form.finite,
        f"{pronouns}{time[1]}{nouns}{negation[1]}{place[1]}",
        form.closing,
        form.final,
    )
