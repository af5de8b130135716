"""One cell, in a process of its own: train, average, translate, measure, store.

The folder of a cell:

    cell.json               what is asked for
    run/                    training (see edgewise.training.run); without its checkpoints in the end
    model/                  the mean of the last checkpoints
    valid.txt, test.txt     translations
"""

import ctypes
import os
import platform
import shutil
import signal
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgewise.checkpoint.average import average
from edgewise.checkpoint.checkpoints import STEPS
from edgewise.checkpoint.model_folder import read_model
from edgewise.decoding import Translator
from edgewise.errors import DataError, SettingError
from edgewise.evaluation import chrf
from edgewise.evaluation.bootstrap import SentenceStatistics
from edgewise.model.settings import ModelSettings
from edgewise.reproduction.cells import Cell
from edgewise.reproduction.corpora import Pair, Texts, lines_of
from edgewise.reproduction.hardware import hardware
from edgewise.reproduction.results import Measured, Result, changed, in_full
from edgewise.reproduction.scales import Scale
from edgewise.storage import read_json, write_json, write_text
from edgewise.training.loop import train
from edgewise.training.memory import keep_freed_memory
from edgewise.training.metrics import read_metrics
from edgewise.training.ranks import Ranks
from edgewise.training.reporter import Reporter
from edgewise.training.settings import TrainingSettings
from edgewise.training.trainer import device_of

PACKAGES = ("edgewise", "torch", "sentencepiece", "sacrebleu")
PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def order(cell: Cell, texts: Texts, out: Path) -> Path:
    """Write what a worker is asked for; the folder of the cell.

    SettingError if something else was begun there: settings of a scale may have been changed.
    """
    folder, asked = cell.work(out), cell.asked() | {"files": texts.files}
    if (folder / "cell.json").is_file():
        before = read_json(folder / "cell.json")
        if differs := changed(in_full(before.get("asked", {})), asked):
            raise SettingError(
                f"{folder} was begun with other settings: {differs} (remove it, or give another "
                "--out)"
            )
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "asked": asked,
        "scale": cell.scale.model_dump(mode="json"),
        "pair": cell.pair,
        "model": cell.model.model_dump(mode="json"),
        "training": cell.training.model_dump(mode="json"),
        "average": cell.average,
        "ranks": cell.ranks,
        "out": str(out.absolute()),
        "texts": {"folder": str(texts.folder.absolute()), "files": texts.files},
    }
    write_json(folder / "cell.json", content)
    return folder


def run_cell(folder: Path, reporter: Reporter | None = None, parent: int | None = None) -> None:
    """Go on where the cell was stopped, to its result. Under torchrun, rank 0 measures.

    parent: the process that this one is to end with, after saving.
    """
    if parent is not None:
        end_with(parent)
    content = read_json(folder / "cell.json")
    try:
        cell = Cell(
            Scale(**content["scale"]),
            content["pair"],
            ModelSettings(**content["model"]),
            TrainingSettings(**content["training"]),
            content["average"],
            content["ranks"],
        )
        out, of_texts = Path(content["out"]), Path(content["texts"]["folder"])
        texts = Texts(of_texts / "corpus", content["texts"]["files"], of_texts)
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{folder / 'cell.json'} is damaged: remove it") from None
    keep_freed_memory()
    settings, model = cell.run(out, texts.corpus), folder / "model"
    if cell.training.threads is not None:
        torch.set_num_threads(cell.training.threads)
    if not model.is_dir():
        train(settings, reporter=reporter)
        if not Ranks.of_environment().is_first:
            return
        saved = len(list((settings.out / "checkpoints").glob(STEPS)))
        average(settings.out, min(cell.average, saved), model)
    shutil.rmtree(settings.out / "checkpoints", ignore_errors=True)
    parts: dict[str, Measured] = {
        part: _measured(cell, model, texts.part(part), folder / f"{part}.txt")
        for part in cell.scale.parts
    }
    records = read_metrics(settings.out)
    result = Result(
        asked=cell.asked(),
        corpus=texts.files,
        parameters=sum(tensor.numel() for tensor in read_model(model)[0].values()),
        updates=max(int(record["step"]) for record in records),
        losses=[
            (int(record["step"]), float(record["loss"]))
            for record in records
            if record["kind"] == "validation"
        ],
        parts=parts,
        hardware=f"{hardware()}; threads a cell: {torch.get_num_threads()}",
        about=_about(records),
    )
    result.write(cell.result(out))


def _measured(cell: Cell, model: Path, pairs: list[Pair], path: Path) -> Measured:
    """Of translations that are there already, or are made now."""
    sources, references = zip(*pairs, strict=True)
    if not path.is_file():
        translator = Translator.load(model, device=str(device_of(cell.training, Ranks())))
        translator.settings = cell.scale.decoding
        write_text(path, "".join(f"{text}\n" for text in translator.translate(list(sources))))
    translations = lines_of(path)
    score = chrf(translations, references)
    return Measured(
        words=np.array([len(source.split()) for source in sources]),
        statistics=SentenceStatistics.of(translations, references, tokenised=cell.scale.tokenised),
        chrf=score.value,
        chrf_signature=score.signature,
    )


def _about(records: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = sum(record["seconds"] for record in records if record["kind"] == "update")
    return {
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "training_seconds": round(seconds),
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
    }


def end_with(parent: int) -> None:
    """When the process that started this one is killed, save and end too (Linux)."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    except (AttributeError, OSError):
        return
    if os.getppid() != parent:  # it was killed before we asked
        os.kill(os.getpid(), signal.SIGTERM)
