"""The checkpoints of a run: each a model folder and, for the newest, the state to go on from.

    checkpoints/step-00001000/model/    a model folder
    checkpoints/step-00001000/state/    the optimiser's tensors, and how far training has come
    checkpoints/best-00000800/          the model folder with the lowest validation loss
    last, best                          links to the model folders

A checkpoint appears by one rename, whole. Old ones go when newer ones are there. One that was saved
in between, because the run was stopped, goes with the next: in the end a run has the same
checkpoints, and the same mean of them, whether it was stopped or not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from edgewise.checkpoint.model_folder import read_model, write_model
from edgewise.checkpoint.tensors import load_tensors, save_tensors
from edgewise.data.vocabulary import Vocabulary
from edgewise.errors import DataError, EdgewiseError
from edgewise.model.settings import ModelSettings
from edgewise.storage import (
    new_folder,
    open_sealed,
    read_json,
    recover,
    remove,
    replacing,
    seal,
    write_json,
)

KIND, VERSION = "training state", 1
# The newest may turn out to be damaged: then training goes on from the one before.
STATES_KEPT = 2
STEPS = "step-" + 8 * "[0-9]"
IN_BETWEEN = "in_between"


@dataclass(frozen=True)
class Saved:
    """What training goes on from."""

    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    progress: dict[str, Any]


class Checkpoints:
    """Saves, finds and removes the checkpoints of one run, which nobody else writes meanwhile."""

    def __init__(
        self,
        run: Path,
        settings: ModelSettings,
        vocabulary: Vocabulary,
        languages: tuple[str, str] | None = None,
        data: Sequence[str] = (),
    ) -> None:
        """languages, data: for the models' cards."""
        self.run, self.folder = run, run / "checkpoints"
        self.settings, self.vocabulary = settings, vocabulary
        self.languages, self.data = languages, data
        for left in (self.folder, *self.folder.glob("*")):
            recover(left)
        self._remove_passed()  # had the process been killed just before

    def save(
        self,
        step: int,
        weights: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        progress: Mapping[str, Any],
        *,
        keep: int,
        in_between: bool = False,
    ) -> None:
        """Save everything at this step, then remove all but the `keep` newest checkpoints.

        in_between: no checkpoint was due, it is there until the next one.
        """
        path = self.folder / f"step-{step:08d}"
        with new_folder(path) as new:
            self._write(new / "model", weights, {"updates": step})
            (new / "state").mkdir()
            save_tensors(optimizer, new / "state" / "optimizer.safetensors")
            mark = {IN_BETWEEN: True} if in_between else {}
            write_json(new / "state" / "progress.json", {"step": step, **progress, **mark})
            seal(new / "state", KIND, VERSION)
        _link(self.run / "last", path / "model")
        damaged = [saved for saved in self.steps() if saved > step]  # training went back before it
        for old in damaged:
            remove(self._path(old))
        self._remove_passed()
        newest_first = self.steps()[::-1]
        kept = keep + in_between
        for old in newest_first[kept:]:
            remove(self._path(old))
        for old in newest_first[STATES_KEPT:kept]:
            if (self._path(old) / "state").exists():
                remove(self._path(old) / "state")

    def save_best(
        self, step: int, weights: Mapping[str, Tensor], loss: float, bleu: object = None
    ) -> None:
        """Save the model alone, and remove the one that was the best before."""
        path = self.folder / f"best-{step:08d}"
        about = {"updates": step, "validation loss per token": f"{loss:.4f}"}
        about |= {} if bleu is None else {"validation BLEU, greedy": bleu}
        with new_folder(path) as new:
            self._write(new, weights, about)
        _link(self.run / "best", path)
        for old in self.folder.glob("best-*"):
            if old != path:
                remove(old)

    def _write(
        self, folder: Path, weights: Mapping[str, Tensor], about: Mapping[str, object]
    ) -> None:
        write_model(
            *(folder, weights, self.settings, self.vocabulary, about),
            languages=self.languages,
            data=self.data,
        )

    def steps(self) -> list[int]:
        """The steps of all checkpoints, ascending."""
        return sorted(int(path.name[5:]) for path in self.folder.glob(STEPS))

    def load_last(self, warn: Callable[[str], None]) -> Saved | None:
        """The newest whole checkpoint, None if there is none; damaged ones are told and skipped."""
        damaged = 0
        for step in self.steps()[::-1]:
            if not (self._path(step) / "state").exists():
                continue
            try:
                return self._load(step)
            except EdgewiseError as error:
                damaged += 1
                warn(f"{error}; going back to the checkpoint before it")
        if damaged:
            raise DataError(
                f"every checkpoint in {self.folder} that training could go on from is damaged "
                "(--overwrite starts afresh; --init-from starts from the weights of a model folder)"
            )
        return None

    def _load(self, step: int) -> Saved:
        path = self._path(step)
        weights, _, vocabulary = read_model(path / "model")
        if vocabulary.digest != self.vocabulary.digest:
            raise DataError(f"the vocabulary of {path / 'model'} is not that of the corpus")
        state = open_sealed(path / "state", KIND, VERSION)
        progress = state.json("progress.json")
        if not isinstance(progress, dict):
            raise DataError(f"{path / 'state' / 'progress.json'} is damaged: it is no object")
        progress.pop(IN_BETWEEN, None)
        optimizer = load_tensors(state.file("optimizer.safetensors"))
        state.require_unchanged()
        return Saved(step, weights, optimizer, progress)

    def _remove_passed(self) -> None:
        """Those in between that are not the newest any more."""
        for step in self.steps()[:-1]:
            if self._is_in_between(step):
                remove(self._path(step))

    def _is_in_between(self, step: int) -> bool:
        path = self._path(step) / "state" / "progress.json"
        try:
            return path.is_file() and IN_BETWEEN in read_json(path)
        except DataError:  # damaged: it counts as any other
            return False

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"


def _link(link: Path, target: Path) -> None:
    """Point a link at a folder, by one rename; relative, so that a run can be moved."""
    with replacing(link) as (new,):
        new.symlink_to(target.relative_to(link.parent), target_is_directory=True)
