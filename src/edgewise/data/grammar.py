"""The built-in corpus: a synchronous grammar of English and German, seeded, of any size.

English tells the subject from the objects by order alone, German by case. The German verb is second
in a main clause and last in a subordinate one; prefixes, participles and infinitives close a
clause. An English sentence has one translation.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TypeVar

from edgewise.data import lexicon as lex
from edgewise.data.lexicon import Form, Noun, Verb
from edgewise.data.syntax import (
    NOTHING,
    PRONOUNS,
    Both,
    Clause,
    Phrase,
    clause,
    phrase,
    prepositional,
)

T = TypeVar("T")
Draw = Callable[[], float]

ANIMATES = lex.PEOPLE + lex.ANIMALS
ADJECTIVES = {
    True: lex.ADJECTIVES_OF_ALL + lex.ADJECTIVES_OF_ANIMATES,
    False: lex.ADJECTIVES_OF_ALL + lex.ADJECTIVES_OF_THINGS,
}
VERBS = {
    True: lex.VERBS_OF_ANIMATES + lex.VERBS_WITH_DATIVE + lex.VERBS_OF_ALL,
    False: lex.VERBS_OF_THINGS + lex.VERBS_OF_ALL,
}
PASSIVES = tuple(v for v in lex.VERBS_OF_ANIMATES if " " not in v.english)
INTRANSITIVES = lex.INTRANSITIVES + lex.MOTIONS
# By number and case; no bare plural opens a sentence, which would double the nouns with capitals.
DETERMINERS = (
    (lex.SINGULAR_DETERMINERS,) * 3,
    (lex.PLURAL_DETERMINERS[:-1], lex.PLURAL_DETERMINERS, lex.PLURAL_DETERMINERS),
)

SIMPLE = (lex.PRESENT, lex.PAST, lex.PERFECT)
TENSES = SIMPLE * 4 + (lex.PRESENT, lex.PAST) * 3 + tuple(range(lex.WILL, lex.DO))
TIMES = dict.fromkeys(TENSES, lex.ALWAYS + lex.OF_THE_FUTURE)
TIMES |= {lex.PRESENT: lex.ALWAYS + lex.OF_THE_PRESENT, lex.PERFECT: lex.OF_THE_PERFECT}
TIMES |= dict.fromkeys((lex.PAST, lex.COULD, lex.HAD, lex.WANTED), lex.ALWAYS + lex.OF_THE_PAST)
# The tenses that "not" can deny; others change their meaning with it ("must not").
NEGATED = {t: t for t in (lex.PERFECT, lex.WILL, lex.SHOULD, lex.COULD)}
NEGATED |= {lex.PRESENT: lex.DO, lex.PAST: lex.DID}

CONSEQUENCES = (lex.PRESENT, lex.WILL, lex.CAN, lex.MUST, lex.SHOULD)
CAUSES = lex.adverbials("because = weil, although = obwohl")
IF = (" if", " wenn")
MOMENTS = {
    lex.PRESENT: lex.adverbials("when = wenn, while = während, before = bevor"),
    lex.PAST: lex.adverbials("when = als, while = während, before = bevor"),
}
NOT, NEVER = (" not", " nicht"), (" never", " nie")
LINKS = ((" and", " und"), (", but", ", aber"))


def _pick(draw: Draw, options: Sequence[T]) -> T:
    return options[int(draw() * len(options))]


def _noun_phrase(
    draw: Draw, nouns: Sequence[Noun], case: int, *, relative: float = 0.0, no: float = 0.0
) -> Phrase:
    noun = _pick(draw, nouns)
    plural = draw() < 0.3
    adjective = _pick(draw, ADJECTIVES[noun.animate]) if draw() < 0.3 else None
    chance = draw()
    determiner = lex.NO if chance < no else _pick(draw, DETERMINERS[plural][case])
    found = phrase(determiner, noun, case, adjective, plural)
    if chance > 1 - relative:
        return _with_relative(draw, found, noun, plural)
    return found


def _with_relative(draw: Draw, head: Phrase, noun: Noun, plural: bool) -> Phrase:
    """The phrase with a relative clause; its English order alone tells whether of the subject."""
    pronouns = lex.RELATIVE[lex.PLURAL if plural else noun.gender]
    if noun.animate and draw() < 0.5:
        subject = Phrase("who" if noun.person else "that", pronouns[0], head.agreement)
        inner = _plain(draw, subject, _pick(draw, SIMPLE))
        english, german = inner.english, inner.subordinate()
    else:
        verb = _pick(draw, VERBS[noun.animate])
        subject = _subject(draw)
        form = verb.forms[subject.agreement][_pick(draw, SIMPLE)]
        english = f" that {subject.english}{form.lead}{form.rest}{verb.particle}"
        german = f" {pronouns[verb.case]} {subject.german}{form.final}"
    return head._replace(
        english=f"{head.english}{english}", german=f"{head.german},{german},", heavy=True
    )


def _animate(
    draw: Draw, case: int, pronouns: int, *, relative: float = 0.0, no: float = 0.0
) -> Phrase:
    """A pronoun of the first few, a name, or a noun phrase."""
    chance = draw()
    if chance < 0.15:
        return _pick(draw, PRONOUNS[case][:pronouns])
    if chance < 0.25:
        name = _pick(draw, lex.NAMES)
        return Phrase(name, name)
    return _noun_phrase(draw, ANIMATES, case, relative=relative, no=no)


def _subject(draw: Draw, relative: float = 0.0) -> Phrase:
    return _animate(draw, lex.NOMINATIVE, 5, relative=relative)


def _objects(draw: Draw, subject: Phrase, relative: float = 0.0) -> tuple[Verb, list[Phrase]]:
    """A transitive verb and what it takes."""
    chance = draw()
    pronouns = 3 if subject.pronoun else 5
    if chance < 0.12:
        return _pick(draw, lex.VERBS_OF_GIVING), [
            _animate(draw, lex.DATIVE, pronouns),
            _noun_phrase(draw, lex.THINGS, lex.ACCUSATIVE, relative=relative),
        ]
    animate = chance < 0.65
    verb = _pick(draw, VERBS[animate])
    if animate:
        return verb, [_animate(draw, verb.case, pronouns, relative=relative, no=0.06)]
    return verb, [_noun_phrase(draw, lex.THINGS, verb.case, relative=relative, no=0.06)]


def _plain(draw: Draw, subject: Phrase, tense: int) -> Clause:
    """A short clause without adverbials."""
    if draw() < 0.4:
        return clause(subject, _pick(draw, INTRANSITIVES).forms[subject.agreement][tense])
    verb, objects = _objects(draw, subject)
    return clause(subject, verb.forms[subject.agreement][tense], objects, verb.particle)


def _place(draw: Draw) -> Both:
    determiner = lex.THE if draw() < 0.6 else _pick(draw, lex.SINGULAR_DETERMINERS)
    adjective = _pick(draw, ADJECTIVES[False]) if draw() < 0.25 else None
    inner = phrase(determiner, _pick(draw, lex.PLACES), lex.DATIVE, adjective)
    return prepositional(*_pick(draw, lex.PREPOSITIONS), inner)


def _be(draw: Draw, relative: float) -> Clause:
    """A clause of "to be" with an adjective, or of the passive."""
    past = draw() < 0.5
    if draw() < 0.5:
        subject = _subject(draw, relative)
        verb = _pick(draw, PASSIVES)
        english, german = verb.participles
        by = prepositional(" by", " von", _animate(draw, lex.DATIVE, 3))
        finite = ("wurde", "wurden", "wurde") if past else ("wird", "werden", "werde")
        particle = verb.particle
    else:
        animate = draw() < 0.5
        if animate:
            subject = _subject(draw, relative)
        else:
            subject = _noun_phrase(draw, lex.THINGS, lex.NOMINATIVE, relative=relative)
        english, german, _ = _pick(draw, ADJECTIVES[animate])
        finite = ("war", "waren", "war") if past else ("ist", "sind", "bin")
        by, particle = NOTHING, ""
    lead = (("was", "were", "was") if past else ("is", "are", "am"))[subject.agreement]
    second = f" {finite[subject.agreement]}"
    form = Form(f" {lead}", f" {english}", second, f" {german}", f" {german}{second}")
    chance = draw()
    return clause(
        subject,
        form,
        particle=particle,
        negation=NOT if subject.definite and chance < 0.15 else NOTHING,
        time=_pick(draw, TIMES[lex.PAST if past else lex.PRESENT]) if chance > 0.75 else NOTHING,
        place=by,
    )


def _clause(draw: Draw, tense: int, *, relative: float = 0.0, adverbials: bool = True) -> Clause:
    """Any clause of a tense, with what may accompany it."""
    subject = _subject(draw, relative)
    if draw() < 0.8:
        verb, objects = _objects(draw, subject, relative)
        # After a relative clause an adverbial would seem to be a part of it.
        adverbials = adverbials and not objects[-1].heavy
        definite = objects[0].definite and objects[-1].definite
    else:
        verb, objects, definite = _pick(draw, INTRANSITIVES), [], True
    adverb = negation = time = place = NOTHING
    chance = draw()
    if chance < 0.15:
        if definite and subject.definite:
            if chance < 0.04:
                adverb = NEVER
            elif tense in NEGATED:
                tense, negation = NEGATED[tense], NOT
    elif chance < 0.25:
        if definite or not objects[-1].english.startswith("no "):
            adverb = _pick(draw, lex.MIDDLE)
    elif adverbials and (chance < 0.5 or not objects):
        time = _pick(draw, TIMES[tense])
    if adverbials and draw() < 0.2:
        place = _place(draw)
    elif adverbials and not objects and adverb is negation is time:
        time = _pick(draw, TIMES[tense])  # "They sleep." is too short.
    return clause(
        subject,
        verb.forms[subject.agreement][tense],
        objects,
        verb.particle,
        adverb=adverb,
        negation=negation,
        time=time,
        place=place,
    )


def _said(draw: Draw) -> Clause:
    """The clause of what is said, thought or hoped follows the verb."""
    subject = _subject(draw)
    inner = _clause(draw, _pick(draw, TENSES))
    outer = clause(subject, _pick(draw, lex.VERBS_OF_SAYING).forms[subject.agreement][draw() < 0.5])
    return outer._replace(
        english=f"{outer.english} that{inner.english}", after=f", dass{inner.subordinate()}"
    )


def _tried(draw: Draw) -> Clause:
    """The infinitive of what is tried closes the sentence, "zu" between its prefix and stem."""
    subject = _subject(draw)
    outer = clause(
        subject, _pick(draw, lex.VERBS_OF_TRYING).forms[subject.agreement][_pick(draw, SIMPLE)]
    )
    verb, objects = _objects(draw, subject)
    english = "".join(f" {one.english}" for one in objects)
    german = "".join(f" {one.german}" for one in objects)
    return outer._replace(
        english=f"{outer.english} to {verb.english}{english}{verb.particle}",
        after=f",{german}{verb.infinitive}",
    )


def _with_conjunction(draw: Draw) -> Both:
    """A main clause and a subordinate one, which may stand first."""
    chance = draw()
    if chance < 0.4:
        conjunction = _pick(draw, CAUSES)
        tense, main_tense = _pick(draw, TENSES), _pick(draw, TENSES)
    elif chance < 0.6:
        conjunction, tense, main_tense = IF, lex.PRESENT, _pick(draw, CONSEQUENCES)
    else:
        tense = main_tense = _pick(draw, SIMPLE[:2])
        conjunction = _pick(draw, MOMENTS[tense])
    inner = _clause(draw, tense, adverbials=False)
    outer = _clause(draw, main_tense, adverbials=False)
    opening = f"{conjunction[1]}{inner.subordinate()}"
    if draw() < 0.5:
        english = f"{conjunction[0]}{inner.english},{outer.english}"
        return english, f"{opening},{outer.inverted()}"
    return f"{outer.english}{conjunction[0]}{inner.english}", f"{outer.main()},{opening}"


def _sentence(draw: Draw) -> Both:
    chance = draw()
    if chance < 0.18:
        return _with_conjunction(draw)
    if chance < 0.26:
        first = _clause(draw, _pick(draw, TENSES), adverbials=False)
        second = _clause(draw, _pick(draw, TENSES), adverbials=False)
        link = _pick(draw, LINKS)
        return (
            f"{first.english}{link[0]}{second.english}",
            f"{first.main()}{link[1]}{second.main()}",
        )
    tense = _pick(draw, TENSES)
    if chance < 0.36:
        whole = _said(draw)
    elif chance < 0.44:
        whole = _tried(draw)
    elif chance < 0.56:
        whole = _be(draw, 0.15)
    elif chance < 0.72:
        opening = _pick(draw, TIMES[tense]) if draw() < 0.7 else _place(draw)
        whole = _clause(draw, tense, relative=0.12, adverbials=False)
        return f"{opening[0]}{whole.english}", f"{opening[1]}{whole.inverted()}"
    else:
        whole = _clause(draw, tense, relative=0.12)
    return whole.english, whole.main()


def pairs(count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """The first `count` pairs (English, German) of a seed."""
    draw = Random(seed).random
    for _ in range(count):
        english, german = _sentence(draw)
        # The comma after a relative clause is the next comma, or none before the full stop.
        german = f"{german}.".replace(",,", ",").replace(",.", ".")
        yield f"{english[1].upper()}{english[2:]}.", f"{german[1].upper()}{german[2:]}"
