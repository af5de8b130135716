"""Which model is meant, by names and languages."""

from pathlib import Path

import pytest

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
    with pytest.raises(UnknownError, match="source must be one of en, fr: auto is only for"):
        chosen(target="de")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"source": "xx", "target": "de"}, "source must be one of en, fr; got 'xx'"),
        ({"source": "en", "target": "xx"}, "target must be one of de, fr; got 'xx'"),
        ({"source": "fr", "target": "fr"}, "source must be one of en; got 'fr'"),
        ({"target": "de", "model": "x"}, "model must be one of en-de/large, .*; got 'x'"),
        ({"target": "de", "model": "en-fr"}, "target must be one of fr; got 'de'"),
    ],
)
def test_what_is_not_served_is_named_with_what_is(asked: dict[str, str], message: str) -> None:
    with pytest.raises(UnknownError, match=message):
        chosen(**asked)


def test_languages_have_names_and_targets() -> None:
    found = [(each.code, each.name, each.targets) for each in MODELS.languages()]
    assert found == [
        ("en", "English", ["de", "fr"]),
        ("fr", "French", ["de"]),
        ("de", "German", []),
    ]


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(SettingError, match="different names; two are 'fr-de'"):
        Models([MODELS.all[2], MODELS.all[2]])


def test_a_model_is_a_folder_with_or_without_a_name(tmp_path: Path) -> None:
    assert named("en-de=models/a=b") == ("en-de", Path("models/a=b"))
    assert named("models/first") == (None, Path("models/first"))
    (tmp_path / "a=b").mkdir()
    assert named(f"{tmp_path}/a=b") == (None, tmp_path / "a=b")
    for value in ("=models", " =models", "name="):
        with pytest.raises(SettingError, match="DIR or NAME=DIR"):
            named(value)


def test_languages_are_those_of_the_given_name_else_the_folders(tmp_path: Path) -> None:
    says, silent, speaking = (tmp_path / name for name in ("new-big", "x", "en-fr"))
    for folder, config in ((says, {"languages": ["en", "de"]}), (silent, {}), (speaking, {})):
        folder.mkdir()
        write_json(folder / "config.json", config)
    assert languages("fr-gsw", says) == ("fr", "gsw")
    assert languages(None, says) == languages("small", says) == ("en", "de")
    assert languages(None, speaking) == ("en", "fr")
    with pytest.raises(SettingError, match="give it a name that does, as --model en-de="):
        languages(None, silent)


def test_names_of_files_tell_languages() -> None:
    assert language_of("text/train.en") == "en"
    assert language_of("train.en-de.de.gz") == "de"
    for name in ("train.txt", "train.src", "corpus.tsv:2", "en", "train.EN", "train.en.zip"):
        assert language_of(name) is None
    assert len(NAMES) > 120 and all(code == code.strip() and name for code, name in NAMES.items())
