"""Which model is meant, by names and languages."""

from pathlib import Path

import pytest
from messages import raises

from edgewise.data.languages import NAMES, language_of
from edgewise.decoding import Translator
from edgewise.errors import SettingError
from edgewise.server.messages import Asked
from edgewise.server.models import Models, Served, UnknownError, languages, named
from edgewise.storage import write_json

UNUSED = Translator.__new__(Translator)  # which one is meant does not depend on what it does
MODELS = Models(
    [
        Served(name, *name.split("/")[0].split("-"), UNUSED)
        for name in ("en-de/small", "en-de/large", "fr-de", "en-fr")
    ]
)


def chosen(**asked: str) -> str:
    return MODELS.chosen(Asked(**asked)).name


def test_the_first_model_of_two_languages_is_meant_unless_another_is_named() -> None:
    assert chosen(source="en", target="de") == "en-de/small"
    assert chosen(source="en", target="de", model="en-de/large") == "en-de/large"
    assert chosen(source="fr", target="de") == "fr-de"


def test_auto_is_the_only_language_that_the_target_allows() -> None:
    assert chosen(target="fr") == "en-fr"
    with raises(UnknownError, "source", "en", "fr", "auto"):
        chosen(target="de")


@pytest.mark.parametrize(
    ("asked", "facts"),
    [
        ({"source": "xx", "target": "de"}, ("source", "en", "fr", "xx")),
        ({"source": "en", "target": "xx"}, ("target", "de", "fr", "xx")),
        ({"source": "fr", "target": "fr"}, ("source", "en", "fr")),
        (
            {"target": "de", "model": "x"},
            ("model", "en-de/large", "en-de/small", "en-fr", "fr-de", "x"),
        ),
        ({"target": "de", "model": "en-fr"}, ("target", "fr", "de")),
    ],
)
def test_what_is_not_served_is_named_with_what_is(
    asked: dict[str, str], facts: tuple[str, ...]
) -> None:
    with raises(UnknownError, *facts):
        chosen(**asked)


def test_languages_have_names_and_targets() -> None:
    found = [(each.code, each.name, each.targets) for each in MODELS.languages()]
    assert found == [
        ("en", "English", ["de", "fr"]),
        ("fr", "French", ["de"]),
        ("de", "German", []),
    ]


def test_two_models_of_one_name_are_refused() -> None:
    with raises(SettingError, "fr-de", "--model", "NAME=DIR"):
        Models([MODELS.all[2], MODELS.all[2]])


def test_a_model_is_a_folder_with_or_without_a_name(tmp_path: Path) -> None:
    assert named("en-de=models/a=b") == ("en-de", Path("models/a=b"))
    assert named("models/first") == (None, Path("models/first"))
    (tmp_path / "a=b").mkdir()
    assert named(f"{tmp_path}/a=b") == (None, tmp_path / "a=b")
    for value in ("=models", " =models", "name="):
        with raises(SettingError, "--model", "NAME=DIR", value):
            named(value)


def test_languages_are_those_of_the_given_name_else_the_folders(tmp_path: Path) -> None:
    says, silent, speaking = (tmp_path / name for name in ("new-big", "x", "en-fr"))
    for folder, config in ((says, {"languages": ["en", "de"]}), (silent, {}), (speaking, {})):
        folder.mkdir()
        write_json(folder / "config.json", config)
    assert languages("fr-gsw", says) == ("fr", "gsw")
    assert languages(None, says) == languages("small", says) == ("en", "de")
    assert languages(None, speaking) == ("en", "fr")
    with raises(SettingError, silent, "--model", f"en-de={silent}"):
        languages(None, silent)


def test_names_of_files_tell_languages() -> None:
    assert language_of("text/train.en") == "en"
    assert language_of("train.en-de.de.gz") == "de"
    for name in ("train.txt", "train.src", "corpus.tsv:2", "en", "train.EN", "train.en.zip"):
        assert language_of(name) is None
    assert len(NAMES) > 120 and all(code == code.strip() and name for code, name in NAMES.items())
