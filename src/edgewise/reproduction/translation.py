"""The task of translation: train, average the last checkpoints, translate, measure."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgewise.checkpoint.average import average
from edgewise.checkpoint.checkpoints import STEPS
from edgewise.checkpoint.model_folder import read_model
from edgewise.decoding import Translator
from edgewise.evaluation import chrf
from edgewise.evaluation.bootstrap import SentenceStatistics
from edgewise.reproduction.cells import Cell
from edgewise.reproduction.corpora import PAIR_SIDES, lines_of, prepare_corpus
from edgewise.reproduction.measurements import BLEU_COLUMNS, LOG_PROBABILITY, Measurements
from edgewise.reproduction.results import Outcome
from edgewise.reproduction.scales import Scale, TranslationScale
from edgewise.reproduction.task import PreparedData, Say
from edgewise.storage import write_text
from edgewise.training.loop import train
from edgewise.training.metrics import read_metrics
from edgewise.training.ranks import Ranks
from edgewise.training.reporter import Reporter
from edgewise.training.settings import RunSettings
from edgewise.training.trainer import device_of


class Translation:
    """Cells that are translation models."""

    def prepare(
        self, scale: Scale, pair: str, data: Path | None, out: Path, say: Say
    ) -> PreparedData:
        assert isinstance(scale, TranslationScale)
        return prepare_corpus(scale, pair, data, out, say)

    def run(
        self, cell: Cell, data: PreparedData, folder: Path, reporter: Reporter | None
    ) -> Outcome | None:
        settings = run_settings(cell, data.folder / "corpus", folder / "run")
        model = folder / "model"
        if not model.is_dir():
            train(settings, reporter=reporter)
            if not Ranks.of_environment().is_first:
                return None
            saved = len(list((settings.out / "checkpoints").glob(STEPS)))
            average(settings.out, min(cell.average, saved), model)
        shutil.rmtree(settings.out / "checkpoints", ignore_errors=True)
        records = read_metrics(settings.out)
        seconds = sum(float(record.get("seconds", 0)) for record in records)
        return Outcome(
            parameters=sum(tensor.numel() for tensor in read_model(model)[0].values()),
            updates=max(int(record["step"]) for record in records),
            losses=[
                (int(r["step"]), float(r["loss"])) for r in records if r["kind"] == "validation"
            ],
            tests={test: _measure(cell, data, test, folder) for test in cell.scale.tests},
            about={"training_seconds": round(seconds)},
        )


def run_settings(cell: Cell, corpus: Path, out: Path) -> RunSettings:
    """Return the settings of the training run of a cell."""
    return RunSettings(corpus=corpus, out=out, model=cell.model, training=cell.training)


def _measure(cell: Cell, data: PreparedData, test: str, folder: Path) -> Measurements:
    """Measure translations that exist already, or are made now."""
    scale = cell.scale
    assert isinstance(scale, TranslationScale)
    sources, references = (lines_of(data.folder / f"{test}.{side}") for side in PAIR_SIDES)
    path = folder / f"{test}.txt"
    translator = Translator.load(folder / "model", device=str(device_of(cell.training, Ranks())))
    translator.settings = scale.decoding
    if not path.is_file():
        write_text(path, "".join(f"{text}\n" for text in translator.translate(sources)))
    translations = lines_of(path)
    score = chrf(translations, references)
    summary = {"chrf": score.value, "chrf_signature": score.signature}
    columns = {"source_words": _words(sources), "target_words": _words(references)}
    if "BLEU" in scale.metrics:
        statistics = SentenceStatistics.of(translations, references, tokenised=scale.tokenised)
        counts = statistics.counts[:, : len(BLEU_COLUMNS)].T
        columns |= dict(zip(BLEU_COLUMNS, counts, strict=True))
        summary["signature"] = statistics.signature
    if "log-probability" in scale.metrics:
        scored = translator.score(sources, references)
        columns[LOG_PROBABILITY] = np.array([round(each.log_probability, 4) for each in scored])
        columns["reference_pieces"] = np.array([len(each.pieces) + 1 for each in scored])  # the end
    if "exact match" in scale.metrics:
        columns["exact"] = _equal(translations, references)
    if "exact match, length given" in scale.metrics:
        given = _translate_with_length(translator, sources, references)
        columns["exact_with_length"] = _equal(given, references)
    return Measurements(columns, summary)


def _translate_with_length(
    translator: Translator, sources: Sequence[str], references: Sequence[str]
) -> list[str]:
    """Translate with the number of tokens of each reference."""
    tokens = translator.encode(references, target=True).tokens
    lengths = np.array([len(row) for row in tokens])
    result = [""] * len(sources)
    for length in np.unique(lengths).tolist():
        chosen = np.flatnonzero(lengths == length).tolist()
        batch = [sources[i] for i in chosen]
        texts = translator.translate(batch, min_length=length, max_length=length)
        for i, text in zip(chosen, texts, strict=True):
            result[i] = text
    return result


def _words(lines: Sequence[str]) -> NDArray[np.int64]:
    return np.array([len(line.split()) for line in lines])


def _equal(translations: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    return np.array([int(a == b) for a, b in zip(translations, references, strict=True)])
