"""A run from its first update, or from its last checkpoint, to its end."""

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from edgewise.checkpoint.checkpoints import Checkpoints, Saved
from edgewise.checkpoint.model_folder import read_model, set_weights, weights
from edgewise.data.batches import Batches, Indices, Position, updates
from edgewise.data.corpus import Corpus
from edgewise.errors import DataError, EdgewiseError, SettingError
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer, parameter_shapes
from edgewise.storage import resolved
from edgewise.training.errors import InterruptedRunError, NotFiniteError
from edgewise.training.memory import physical_memory
from edgewise.training.metrics import Metrics
from edgewise.training.ranks import Ranks
from edgewise.training.reporter import Reporter
from edgewise.training.run import is_run, note_start, run_folder
from edgewise.training.settings import RunSettings
from edgewise.training.signals import stop_signals
from edgewise.training.trainer import Totals, Trainer, Update, device_of
from edgewise.training.validation_bleu import ValidationBleu

BEGUN = "begun"  # what rank 0 leaves for those who are started after it


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
    """Train until the last step, or until validation stops getting better.

    Under torchrun the processes train together; rank 0 alone writes and reports.
    """
    settings = settings.resolved()
    ranks = Ranks.of_environment()
    if settings.training.threads is not None:
        torch.set_num_threads(settings.training.threads)
    if reporter is None or not ranks.is_first:
        reporter = Reporter()
    device = device_of(settings.training, ranks)
    with ExitStack() as stack:
        launch = stack.enter_context(ranks.joined(device))
        on_gpu = device.type == "cuda"
        some_are = bool(ranks.highest(on_gpu))
        with ranks.together():
            if some_are and not on_gpu:
                raise SettingError(
                    f"rank {ranks.rank} has no GPU, and others have (set training.device to cpu, "
                    "or mend that machine)"
                )
        # Started anew by torchrun, a run goes on from its last checkpoint, whatever was asked for.
        begun = ranks.restarts > 0 if launch is None else launch.check([BEGUN])
        overwrite = overwrite and not begun
        with ranks.together():
            # What cannot be is refused before anything is written or, by overwrite, removed.
            corpus = Corpus(settings.corpus)
            require_fit(settings, corpus, ranks)
            require_room_for(settings.model, corpus.vocabulary.size)
            batches = Batches(corpus.train, settings.training.batch_tokens, settings.training.seed)
            model = Transformer(settings.model, corpus.vocabulary.size)
            is_new = ranks.is_first and (overwrite or not is_run(settings.out))
            if is_new:
                require_outside_run(settings)
                set_first_weights(model, settings, corpus)
        digest = ranks.told(corpus.digest)
        with ranks.together():
            if digest != corpus.digest:
                raise DataError(
                    f"{corpus.folder} on rank {ranks.rank} is another corpus than on rank 0 "
                    "(give all machines the same files)"
                )
        checkpoints = saved = None
        with ranks.together():
            if ranks.is_first:
                folder = stack.enter_context(run_folder(settings, corpus, overwrite=overwrite))
                if launch is not None:
                    launch.set(BEGUN, "")
                checkpoints = Checkpoints(
                    *(folder, settings.model, corpus.vocabulary),
                    languages=corpus.languages,
                    data=corpus.described(),
                )
                saved = checkpoints.load_last(reporter.warned)
                if saved is not None:
                    set_weights(model, saved.weights, str(folder))
                elif not is_new:  # it was stopped before its first checkpoint
                    set_first_weights(model, settings, corpus)
        trainer = Trainer(model, settings.training, ranks)
        loop = _Loop(settings, corpus, batches, trainer, checkpoints, reporter)
        loop.resume(saved)
        return loop.run()


def require_fit(settings: RunSettings, corpus: Corpus, ranks: Ranks) -> None:
    """Raise SettingError where the settings ask for what corpus or ranks cannot give."""
    options = settings.training
    if options.batches < ranks.size:
        raise SettingError(
            f"training.batches must be at least the number of ranks, {ranks.size}, so that each "
            f"has a batch of an update; got {options.batches} (start fewer ranks, or a new run "
            "with more training.batches of fewer training.batch_tokens)"
        )
    if options.patience is not None and corpus.valid is None:
        raise SettingError(
            f"training.patience needs validation, and {corpus.folder} has no pairs for it "
            "(prepare it with --valid-source and --valid-target)"
        )


def require_room_for(settings: ModelSettings, vocabulary: int) -> None:
    """Raise SettingError for a model whose weights alone are larger than the memory of the machine.

    Linux would grant the memory, and end the process when it is used.
    """
    size = 4 * sum(math.prod(shape) for shape in parameter_shapes(settings, vocabulary).values())
    memory = physical_memory()
    if memory is not None and size > memory:
        raise SettingError(
            f"the weights of the model take {size >> 30:,} GiB, and this machine has "
            f"{memory >> 30:,} GiB of memory (lower model.d_model, model.d_ff or the layers)"
        )


def require_outside_run(settings: RunSettings) -> None:
    """Raise SettingError if a new run would start from a model that lies in its own folder."""
    if settings.init_from is None:
        return
    if resolved(settings.init_from).is_relative_to(resolved(settings.out)):
        raise SettingError(
            f"init_from must be outside the run that is begun anew, {settings.out}; "
            f"got {settings.init_from} (copy that model, or choose another --out)"
        )


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
        checkpoints: Checkpoints | None,  # of rank 0 alone
        reporter: Reporter,
    ) -> None:
        self.settings, self.options, self.reporter = settings, settings.training, reporter
        self.batches, self.trainer, self.ranks = batches, trainer, trainer.ranks
        self.valid = _validation(corpus, self.options.batch_tokens)
        self.bleu: ValidationBleu | None = None
        if corpus.valid is not None and self.options.validate_bleu:
            self.bleu = ValidationBleu(
                corpus.valid, self.options.validate_bleu, corpus.vocabulary, self.ranks
            )
        self.checkpoints = checkpoints
        self.metrics: Metrics | None = None  # of rank 0 alone, too
        self.progress = Progress()

    def resume(self, saved: Saved | None) -> None:
        """Start all ranks from what rank 0 has loaded; the weights are in its model already."""
        if saved is not None:
            self.trainer.restore_optimizer(saved.optimizer)
        told = self.ranks.told(None if saved is None else saved.progress)
        self.trainer.spread()
        if told is not None:
            self.progress = Progress.of(told)

    def run(self) -> Progress:
        progress, options = self.progress, self.options
        parameters = sum(p.numel() for p in self.trainer.parameters.values())
        fill = self.batches.fill(progress.position.epoch)
        size = self.ranks.size
        self.reporter.started(self.settings, progress.step, parameters, fill, size)
        if options.batches % size:
            self.reporter.warned(
                f"{options.batches} batches an update are no multiple of {size} ranks: some wait "
                "for others"
            )
        if self._ended():
            return progress
        with ExitStack() as stack:
            if self.ranks.is_first:
                note_start(self.settings.out, progress.step, size)
                self.metrics = Metrics(self.settings.out, progress.step)
                stack.callback(self.metrics.close)
            stop = stack.enter_context(stop_signals(patient=self.ranks.launched))
            saved_at = time.monotonic()
            for taken, position in updates(self.batches, progress.position, options.batches):
                self._update(taken, position)
                if self.valid is not None and progress.step % options.validate_every == 0:
                    self._validate(self.valid)
                ended, signal = self._ended(), self.ranks.highest(stop.number)
                due = ended or self._save_is_due(time.monotonic() - saved_at)
                if due or signal:
                    self._save(in_between=not due)
                    saved_at = time.monotonic()
                if ended:
                    return progress
                if signal:
                    raise self.ranks.agreed(InterruptedRunError(signal, progress.step))
        raise AssertionError("updates never end")

    def _update(self, taken: Mapping[Position, Indices], position: Position) -> None:
        progress, began = self.progress, time.monotonic()
        mine = list(taken.values())[self.ranks.rank :: self.ranks.size]
        batches = [self.batches.batch(pairs) for pairs in mine]
        tokens = [self.batches.tokens(pairs) for pairs in taken.values()]
        totals = Totals(len(taken), *map(sum, zip(*tokens, strict=True)))
        try:
            update = self.trainer.update(progress.step + 1, batches, totals)
        except NotFiniteError as error:
            raise self.ranks.agreed(_not_finite(error, progress.step + 1, taken)) from None
        progress.step, progress.position = update.step, position
        seconds = time.monotonic() - began
        self._log(update, position.epoch, seconds)
        self.reporter.updated(update, position.epoch, seconds)

    def _log(self, update: Update, epoch: int, seconds: float) -> None:
        if self.metrics is None:
            return
        values = asdict(update)
        step = values.pop("step")
        tokens = update.source_tokens + update.target_tokens
        speed = {"seconds": round(seconds, 4), "tokens_per_second": round(tokens / seconds)}
        self.metrics.write("update", step, epoch=epoch, **values, **speed)

    def _validate(self, valid: Batches) -> None:
        progress = self.progress
        loss = self.trainer.validate(valid)
        best = loss < (math.inf if progress.best_loss is None else progress.best_loss)
        if best:
            progress.best_loss, progress.best_step = loss, progress.step
        progress.without_gain = 0 if best else progress.without_gain + 1
        bleu = None
        if self.bleu is not None and math.isfinite(loss):
            bleu = self.bleu(self.trainer.model)
        if self.metrics is not None:
            score: dict[str, float | str] = {}
            if bleu is not None:
                score = {"bleu": bleu.value, "bleu_signature": bleu.signature}
            self.metrics.write("validation", progress.step, loss=loss, **score)
        if self.checkpoints is not None and best:
            self.checkpoints.save_best(progress.step, weights(self.trainer.model), loss, bleu)
        self.reporter.validated(progress.step, loss, bleu, best=best)

    def _save_is_due(self, seconds: float) -> bool:
        every, minutes = self.options.save_every, self.options.save_minutes
        by_step = every is not None and self.progress.step % every == 0
        return by_step or (minutes is not None and seconds >= 60 * minutes)

    def _save(self, *, in_between: bool) -> None:
        if self.checkpoints is None or self.metrics is None:
            return
        self.metrics.flush()
        self.checkpoints.save(
            self.progress.step,
            weights(self.trainer.model),
            self.trainer.optimizer_tensors(),
            asdict(self.progress),
            keep=self.options.keep,
            in_between=in_between,
        )

    def _ended(self) -> bool:
        patience = self.options.patience
        tired = patience is not None and self.progress.without_gain >= patience
        return self.progress.step >= self.options.steps or tired


def _not_finite(
    error: NotFiniteError, step: int, taken: Mapping[Position, Indices]
) -> EdgewiseError:
    """Which batch it was, and what may help."""
    wrong = [
        f"batch {where.index + 1} of epoch {where.epoch + 1} (pairs {_some(pairs)} of the corpus) "
        f"has a loss of {loss}"
        for (where, pairs), loss in zip(taken.items(), error.losses, strict=True)
        if not math.isfinite(loss)
    ]
    where = list(taken)
    wrong = wrong or [
        f"the gradient of the {len(where)} batches from {where[0].index + 1} of epoch "
        f"{where[0].epoch + 1} has a length of {error.gradient_norm}"
    ]
    return EdgewiseError(
        f"update {step} is not made: {'; '.join(wrong)}; the last checkpoint is from before (a "
        "lower training.factor, a longer training.warmup or training.clip may help)"
    )


def _some(pairs: Indices) -> str:
    more = ", …" if len(pairs) > 5 else ""
    return ", ".join(str(pair + 1) for pair in pairs[:5]) + more


def _validation(corpus: Corpus, limit: int) -> Batches | None:
    if corpus.valid is None:
        return None
    # Without gradients a batch may be larger than in training: the longest sentence must fit.
    longest = max(int(lengths.max()) + 1 for lengths in corpus.valid.lengths())
    return Batches(corpus.valid, max(limit, longest), seed=0)
