"""The built-in corpus: what its sentences say, by hand, and what holds for all of them."""

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice

import pytest

from edgewise.data import grammar, lexicon
from edgewise.data.grammar import pairs
from edgewise.data.lexicon import ACCUSATIVE, DATIVE, NOMINATIVE, PAST, PERFECT, PRESENT, WILL
from edgewise.data.syntax import Phrase, clause, phrase

pytestmark = pytest.mark.unhooked  # no shapes here, and the hook is ten times slower

NOUNS = {
    noun.english[0]: noun
    for noun in (*lexicon.PEOPLE, *lexicon.ANIMALS, *lexicon.THINGS, *lexicon.PLACES)
}
ADJECTIVES = {
    adjective.english: adjective
    for adjective in (*grammar.ADJECTIVES[True], *grammar.ADJECTIVES[False])
}
WITH_ACCUSATIVE = (*lexicon.VERBS_OF_ANIMATES, *lexicon.VERBS_OF_THINGS, *lexicon.VERBS_OF_ALL)
INNER_VERBS = (
    *(*WITH_ACCUSATIVE, *lexicon.VERBS_WITH_DATIVE),
    *(*lexicon.VERBS_OF_GIVING, *grammar.INTRANSITIVES),
)
ALL_VERBS = (*INNER_VERBS, *lexicon.VERBS_OF_SAYING, *lexicon.VERBS_OF_TRYING)
VERBS = {verb.english + verb.particle: verb for verb in ALL_VERBS}
SUBORDINATE = r"\b([Dd]ass|[Ww]eil|[Oo]bwohl|[Ww]enn|[Aa]ls|[Ww]ährend|[Bb]evor) "


@pytest.fixture(scope="module")
def corpus() -> list[tuple[str, str]]:
    return list(pairs(100_000))


def the(noun: str, case: int = NOMINATIVE, adjective: str | None = None) -> Phrase:
    return phrase(lexicon.THE, NOUNS[noun], case, ADJECTIVES[adjective] if adjective else None)


def built(subject: Phrase, verb: str, tense: int, *objects: Phrase) -> grammar.Clause:
    word = VERBS[verb]
    return clause(subject, word.forms[subject.agreement][tense], objects, word.particle)


def test_a_seed_gives_the_same_pairs() -> None:
    assert list(pairs(50, seed=3)) == list(pairs(50, seed=3))


def test_a_prefix_of_more_pairs_is_fewer_pairs() -> None:
    assert list(islice(pairs(1000), 10)) == list(pairs(10))


def test_no_pairs_are_none() -> None:
    assert list(pairs(0)) == []


def test_another_seed_gives_other_pairs() -> None:
    assert not set(pairs(20, seed=0)) & set(pairs(20, seed=1))


def ambiguous(corpus: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    translations = defaultdict(set)
    for english, german in corpus:
        translations[english].add(german)
    return {english: each for english, each in translations.items() if len(each) > 1}


def test_an_english_sentence_has_one_translation(corpus: list[tuple[str, str]]) -> None:
    assert ambiguous(corpus) == {}


def test_few_words_that_repeat_all_constructions_have_one_translation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Whole sentences seldom repeat in the corpus; of few words they do.
    her = lexicon.SINGULAR_DETERMINERS[-3]
    few = {
        "ANIMATES": (NOUNS["man"], NOUNS["cat"]),
        "VERBS": dict.fromkeys((True, False), (VERBS["see"], VERBS["bring back"])),
        "INTRANSITIVES": (VERBS["arrive"],),
        "ADJECTIVES": dict.fromkeys((True, False), (ADJECTIVES["old"],)),
        # "Her" is a determiner and a pronoun: "she brings her cups".
        "DETERMINERS": (((lexicon.THE, her),) * 3, ((lexicon.PLURAL_DETERMINERS[-1], her),) * 3),
        "TENSES": grammar.SIMPLE,
        "TIMES": {tense: times[:1] for tense, times in grammar.TIMES.items()},
    }
    few_of_lexicon = {
        "THINGS": (NOUNS["cup"],),
        "PLACES": (NOUNS["garden"],),
        "NAMES": ("Anna",),
        "PREPOSITIONS": lexicon.PREPOSITIONS[:1],
        "MIDDLE": lexicon.MIDDLE[:1],
        "VERBS_OF_GIVING": (VERBS["bring"],),
    }
    for module, words in ((grammar, few), (lexicon, few_of_lexicon)):
        for name, value in words.items():
            monkeypatch.setattr(module, name, value)
    few_words = list(pairs(100_000))
    assert len(set(few_words)) < 0.8 * len(few_words)
    assert ambiguous(few_words) == {}


def test_when_is_als_in_the_past_only(corpus: list[tuple[str, str]]) -> None:
    found = {"Wenn": 0, "Als": 0}
    tenses = {"Wenn": PRESENT, "Als": PAST}
    for english, german in corpus:
        if english.startswith("When "):
            word = german.split()[0]
            found[word] += 1
            verb = german[: german.index(",")].split()[-1]
            assert any(
                forms[tenses[word]].final == f" {verb}" for v in INNER_VERBS for forms in v.forms
            ), german
    assert min(found.values()) > 100


def test_order_alone_tells_the_subject_from_the_object() -> None:
    one = built(the("man"), "see", PAST, the("dog", ACCUSATIVE))
    other = built(the("dog"), "see", PAST, the("man", ACCUSATIVE))
    assert one.english == " the man saw the dog"
    assert sorted(one.english.split()) == sorted(other.english.split())
    assert one.main() == " der Mann sah den Hund"
    assert other.main() == " der Hund sah den Mann"


def test_roles_in_the_corpus_follow_english_order(corpus: list[tuple[str, str]]) -> None:
    masculine = {n.english[0]: n.german[0] for n in grammar.ANIMATES if n.gender == 0}
    # Without those that, with two objects, give.
    plain = [v for v in WITH_ACCUSATIVE if not v.particle]
    verbs = "|".join(v.forms[0][tense].rest for v in plain for tense in (PRESENT, PAST))
    names = "|".join(masculine)
    found = 0
    for english, german in corpus:
        if match := re.fullmatch(rf"The (?:\w+ )?({names})({verbs}) the ({names})\b.*", english):
            found += 1
            subject, object_ = masculine[match[1]][NOMINATIVE], masculine[match[3]][ACCUSATIVE]
            assert re.match(rf"Der (\w+ )?{subject} .*\bden {object_}\b", german), english
    assert found > 10


@pytest.mark.parametrize(
    ("determiner", "noun", "case", "adjective", "plural", "expected"),
    [
        (lexicon.THE, "man", NOMINATIVE, "old", False, "the old man = der alte Mann"),
        (lexicon.THE, "man", ACCUSATIVE, "old", False, "the old man = den alten Mann"),
        (lexicon.A, "man", NOMINATIVE, "old", False, "an old man = ein alter Mann"),
        (lexicon.A, "man", ACCUSATIVE, None, False, "a man = einen Mann"),
        (lexicon.A, "man", ACCUSATIVE, "old", False, "an old man = einen alten Mann"),
        (lexicon.A, "woman", ACCUSATIVE, "old", False, "an old woman = eine alte Frau"),
        (lexicon.NO, "woman", NOMINATIVE, "old", True, "no old women = keine alten Frauen"),
        (lexicon.A, "horse", ACCUSATIVE, "tired", False, "a tired horse = ein müdes Pferd"),
        (lexicon.A, "horse", DATIVE, "tired", False, "a tired horse = einem müden Pferd"),
        (lexicon.THE, "woman", DATIVE, "sad", False, "the sad woman = der traurigen Frau"),
        (lexicon.A, "apple", NOMINATIVE, None, False, "an apple = ein Apfel"),
        (lexicon.THE, "boy", ACCUSATIVE, None, False, "the boy = den Jungen"),
        (lexicon.THE, "student", DATIVE, None, False, "the student = dem Studenten"),
        (lexicon.NO, "book", ACCUSATIVE, "dark", False, "no dark book = kein dunkles Buch"),
        (lexicon.THE, "mouse", NOMINATIVE, "big", True, "the big mice = die großen Mäuse"),
        (lexicon.THE, "child", DATIVE, None, True, "the children = den Kindern"),
        (lexicon.PLURAL_DETERMINERS[-1], "dog", ACCUSATIVE, "old", True, "old dogs = alte Hunde"),
        (lexicon.PLURAL_DETERMINERS[-1], "car", DATIVE, "old", True, "old cars = alten Autos"),
    ],
)
def test_articles_and_adjectives_agree(
    determiner: lexicon.Determiner,
    noun: str,
    case: int,
    adjective: str | None,
    plural: bool,
    expected: str,
) -> None:
    made = phrase(
        determiner, NOUNS[noun], case, ADJECTIVES[adjective] if adjective else None, plural
    )
    assert f"{made.english} = {made.german}" == expected


@pytest.mark.parametrize(
    ("tense", "english", "main", "inverted", "subordinate"),
    [
        (PRESENT, "calls the boy up", "{} ruft {} an", "ruft {} {} an", "{} {} anruft"),
        (PAST, "called the boy up", "{} rief {} an", "rief {} {} an", "{} {} anrief"),
        (
            *(PERFECT, "has called the boy up"),
            *("{} hat {} angerufen", "hat {} {} angerufen", "{} {} angerufen hat"),
        ),
        (
            *(WILL, "will call the boy up"),
            *("{} wird {} anrufen", "wird {} {} anrufen", "{} {} anrufen wird"),
        ),
    ],
)
def test_the_verb_is_second_or_last_and_its_prefix_separates(
    tense: int, english: str, main: str, inverted: str, subordinate: str
) -> None:
    made = built(the("woman"), "call up", tense, the("boy", ACCUSATIVE))
    assert made.english == f" the woman {english}"
    phrases = ("die Frau", "den Jungen")
    assert made.main() == f" {main.format(*phrases)}"
    assert made.inverted() == f" {inverted.format(*phrases)}"
    assert made.subordinate() == f" {subordinate.format(*phrases)}"


@pytest.mark.parametrize(
    ("parts", "english", "german"),
    [
        ({"time": 0}, "saw the dog today", "sah heute den Hund"),
        ({"adverb": 0}, "often saw the dog", "sah den Hund oft"),
        ({"adverb": 0, "object": "a"}, "often saw a dog", "sah oft einen Hund"),
        ({"time": 0, "object": "him"}, "saw him today", "sah ihn heute"),
        ({"place": 0}, "saw the dog in the garden", "sah den Hund im Garten"),
    ],
)
def test_adverbials_have_their_place(parts: dict[str, object], english: str, german: str) -> None:
    objects = {
        "a": phrase(lexicon.A, NOUNS["dog"], ACCUSATIVE),
        "him": grammar.PRONOUNS[ACCUSATIVE][0],
    }
    adverbials = {
        "time": (" today", " heute"),
        "adverb": (" often", " oft"),
        "place": grammar.prepositional(" in", " in", the("garden", DATIVE)),
    }
    made = clause(
        the("man"),
        VERBS["see"].forms[0][PAST],
        [objects.get(str(parts.get("object")), the("dog", ACCUSATIVE))],
        **{name: adverbials[name] for name in parts if name != "object"},
    )
    assert (made.english, made.main()) == (f" the man {english}", f" der Mann {german}")


def test_no_adverbial_follows_the_relative_clause_of_an_object(
    corpus: list[tuple[str, str]],
) -> None:
    # It would seem to be a part of it.
    times = tuple(f"{english}." for english, _ in grammar.TIMES[PAST])
    found = 0
    for english, _ in corpus:
        if re.match(r"\w+ (\w+ )?(found|bit|caught|met|lost|held) (\w+ ){1,3}(who|that) ", english):
            found += 1
            assert not english.endswith(times), english
    assert found > 50


def test_zu_stands_between_prefix_and_stem() -> None:
    assert VERBS["call up"].infinitive == " anzurufen"
    assert VERBS["visit"].infinitive == " zu besuchen"


def test_verbs_of_motion_take_sein() -> None:
    assert built(the("woman"), "arrive", PERFECT).main() == " die Frau ist angekommen"
    assert built(the("woman"), "laugh", PERFECT).main() == " die Frau hat gelacht"


def test_german_in_and_von_contract_with_dem_only() -> None:
    def within(noun: str) -> str:
        return grammar.prepositional(" in", " in", the(noun, DATIVE))[1]

    assert (within("garden"), within("school")) == (" im Garten", " in der Schule")
    assert grammar.prepositional(" by", " von", the("man", DATIVE))[1] == " vom Mann"


def test_the_past_differs_from_the_present(subtests: pytest.Subtests) -> None:
    # Else a plural subject would leave the tense open: "they read".
    for verb in ALL_VERBS:
        with subtests.test(verb.english):
            assert len({form.rest for form in verb.forms[1][:2]}) == 2


def test_the_verb_is_second_after_an_adverbial(corpus: list[tuple[str, str]]) -> None:
    finite = {form.finite.strip() for verb in ALL_VERBS for forms in verb.forms for form in forms}
    times = [t for tense in (PRESENT, PAST, PERFECT, WILL) for t in grammar.TIMES[tense]]
    openings = {english[1].upper() + english[2:]: german[1:] for english, german in times}
    found = 0
    for english, german in corpus:
        for opening, expected in openings.items():
            if english.startswith(f"{opening} "):
                found += 1
                assert german[0].lower() + german[1:] == expected + german[len(expected) :]
                assert german[len(expected) :].split()[0] in finite, german
    assert found > 1000


def test_the_verb_is_last_in_a_subordinate_clause(corpus: list[tuple[str, str]]) -> None:
    finals = {form.final for verb in INNER_VERBS for forms in verb.forms for form in forms}
    # One word, "anruft", or two, "angerufen hat".
    last = {tuple(final.split()) for final in finals}
    found = 0
    for _, german in corpus:
        # No relative clause stands within these.
        if match := re.search(SUBORDINATE + r"([^,.]*)[,.]", german):
            found += 1
            words = match[2].split()
            assert {tuple(words[-1:]), tuple(words[-2:])} & last, german
    assert found > 10_000


def test_a_separable_prefix_closes_the_main_clause(corpus: list[tuple[str, str]]) -> None:
    prefixes = {
        (form.rest.strip(), verb.particle.strip()): form.closing
        for verb in WITH_ACCUSATIVE
        for form in verb.forms[0][:2]
        if verb.particle
    }
    found = dict.fromkeys(prefixes.values(), 0)
    for english, german in corpus:
        words = english.rstrip(".").split()
        if 5 <= len(words) <= 7 and (words[2], words[-1]) in prefixes:
            prefix = prefixes[words[2], words[-1]]
            if words[1] not in {"has", "have", "can", "must", "will", "should", "may", "could"}:
                found[prefix] += 1
                assert german.endswith(f"{prefix}."), german
    assert min(found.values()) > 5


def test_relative_clauses_tell_subject_from_object_by_order(corpus: list[tuple[str, str]]) -> None:
    masculine = {n.english[0]: n.german[0][0] for n in lexicon.ANIMALS if n.gender == 0}
    names = "|".join(masculine)
    # A verb at once is of a subject, anything else before it is the subject of an object.
    forms = [form for verb in INNER_VERBS for form in verb.forms[0][:3]]
    verbs = {(form.lead or form.rest).split()[0] for form in forms}
    found = {"der": 0, "de[nm]": 0}
    for english, german in corpus:
        if match := re.match(rf"The (?:\w+ )?({names}) that (\w+)", english):
            pronoun = "der" if match[2] in verbs else "de[nm]"
            found[pronoun] += 1
            assert re.match(rf"Der (\w+ )?{masculine[match[1]]}, {pronoun} ", german), english
    assert min(found.values()) > 10


def test_sentences_are_of_3_to_25_words_and_about_9(corpus: list[tuple[str, str]]) -> None:
    for side in range(2):
        lengths = [len(pair[side].split()) for pair in corpus]
        assert min(lengths) >= 3
        assert max(lengths) <= 26
        assert 8 <= sum(lengths) / len(lengths) <= 12


def test_sentences_are_letters_commas_and_one_full_stop(corpus: list[tuple[str, str]]) -> None:
    english_form = re.compile(r"[A-Z][A-Za-z]*(,? [A-Za-z]+)*\.")
    german_form = re.compile(r"[A-ZÄÖÜ][A-Za-zÄÖÜäöüß]*(,? [A-Za-zÄÖÜäöüß]+)*\.")
    for english, german in corpus:
        assert english_form.fullmatch(english), english
        assert german_form.fullmatch(german), german


def test_german_nouns_alone_have_capitals(corpus: list[tuple[str, str]]) -> None:
    nouns = {form for noun in NOUNS.values() for forms in noun.german for form in forms}
    nouns |= {*lexicon.NAMES, "Morgen", "Abend", "Nacht", "Sonntag", "Montag"}
    nouns |= {"Tag", "Woche", "Jahr"}
    for _, german in corpus[:20_000]:
        for word in re.findall(r"\w+", german)[1:]:
            assert word[0].isupper() == (word in nouns), german
