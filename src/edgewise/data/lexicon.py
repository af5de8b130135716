"""The words of the built-in corpus, English and German, with all their forms.

Tables are text: entries end at a comma. Irregular forms follow a slash; `_` is a space in English;
`+` parts an English particle that follows the object, and a German prefix that separates.
"""

from typing import NamedTuple

NOMINATIVE, ACCUSATIVE, DATIVE = range(3)
PLURAL = 3  # After the three genders: masculine, feminine, neuter.
# What a verb agrees with: a third person, a plural, or "I".
THIRD, MANY, FIRST = range(3)

# English, its third person, whether adverbs follow it; German third person, plural, first person.
MODALS = (
    ("will", "will", True, "wird", "werden", "werde"),
    ("can", "can", True, "kann", "können", "kann"),
    ("must", "must", True, "muss", "müssen", "muss"),
    ("should", "should", True, "sollte", "sollten", "sollte"),
    ("may", "may", True, "darf", "dürfen", "darf"),
    ("want to", "wants to", False, "will", "wollen", "will"),
    ("could", "could", True, "konnte", "konnten", "konnte"),
    ("had to", "had to", False, "musste", "mussten", "musste"),
    ("wanted to", "wanted to", False, "wollte", "wollten", "wollte"),
)

# Tenses are numbers: these, then one a modal, then those that English denies with "do" and "did".
PRESENT, PAST, PERFECT, WILL, CAN, MUST, SHOULD, MAY, WANT, COULD, HAD, WANTED, DO, DID = range(14)


class Noun(NamedTuple):
    """A noun; its forms by number, the German ones by number and case."""

    english: tuple[str, str]
    german: tuple[tuple[str, str, str], tuple[str, str, str]]
    gender: int
    person: bool
    animate: bool


class Adjective(NamedTuple):
    """An adjective; German endings are added to the stem."""

    english: str
    german: str
    stem: str


class Form(NamedTuple):
    """A verb in one tense, each piece with the space before it.

    English adverbs and negation stand between `lead` and `rest`. In a German main clause `finite`
    is second and `closing` last; in a subordinate clause `final` is last and is the whole verb.
    """

    lead: str
    rest: str
    finite: str
    closing: str
    final: str


class Verb(NamedTuple):
    """A verb; `forms` by agreement and tense. A particle follows the English object."""

    english: str
    particle: str
    case: int
    infinitive: str
    participles: tuple[str, str]
    forms: tuple[tuple[Form, ...], ...]


def _entries(table: str) -> list[list[str]]:
    return [entry.split() for entry in table.split(",")]


def adverbials(table: str) -> tuple[tuple[str, str], ...]:
    """The pairs (English, German) of a table, each with the space before it."""
    pairs = (entry.split(" = ") for entry in " ".join(table.split()).split(", "))
    return tuple((f" {english}", f" {german}") for english, german in pairs)


def _add_s(word: str) -> str:
    if word.endswith(("s", "sh", "ch", "x")):
        return f"{word}es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}s"


def _noun(entry: list[str], person: bool, animate: bool) -> Noun:
    english, gender, german, plural = entry
    one, _, many = english.partition("/")
    nominative, _, oblique = german.partition("/")
    return Noun(
        (one, many or _add_s(one)),
        (
            (nominative, oblique or nominative, oblique or nominative),
            (plural, plural, plural if plural[-1] in "ns" else f"{plural}n"),
        ),
        "mfn".index(gender),
        person,
        animate,
    )


def nouns(table: str, *, person: bool = False, animate: bool = False) -> tuple[Noun, ...]:
    """The nouns of a table."""
    return tuple(_noun(entry, person, animate) for entry in _entries(table))


def adjectives(table: str) -> tuple[Adjective, ...]:
    """The adjectives of a table."""
    return tuple(
        Adjective(english, german.partition("/")[0], german.rpartition("/")[2])
        for english, german in _entries(table)
    )


def _english(entry: str) -> tuple[str, str, str, str]:
    """Base, third person, past and participle."""
    base, *irregular = entry.replace("_", " ").split("/")
    verb, space, rest = base.partition(" ")
    past = verb if verb.endswith("e") else f"{verb}e"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        past = f"{verb[:-1]}ie"
    past, participle = irregular or [f"{past}d{space}{rest}"] * 2
    return base, f"{_add_s(verb)}{space}{rest}", past, participle


def _german(entry: str) -> tuple[str, str, str, str, str]:
    """Infinitive, third person, preterite, participle and first person, without a prefix."""
    infinitive, *irregular = entry.split("/")
    stem = infinitive[:-2]
    if not irregular:
        joint = "e" if stem[-1] in "td" else ""
        ge = "" if stem.startswith(("be", "ver")) or stem.endswith("ier") else "ge"
        irregular = [f"{stem}{joint}t", f"{stem}{joint}te", f"{ge}{stem}{joint}t"]
    third, past, participle, first = [*irregular, f"{stem}e"][:4]
    return infinitive, third, past, participle, first


def _forms(agreement: int, english: str, german: str, prefix: str, moves: bool) -> tuple[Form, ...]:
    base, third, past, done = _english(english)
    infinitive, he, preterite, participle, first = _german(german)
    closing = f" {prefix}" if prefix else ""
    if agreement == MANY:
        preterite += "n" if preterite.endswith("e") else "en"

    def simple(lead: str, rest: str, finite: str) -> Form:
        return Form(lead, f" {rest}", f" {finite}", closing, f" {prefix}{finite}")

    def compound(lead: str, rest: str, finite: str, closing: str) -> Form:
        closing = f" {prefix}{closing}"
        return Form(lead, f" {rest}", f" {finite}", closing, f"{closing} {finite}")

    now = (he, infinitive, first)[agreement]
    auxiliary = (("ist", "sind", "bin") if moves else ("hat", "haben", "habe"))[agreement]
    has, does = (" has", " does") if agreement == THIRD else (" have", " do")
    modals = []
    for one, its_third, is_auxiliary, *finite in MODALS:
        modal = its_third if agreement == THIRD else one
        lead, rest = (f" {modal}", base) if is_auxiliary else ("", f"{modal} {base}")
        modals.append(compound(lead, rest, finite[agreement], infinitive))
    return (
        simple("", third if agreement == THIRD else base, now),
        simple("", past, preterite),
        compound(has, done, auxiliary, participle),
        *modals,
        simple(does, base, now),
        simple(" did", base, preterite),
    )


def verbs(table: str, *, case: int = ACCUSATIVE, moves: bool = False) -> tuple[Verb, ...]:
    """The verbs of a table, with the case of their object; the perfect of motion takes "sein"."""
    found = []
    for entry in _entries(table):
        english, _, particle = entry[0].partition("+")
        prefix, plus, german = entry[1].rpartition("+")
        done = _english(english)[3], prefix + _german(german)[3]
        zu = f" {prefix}zu{_german(german)[0]}" if plus else f" zu {_german(german)[0]}"
        forms = tuple(_forms(a, english, german, prefix, moves) for a in (THIRD, MANY, FIRST))
        particle = f" {particle}" if particle else ""
        found.append(Verb(_english(english)[0], particle, case, zu, done, forms))
    return tuple(found)


# English[/plural] gender German[/accusative and dative] German plural.
PEOPLE = nouns(
    """
man/men m Mann Männer, boy m Junge/Jungen Jungen, student m Student/Studenten Studenten,
teacher m Lehrer Lehrer, doctor m Arzt Ärzte, neighbour m Nachbar/Nachbarn Nachbarn,
farmer m Bauer/Bauern Bauern, baker m Bäcker Bäcker, king m König Könige, friend m Freund Freunde,
brother m Bruder Brüder, son m Sohn Söhne, father m Vater Väter, uncle m Onkel Onkel,
guest m Gast Gäste, thief/thieves m Dieb Diebe, hero/heroes m Held/Helden Helden,
woman/women f Frau Frauen, sister f Schwester Schwestern, daughter f Tochter Töchter,
mother f Mutter Mütter, aunt f Tante Tanten, queen f Königin Königinnen, witch f Hexe Hexen,
grandmother f Großmutter Großmütter, child/children n Kind Kinder, girl n Mädchen Mädchen,
baby n Baby Babys, monster n Ungeheuer Ungeheuer
""",
    person=True,
    animate=True,
)
ANIMALS = nouns(
    """
dog m Hund Hunde, bird m Vogel Vögel, bear m Bär/Bären Bären, wolf/wolves m Wolf Wölfe,
lion m Löwe/Löwen Löwen, monkey m Affe/Affen Affen, donkey m Esel Esel, frog m Frosch Frösche,
cat f Katze Katzen, cow f Kuh Kühe, mouse/mice f Maus Mäuse, duck f Ente Enten,
snake f Schlange Schlangen, goose/geese f Gans Gänse, goat f Ziege Ziegen, horse n Pferd Pferde,
pig n Schwein Schweine, rabbit n Kaninchen Kaninchen, camel n Kamel Kamele,
crocodile n Krokodil Krokodile, calf/calves n Kalb Kälber
""",
    animate=True,
)
THINGS = nouns("""
letter m Brief Briefe, table m Tisch Tische, chair m Stuhl Stühle, key m Schlüssel Schlüssel,
apple m Apfel Äpfel, cake m Kuchen Kuchen, hat m Hut Hüte, coat m Mantel Mäntel, ring m Ring Ringe,
ball m Ball Bälle, lamp f Lampe Lampen, flower f Blume Blumen, bottle f Flasche Flaschen,
cup f Tasse Tassen, door f Tür Türen, box f Kiste Kisten, newspaper f Zeitung Zeitungen,
bag f Tasche Taschen, clock f Uhr Uhren, book n Buch Bücher, picture n Bild Bilder,
car n Auto Autos, knife/knives n Messer Messer, egg n Ei Eier, shirt n Hemd Hemden,
dress n Kleid Kleider, glass n Glas Gläser, bicycle n Fahrrad Fahrräder,
gift n Geschenk Geschenke, bed n Bett Betten
""")
PLACES = nouns("""
garden m Garten Gärten, forest m Wald Wälder, park m Park Parks, cellar m Keller Keller,
school f Schule Schulen, kitchen f Küche Küchen, city f Stadt Städte, church f Kirche Kirchen,
house n Haus Häuser, hotel n Hotel Hotels, village n Dorf Dörfer, castle n Schloss Schlösser,
office n Büro Büros, museum n Museum Museen
""")
NAMES = tuple(
    "Anna Peter Maria Paul Julia Thomas Emma Felix Clara Otto Lisa Max".split()  # noqa: SIM905
)

# English German[/the stem of its inflected forms].
ADJECTIVES_OF_ALL = adjectives("""
old alt, big groß, small klein, beautiful schön, strange seltsam, dirty schmutzig, famous berühmt,
heavy schwer
""")
ADJECTIVES_OF_ANIMATES = adjectives("""
young jung, hungry hungrig, tired müde/müd, happy glücklich, sad traurig, clever klug, strong stark,
poor arm, friendly freundlich, brave mutig, lazy faul, quiet still, thin dünn, angry wütend,
sick krank
""")
ADJECTIVES_OF_THINGS = adjectives("""
new neu, expensive teuer/teur, cheap billig, dark dunkel/dunkl, empty leer, clean sauber, red rot,
green grün, blue blau, black schwarz, white weiß, ugly hässlich
""")

# English[/past/participle] German[/third person/preterite/participle[/first person]].
VERBS_OF_ANIMATES = verbs("""
greet grüßen, love lieben, hate hassen, visit besuchen, ask fragen, kiss küssen, warn warnen,
praise loben, chase jagen, save retten, marry heiraten, protect schützen, watch beobachten,
bite/bit/bitten beißen/beißt/biss/gebissen, catch/caught/caught fangen/fängt/fing/gefangen,
meet/met/met treffen/trifft/traf/getroffen, lead/led/led führen,
understand/understood/understood verstehen/versteht/verstand/verstanden,
call+up an+rufen/ruft/rief/gerufen, pick+up ab+holen, wake/woke/woken+up auf+wecken,
invite ein+laden/lädt/lud/geladen, lock+up ein+sperren, send/sent/sent+away weg+schicken,
throw/threw/thrown+out hinaus+werfen/wirft/warf/geworfen, introduce vor+stellen
""")
VERBS_OF_THINGS = verbs("""
buy/bought/bought kaufen, polish putzen, repair reparieren, use benutzen, build/built/built bauen,
steal/stole/stolen stehlen/stiehlt/stahl/gestohlen, keep/kept/kept behalten/behält/behielt/behalten,
break/broke/broken zerbrechen/zerbricht/zerbrach/zerbrochen, open auf+machen, close zu+machen,
throw/threw/thrown+away weg+werfen/wirft/warf/geworfen, prepare vor+bereiten,
give/gave/given+back zurück+geben/gibt/gab/gegeben
""")
VERBS_OF_ALL = verbs("""
see/saw/seen sehen/sieht/sah/gesehen, hear/heard/heard hören, look_for suchen, need brauchen,
find/found/found finden/findet/fand/gefunden, paint malen, hide/hid/hidden verstecken,
carry tragen/trägt/trug/getragen, wash waschen/wäscht/wusch/gewaschen,
forget/forgot/forgotten vergessen/vergisst/vergaß/vergessen,
lose/lost/lost verlieren/verliert/verlor/verloren, recognise erkennen/erkennt/erkannte/erkannt,
describe beschreiben/beschreibt/beschrieb/beschrieben, hold/held/held halten/hält/hielt/gehalten,
look_at an+sehen/sieht/sah/gesehen, take/took/taken+along mit+nehmen/nimmt/nahm/genommen,
bring/brought/brought+back zurück+bringen/bringt/brachte/gebracht
""")
VERBS_WITH_DATIVE = verbs(
    """
help helfen/hilft/half/geholfen, thank danken, answer antworten, listen_to zu+hören
""",
    case=DATIVE,
)
VERBS_OF_GIVING = verbs("""
give/gave/given geben/gibt/gab/gegeben, show/showed/shown zeigen, send/sent/sent schicken,
bring/brought/brought bringen/bringt/brachte/gebracht, lend/lent/lent leihen/leiht/lieh/geliehen,
sell/sold/sold verkaufen
""")
INTRANSITIVES = verbs("""
sleep/slept/slept schlafen/schläft/schlief/geschlafen, laugh lachen, cry weinen, dance tanzen,
sing/sang/sung singen/singt/sang/gesungen, work arbeiten, wait warten, dream träumen, play spielen
""")
# Their perfect takes "sein".
MOTIONS = verbs(
    """
run/ran/run laufen/läuft/lief/gelaufen, swim/swam/swum schwimmen/schwimmt/schwamm/geschwommen,
jump springen/springt/sprang/gesprungen, stay bleiben/bleibt/blieb/geblieben,
disappear verschwinden/verschwindet/verschwand/verschwunden,
arrive an+kommen/kommt/kam/gekommen, wake_up/woke_up/woken_up auf+wachen,
fall_asleep/fell_asleep/fallen_asleep ein+schlafen/schläft/schlief/geschlafen,
stand_up/stood_up/stood_up auf+stehen/steht/stand/gestanden
""",
    moves=True,
)
VERBS_OF_SAYING = verbs("""
say/said/said sagen, believe glauben, think/thought/thought denken/denkt/dachte/gedacht,
know/knew/known wissen/weiß/wusste/gewusst/weiß, hope hoffen, hear/heard/heard hören
""")
VERBS_OF_TRYING = verbs("""
try versuchen, plan/planned/planned planen, begin/began/begun beginnen/beginnt/begann/begonnen,
promise versprechen/verspricht/versprach/versprochen,
forget/forgot/forgotten vergessen/vergisst/vergaß/vergessen
""")

# English = German. Adverbials of time and place, by what they go with; they may open a sentence.
OF_THE_PERFECT = adverbials("today = heute, here = hier, there = dort")
ALWAYS = OF_THE_PERFECT + adverbials("""
in the morning = am Morgen, in the evening = am Abend, at night = in der Nacht,
on Sunday = am Sonntag, on Monday = am Montag
""")
OF_THE_PRESENT = adverbials("now = jetzt, every day = jeden Tag, every week = jede Woche")
OF_THE_PAST = adverbials("yesterday = gestern, last week = letzte Woche, last year = letztes Jahr")
OF_THE_FUTURE = adverbials(
    "tomorrow = morgen, soon = bald, next week = nächste Woche, next year = nächstes Jahr"
)
# These stand before the English verb.
MIDDLE = adverbials(
    "often = oft, always = immer, sometimes = manchmal, seldom = selten, really = wirklich"
)
PREPOSITIONS = adverbials("in = in, behind = hinter, in front of = vor, next to = neben")

# Endings by gender or plural, then by case: of determiners, and of the adjectives after them.
Declension = tuple[tuple[str, ...], ...]
_DER = (("er", "en", "em"), ("e", "e", "er"), ("es", "es", "em"), ("e", "e", "en"))
_THE = (("er", "en", "em"), ("ie", "ie", "er"), ("as", "as", "em"), ("ie", "ie", "en"))
_EIN = (("", "en", "em"), ("e", "e", "er"), ("", "", "em"), ("e", "e", "en"))
_SAME = (("", "", ""),) * 4
_WEAK = (("e", "en", "en"), ("e", "e", "en"), ("e", "e", "en"), ("en", "en", "en"))
_MIXED = (("er", "en", "en"), ("e", "e", "en"), ("es", "es", "en"), ("en", "en", "en"))
_STRONG = (("e", "e", "en"),) * 4
RELATIVE = (
    *(("der", "den", "dem"), ("die", "die", "der"), ("das", "das", "dem")),
    ("die", "die", "denen"),
)


class Determiner(NamedTuple):
    """A determiner, and the endings of the adjective after it; German by gender and case."""

    english: str
    german: Declension
    endings: Declension
    definite: bool


def _determiner(
    english: str, stem: str, declension: Declension, endings: Declension, definite: bool = True
) -> Determiner:
    space = " " if stem else ""
    german = tuple(tuple(f"{stem}{e}{space}" for e in cases) for cases in declension)
    return Determiner(f"{english} " if english else "", german, endings, definite)


THE = _determiner("the", "d", _THE, _WEAK)
A = _determiner("a", "ein", _EIN, _MIXED, definite=False)
NO = _determiner("no", "kein", _EIN, _MIXED, definite=False)
_OWN = tuple(
    _determiner(english, german, _EIN, _MIXED)
    for english, german in zip(
        ("my", "his", "her", "our", "their"), ("mein", "sein", "ihr", "unser", "ihr"), strict=True
    )
)
# As often as they are to be drawn.
SINGULAR_DETERMINERS = (
    *(THE,) * 8,
    *(A,) * 6,
    *(_determiner("this", "dies", _DER, _WEAK),) * 2,
    _determiner("every", "jed", _DER, _WEAK, definite=False),
    *_OWN,
)
PLURAL_DETERMINERS = (
    *(THE,) * 6,
    *(_determiner("these", "dies", _DER, _WEAK),) * 2,
    *_OWN,
    _determiner("two", "zwei", _SAME, _STRONG, definite=False),
    _determiner("three", "drei", _SAME, _STRONG, definite=False),
    _determiner("many", "viel", _DER, _STRONG, definite=False),
    _determiner("some", "einig", _DER, _STRONG, definite=False),
    _determiner("", "", _SAME, _STRONG, definite=False),
)
