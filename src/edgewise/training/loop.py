"""A run from its first update, or from its last checkpoint, to its end."""

import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from edgewise.checkpoint.checkpoints import Checkpoints
from edgewise.checkpoint.model_folder import read_model, set_weights, weights
from edgewise.data.batches import Batches, Position, updates
from edgewise.data.corpus import Corpus
from edgewise.errors import DataError, SettingError
from edgewise.model.initial import initialise
from edgewise.model.transformer import Transformer
from edgewise.training.metrics import Metrics
from edgewise.training.reporter import Reporter
from edgewise.training.run import is_run, note_start, run_folder
from edgewise.training.settings import RunSettings
from edgewise.training.signals import InterruptedRunError, stop_signals
from edgewise.training.trainer import Trainer, Update


@dataclass
class Progress:
    """How far a run has come: with the weights and the optimiser, all that it goes on from."""

    step: int = 0
    position: Position = field(default_factory=Position)
    best_loss: float | None = None
    best_step: int = 0
    without_gain: int = 0

    @classmethod
    def of(cls, saved: dict[str, Any]) -> "Progress":
        return cls(**saved | {"position": Position(**saved["position"])})


def train(
    settings: RunSettings, *, overwrite: bool = False, reporter: Reporter | None = None
) -> Progress:
    """Train until the last step, or until validation stops getting better."""
    reporter = reporter or Reporter()
    settings = settings.resolved()
    if settings.training.threads is not None:
        torch.set_num_threads(settings.training.threads)
    corpus = Corpus(settings.corpus)
    # What cannot be is refused before anything is written or, by overwrite, removed.
    batches = Batches(corpus.train, settings.training.batch_tokens, settings.training.seed)
    model = Transformer(settings.model, corpus.vocabulary.size)
    if settings.init_from is not None and (overwrite or not is_run(settings.out)):
        set_first_weights(model, settings, corpus)
    trainer = Trainer(model, settings.training)
    if settings.training.patience is not None and corpus.valid is None:
        raise SettingError(
            f"training.patience needs validation, and {corpus.folder} has no pairs for it "
            "(prepare it with --valid-source and --valid-target)"
        )
    with run_folder(settings, corpus, overwrite=overwrite) as folder:
        return _Loop(settings, corpus, batches, trainer, folder, reporter).run()


def set_first_weights(model: Transformer, settings: RunSettings, corpus: Corpus) -> None:
    """Those of the model that is to be fine-tuned, or random ones."""
    folder = settings.init_from
    if folder is None:
        initialise(model, settings.training.seed)
        return
    tensors, _, vocabulary = read_model(folder)
    if vocabulary.digest != corpus.vocabulary.digest:
        raise DataError(
            f"the vocabulary of {corpus.folder} is not the one of the model in {folder} "
            f"(prepare the corpus with --vocab {folder})"
        )
    set_weights(model, tensors, str(folder))


class _Loop:
    def __init__(
        self,
        settings: RunSettings,
        corpus: Corpus,
        batches: Batches,
        trainer: Trainer,
        folder: Path,
        reporter: Reporter,
    ) -> None:
        self.settings, self.options, self.reporter = settings, settings.training, reporter
        self.batches, self.trainer, self.folder = batches, trainer, folder
        self.valid = _validation(corpus, self.options.batch_tokens)
        self.checkpoints = Checkpoints(folder, settings.model, corpus.vocabulary)
        self.progress = Progress()
        saved = self.checkpoints.load_last(reporter.warned)
        if saved is not None:
            set_weights(trainer.model, saved.weights, str(folder))
            trainer.restore_optimizer(saved.optimizer)
            self.progress = Progress.of(saved.progress)
        else:  # also of a run that was stopped before its first checkpoint
            set_first_weights(trainer.model, settings, corpus)

    def run(self) -> Progress:
        progress, options = self.progress, self.options
        parameters = sum(p.numel() for p in self.trainer.parameters.values())
        fill = self.batches.fill(progress.position.epoch)
        self.reporter.started(self.settings, progress.step, parameters, fill)
        if self._ended():
            return progress
        note_start(self.folder, progress.step)
        metrics = Metrics(self.folder, progress.step)
        saved_at = time.monotonic()
        try:
            with stop_signals() as stop:
                for pairs, position in updates(self.batches, progress.position, options.batches):
                    began = time.monotonic()
                    batches = [self.batches.batch(index) for index in pairs]
                    update = self.trainer.update(progress.step + 1, batches)
                    progress.step, progress.position = update.step, position
                    seconds = time.monotonic() - began
                    self._log(metrics, update, position.epoch, seconds)
                    self.reporter.updated(update, position.epoch, seconds)
                    if self.valid is not None and progress.step % options.validate_every == 0:
                        self._validate(metrics, self.valid)
                    ended, signal = self._ended(), stop.number
                    if self._save_is_due(time.monotonic() - saved_at) or ended or signal:
                        metrics.flush()
                        self._save()
                        saved_at = time.monotonic()
                    if ended:
                        return progress
                    if signal:
                        raise InterruptedRunError(signal, progress.step)
        finally:
            metrics.close()
        raise AssertionError("updates never end")

    def _log(self, metrics: Metrics, update: Update, epoch: int, seconds: float) -> None:
        values = asdict(update)
        step = values.pop("step")
        tokens = update.source_tokens + update.target_tokens
        speed = {"seconds": round(seconds, 4), "tokens_per_second": round(tokens / seconds)}
        metrics.write("update", step, epoch=epoch, **values, **speed)

    def _validate(self, metrics: Metrics, valid: Batches) -> None:
        progress = self.progress
        loss = self.trainer.validate(valid)
        best = loss < (math.inf if progress.best_loss is None else progress.best_loss)
        metrics.write("validation", progress.step, loss=loss)
        if best:
            progress.best_loss, progress.best_step = loss, progress.step
            progress.without_gain = 0
            self.checkpoints.save_best(progress.step, weights(self.trainer.model), loss)
        else:
            progress.without_gain += 1
        self.reporter.validated(progress.step, loss, best=best)

    def _save_is_due(self, seconds: float) -> bool:
        every, minutes = self.options.save_every, self.options.save_minutes
        by_step = every is not None and self.progress.step % every == 0
        return by_step or (minutes is not None and seconds >= 60 * minutes)

    def _save(self) -> None:
        self.checkpoints.save(
            self.progress.step,
            weights(self.trainer.model),
            self.trainer.optimizer_tensors(),
            asdict(self.progress),
            keep=self.options.keep,
        )

    def _ended(self) -> bool:
        patience = self.options.patience
        tired = patience is not None and self.progress.without_gain >= patience
        return self.progress.step >= self.options.steps or tired


def _validation(corpus: Corpus, limit: int) -> Batches | None:
    if corpus.valid is None:
        return None
    # Without gradients a batch may be larger than in training: the longest sentence must fit.
    longest = max(int(lengths.max()) + 1 for lengths in corpus.valid.lengths())
    return Batches(corpus.valid, max(limit, longest), seed=0)
