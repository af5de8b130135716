"""What the server computes: how long it is expected to take, and that it stops when told to."""

import json

import pytest
from local_server import HeldEngine
from step_models import made

from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import Vocabulary
from edgewise.decoding import DecodingSettings, Translator
from edgewise.decoding.native import NativeEngine
from edgewise.server.models import Served
from edgewise.server.tasks import Explaining, Tabulating, Translating, seconds_per_character
from edgewise.server.work import Task

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = next(source for source, _ in pairs(1, 7))
WIDE = DecodingSettings(n_best=20, alternatives=True)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train([line for pair in pairs(500, 1) for line in pair], 400)


@pytest.fixture(scope="module")
def served(vocabulary: Vocabulary) -> Served:
    engine = NativeEngine([made(vocabulary=vocabulary.size, max_distance=4)], vocabulary)
    translator = Translator(engine, DecodingSettings(min_length=8, max_length=8))
    return Served("en-de", "en", "de", translator, seconds_per_character=1e-3)


def test_the_speed_is_measured_after_the_first_searches(vocabulary: Vocabulary) -> None:
    engine = HeldEngine(vocabulary, released=True)
    assert 0 < seconds_per_character(Translator(engine)) < 1
    assert engine.batches == [1, 1, 1]


def test_prefixes_and_alternatives_and_length_take_time(served: Served) -> None:
    def seconds(item: str, settings: DecodingSettings = WIDE, prefix: str = "") -> float:
        return Translating(served, settings, prefix).seconds(item)

    plain = DecodingSettings()
    assert seconds("x" * 50, plain) == pytest.approx(0.1, rel=0.1)
    assert seconds("x" * 4000, plain) > 4
    # Twenty of a short sentence are searched for together, those of a long one alone.
    assert seconds("x" * 50) == seconds("x" * 50, plain)
    assert seconds("x" * 4000) > 19 * seconds("x" * 4000, plain)
    # What is begun is no longer searched for, but is computed.
    assert seconds("x" * 4000, prefix="y" * 3000) < seconds("x" * 4000) / 2
    assert seconds("x", prefix="y" * 4000) > seconds("x", prefix="y" * 400) > seconds("x")


def test_explanations_take_time_for_their_translations_and_their_numbers(served: Served) -> None:
    given = Explaining(served, translation="x", tokens=64)
    assert given.seconds("x" * 200) > given.seconds("x" * 20) > 0
    assert Explaining(served, tokens=64).seconds("x" * 200) > given.seconds("x" * 200)


def test_tasks_keep_to_the_protocol_and_those_of_a_kind_share_their_speed(served: Served) -> None:
    tasks = Translating(served, WIDE, "a"), Explaining(served), Tabulating(served)
    assert all(isinstance(task, Task) for task in tasks)
    assert len({task.kind for task in tasks}) == 3
    assert Translating(served, WIDE, "b").kind == tasks[0].kind


def test_an_explanation_ends_within_its_translation_when_it_is_not_wanted(
    served: Served,
) -> None:
    asked: list[int] = []

    def wanted(item: int) -> bool:
        asked.append(item)
        return len(asked) < 3

    task = Explaining(served, tokens=64)
    assert task([TEXT], wanted) == [b""]
    assert asked == [0] * 4
    (answer,) = task([TEXT], lambda item: True)
    assert json.loads(answer)["translation"] == served.translator.translate([TEXT])[0]
