"""The folder of a run: who may write there, and whether it is the run that was begun.

config.toml        the resolved settings, a file that edgewise train reads
run.json           hashes of corpus and vocabulary; versions and threads of each start
metrics.jsonl      see metrics.py; tensorboard/ has the same
checkpoints/       see edgewise.checkpoint
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from edgewise.data.corpus import Corpus
from edgewise.errors import DataError, SettingError
from edgewise.provenance import provenance
from edgewise.storage import read_json, recover, resolved, set_aside, write_json, write_text
from edgewise.storage.locks import open_locked
from edgewise.training.settings import CHANGEABLE, RunSettings

LOCK = ".edgewise-lock"
CHECKPOINTS = "checkpoints"
OTHERS = ("config.toml", "run.json", "metrics.jsonl", "tensorboard", "best", "last")


@contextmanager
def run_folder(settings: RunSettings, corpus: Corpus, *, overwrite: bool) -> Iterator[Path]:
    """The folder, new or continued, ours alone until the end."""
    folder = settings.out
    # Other programs have a config.toml too; a run that was copied may lack its hidden lock.
    ours = (folder / LOCK).exists() or (is_run(folder) and (folder / "run.json").exists())
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"--out must be a folder; {folder} is a file: choose another --out")
    if folder.exists() and any(folder.iterdir()) and not ours:
        raise SettingError(
            f"{folder} exists and is not a training run: choose another --out, or remove it"
        )
    resolved(folder).mkdir(parents=True, exist_ok=True)
    with _lock(folder):
        recover(folder)
        checkpoints = folder / CHECKPOINTS
        if not overwrite and not is_run(folder) and any(checkpoints.glob("*")):
            raise DataError(
                f"{folder} has checkpoints and no config.toml: restore that file, or start afresh "
                "with --overwrite"
            )
        if is_run(folder) and not overwrite:
            _same_run(folder, settings, corpus)
            write_text(folder / "config.toml", settings.toml())
        else:
            with set_aside(checkpoints, OTHERS):
                identity = {"corpus": corpus.digest, "vocabulary": corpus.vocabulary.digest}
                write_json(folder / "run.json", identity | {"starts": []})
                write_text(folder / "config.toml", settings.toml())
                checkpoints.mkdir()
        yield folder


def is_run(folder: Path) -> bool:
    """Whether a run began here that can be continued. The settings are the last thing written."""
    return (folder / "config.toml").exists()


def note_start(folder: Path, step: int, ranks: int) -> None:
    """Add to run.json with what training goes on from this step."""
    about = read_json(folder / "run.json")
    about["starts"].append(
        {
            "step": step,
            "ranks": ranks,
            "threads": torch.get_num_threads(),
            **provenance(),
        }
    )
    write_json(folder / "run.json", about)


def _same_run(folder: Path, settings: RunSettings, corpus: Corpus) -> None:
    """Raise unless going on is what an undisturbed run would have done."""
    about = read_json(folder / "run.json")
    if not isinstance(about, dict) or not {"vocabulary", "corpus", "starts"} <= about.keys():
        raise DataError(f"{folder / 'run.json'} is damaged: it lacks corpus, vocabulary or starts")
    if about["vocabulary"] != corpus.vocabulary.digest:
        raise DataError(
            f"the vocabulary of {corpus.folder} is not the one of the model in {folder} "
            "(give the corpus it was trained on, or another --out)"
        )
    if about["corpus"] != corpus.digest:
        raise DataError(
            f"{corpus.folder} is not the corpus that the run in {folder} began with, or has "
            "changed since (restore it, or start afresh with --overwrite or another --out)"
        )
    try:
        before = RunSettings.read(folder / "config.toml").flat()
    except ValueError as error:
        raise DataError(f"the settings of the run are damaged: {error}") from None
    now = settings.flat()
    changed = [
        f"{name} was {_shown(before[name])}, is {_shown(now[name])}"
        for name in now
        if before[name] != now[name] and name not in CHANGEABLE | {"out", "corpus"}
    ]
    if changed:
        raise SettingError(
            f"the run in {folder} was begun with other settings: {'; '.join(changed)} "
            "(set them back, or start afresh with --overwrite or another --out)"
        )


def _shown(value: object) -> object:
    return "none" if value is None else value


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    file = open_locked(folder / LOCK)
    if file is None:
        raise SettingError(
            f"another process is training in {folder}: wait for it, or choose another --out"
        )
    with file:
        yield
