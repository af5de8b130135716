"""One cell, in a process of its own: train, measure, store.

The folder of a cell:

    cell.json               the settings
    run/                    training (see edgewise.training.run); checkpoints are removed at the end
    model/                  the mean of the last checkpoints
    valid.txt, test.txt, …  translations
"""

import ctypes
import os
import signal
from pathlib import Path

import torch

from edgewise.errors import DataError, SettingError
from edgewise.provenance import hardware, provenance
from edgewise.reproduction.cells import Cell
from edgewise.reproduction.results import Result, differences, with_defaults
from edgewise.reproduction.scales import parse_scale
from edgewise.reproduction.task import PreparedData, task_for
from edgewise.storage import read_json, write_json
from edgewise.training.memory import keep_freed_memory
from edgewise.training.reporter import Reporter

PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def write_order(cell: Cell, data: PreparedData, out: Path) -> Path:
    """Write the settings of a cell for its process; return its folder.

    SettingError if a cell with other settings was begun there.
    """
    folder, asked = cell.work(out), cell.asked() | {"files": data.files}
    if (folder / "cell.json").is_file():
        known = read_json(folder / "cell.json")
        if not isinstance(known, dict) or not isinstance(known.get("asked"), dict):
            raise DataError(f"{folder / 'cell.json'} is damaged: remove it")
        if differs := differences(with_defaults(known["asked"], cell.scale), asked):
            raise SettingError(
                f"{folder} was begun with other settings: {differs} (remove it, or give another "
                "--out)"
            )
    folder.mkdir(parents=True, exist_ok=True)
    cell.result(out).parent.mkdir(parents=True, exist_ok=True)
    places = {"out": str(out.absolute()), "data": str(data.folder.absolute())}
    scale = cell.scale.model_dump(mode="json")
    write_json(folder / "cell.json", {"asked": asked, "scale": scale, **places})
    return folder


def read_order(folder: Path) -> tuple[Cell, PreparedData, Path]:
    """Return the cell of a folder, its data, and the folder of all results."""
    path = folder / "cell.json"
    if not path.is_file():
        raise SettingError(f"{folder} is not the folder of a cell: it has no cell.json")
    content = read_json(path)
    try:
        scale, asked = parse_scale(content["scale"]), content["asked"]
        model = type(scale.model)(**asked["model"])
        training = type(scale.training)(**asked["training"])
        cell = Cell(scale, asked["pair"], model, training, asked["average"], asked["ranks"])
        data = PreparedData(Path(content["data"]), asked["files"])
        return cell, data, Path(content["out"])
    except (KeyError, TypeError, ValueError, AttributeError, SettingError):
        raise DataError(f"{path} is damaged: remove it") from None


def run_cell(folder: Path, reporter: Reporter | None = None, parent: int | None = None) -> None:
    """Run the cell of a folder from where it was stopped. Under torchrun, rank 0 measures.

    parent: if this process is killed, save and end.
    """
    if parent is not None:
        end_with(parent)
    cell, data, out = read_order(folder)
    keep_freed_memory()
    if cell.threads is not None:
        torch.set_num_threads(cell.threads)
    outcome = task_for(cell.scale).run(cell, data, folder, reporter)
    if outcome is None:
        return
    machine = f"{hardware()}; threads a cell: {torch.get_num_threads()}"
    fields = vars(outcome) | {"about": provenance() | outcome.about}
    Result(**fields, asked=cell.asked(), corpus=data.files, hardware=machine).write(
        cell.result(out)
    )


def end_with(parent: int) -> None:
    """Send SIGTERM to this process when the one that started it ends (Linux)."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    except (AttributeError, OSError):
        return
    if os.getppid() != parent:  # it ended before the call
        os.kill(os.getpid(), signal.SIGTERM)
